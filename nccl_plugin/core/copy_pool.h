// Where small messages are copied to, until the receiving core has acknowledged them. A transport
// that sends from registered memory supplies its own; without one the core uses the heap.
#pragma once

#include <cstddef>
#include <memory>

#include "core/types.h"

namespace fabric::core {

class CopyPool {
 public:
  CopyPool() = default;
  virtual ~CopyPool() = default;
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // Bytes of the largest message that is ever copied here; 0: none is. At most kCopyLimit counts.
  [[nodiscard]] virtual std::size_t largest() const = 0;
  // Room for `size` bytes, from 0 to largest(). nullptr: none is left until one is released.
  virtual std::byte* take(std::size_t size) = 0;
  virtual void release(std::byte* copy) = 0;
  // The registered memory that this copy lies in; nullptr where it is not registered (inline data).
  [[nodiscard]] virtual Region region(const std::byte* copy) = 0;
};

// Gives a copy back to where it came from.
struct ReleaseCopy {
  CopyPool* pool = nullptr;  // nullptr: the heap
  void operator()(std::byte* copy) const {
    if (pool != nullptr) {
      pool->release(copy);
    } else {
      delete[] copy;
    }
  }
};
using Copy = std::unique_ptr<std::byte[], ReleaseCopy>;

}  // namespace fabric::core
