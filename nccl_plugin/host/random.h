// Unguessable numbers from the kernel.
#pragma once

#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace fabric::host {

inline void random_bytes(std::span<std::byte> out) {
  std::size_t at = 0;
  while (at < out.size()) {
    const ssize_t got = ::getrandom(out.data() + at, out.size() - at, 0);
    if (got > 0) {
      at += static_cast<std::size_t>(got);
    }
  }
}

inline std::uint64_t random_number() {
  std::uint64_t number = 0;
  random_bytes(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace fabric::host
