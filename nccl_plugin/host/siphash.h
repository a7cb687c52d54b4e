// SipHash-2-4 with a 64-bit tag (Aumasson and Bernstein, 2012): authenticates hello and welcome.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fabric::host {

using Secret = std::array<std::byte, 16>;

inline std::uint64_t siphash(const Secret& secret, std::span<const std::byte> data) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t k0 = 0;
  std::uint64_t k1 = 0;
  std::memcpy(&k0, secret.data(), 8);
  std::memcpy(&k1, secret.data() + 8, 8);
  std::uint64_t v0 = k0 ^ 0x736f6d6570736575ULL;
  std::uint64_t v1 = k1 ^ 0x646f72616e646f6dULL;
  std::uint64_t v2 = k0 ^ 0x6c7967656e657261ULL;
  std::uint64_t v3 = k1 ^ 0x7465646279746573ULL;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  };
  std::size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + at, 8);
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  std::uint64_t last = static_cast<std::uint64_t>(data.size()) << 56U;
  if (at < data.size()) {
    std::uint64_t tail = 0;
    std::memcpy(&tail, data.data() + at, data.size() - at);
    last |= tail;
  }
  v3 ^= last;
  rounds(2);
  v0 ^= last;
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace fabric::host
