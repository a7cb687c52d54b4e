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
  bool device = false;  // a GPU's: without a region nothing carries it
};

class TransportRegion;

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  // A buffer in what register_memory() of the same transport made; nothing where it is not. By
  // the caller's region and never by the address alone: memory that was freed and mapped anew has
  // the same address, and a NIC would still reach the old pages. One thread at a time.
  virtual Registration use(TransportRegion& region, const void* data, std::size_t size) = 0;
  // Registers a buffer that nobody has registered. Slow. Any thread.
  virtual Registration make(void* data, std::size_t size) = 0;
  // For one sending comm. Null: small messages go from where they are.
  virtual std::unique_ptr<core::CopyPool> make_copy_pool() = 0;
};

}  // namespace fabric::host
