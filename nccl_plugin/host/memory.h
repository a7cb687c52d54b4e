// Memory that a transport's NICs read and write by themselves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/copy_pool.h"
#include "core/types.h"

namespace fabric::host {

// A buffer as the core knows it. Without a region only streams can carry it.
struct Registration {
  core::Region region = nullptr;
  std::array<std::uint32_t, core::kMaxRails> keys{};  // by rail of this host; 0: none there
  std::shared_ptr<const void> hold;                   // it stays registered while this lives
};

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  // Any thread. Cheap where a registration that covers the buffer is held already.
  virtual Registration acquire(const void* data, std::size_t size) = 0;
  // For one sending comm. Null: small messages go from where they are.
  virtual std::unique_ptr<core::CopyPool> make_copy_pool() = 0;
};

}  // namespace fabric::host
