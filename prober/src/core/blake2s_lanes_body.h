// The computation behind core/blake2s_lanes.h, compiled once for each instruction set. It calls no
// inline function of any library: the linker could keep the copy that only a newer CPU can run.
#pragma once

#include "core/blake2s_lanes.h"
#include "core/blake2s_tables.h"

namespace fabric::prober::blake2s {
namespace {

using Vec = std::uint32_t __attribute__((vector_size(4 * kLanes)));

inline __attribute__((always_inline)) void mix(Vec* v, int a, int b, int c, int d, const Vec& x,
                                               const Vec& y) {
  v[a] = v[a] + v[b] + x;
  v[d] ^= v[a];
  v[d] = v[d] >> 16 | v[d] << 16;
  v[c] = v[c] + v[d];
  v[b] ^= v[c];
  v[b] = v[b] >> 12 | v[b] << 20;
  v[a] = v[a] + v[b] + y;
  v[d] ^= v[a];
  v[d] = v[d] >> 8 | v[d] << 24;
  v[c] = v[c] + v[d];
  v[b] ^= v[c];
  v[b] = v[b] >> 7 | v[b] << 25;
}

inline __attribute__((always_inline)) void compress(Vec* h, const Vec* m, std::uint64_t total,
                                                    bool last) {
  Vec v[16];
  for (int i = 0; i < 8; ++i) {
    v[i] = h[i];
    v[i + 8] = Vec{} + kIv[i];
  }
  v[12] ^= static_cast<std::uint32_t>(total);
  v[13] ^= static_cast<std::uint32_t>(total >> 32);
  if (last) v[14] = ~v[14];
#pragma GCC unroll 10
  for (int r = 0; r < 10; ++r) {
    const std::uint8_t* s = kSigma[r];
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

inline __attribute__((always_inline)) std::uint32_t load32(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
         static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
}

inline __attribute__((always_inline)) void hash(const std::uint32_t* start, std::uint64_t absorbed,
                                                const std::uint8_t* const* messages,
                                                std::size_t length, std::uint32_t (*out)[kLanes]) {
  Vec h[8];
  for (int i = 0; i < 8; ++i) h[i] = Vec{} + start[i];
  for (std::size_t at = 0; at < length; at += kBlock) {
    Vec m[16];
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        m[i][lane] = load32(messages[lane] + at + 4 * i);
      }
    }
    const bool last = length - at <= kBlock;
    compress(h, m, absorbed + (last ? length : at + kBlock), last);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) out[i][lane] = h[i][lane];
  }
}

}  // namespace
}  // namespace fabric::prober::blake2s
