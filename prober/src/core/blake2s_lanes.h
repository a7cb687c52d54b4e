// BLAKE2s of eight messages of one length at once, one in each lane of a vector register: an eighth
// of the instructions where the CPU has AVX2.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric::prober::blake2s {

inline constexpr std::size_t kLanes = 8;
inline constexpr std::size_t kBlock = 64;

// Goes on from `start` (8 words, after `absorbed` bytes) and ends each hash. A message has `length`
// bytes, at least one, and zeros up to the next multiple of kBlock. Writes word i of lane l to
// out[i][l].
void hash_lanes(const std::uint32_t* start, std::uint64_t absorbed,
                const std::uint8_t* const messages[kLanes], std::size_t length,
                std::uint32_t out[8][kLanes]);

// The two that hash_lanes chooses from; the second only on a CPU with AVX2.
void hash_lanes_plain(const std::uint32_t* start, std::uint64_t absorbed,
                      const std::uint8_t* const messages[kLanes], std::size_t length,
                      std::uint32_t out[8][kLanes]);
void hash_lanes_avx2(const std::uint32_t* start, std::uint64_t absorbed,
                     const std::uint8_t* const messages[kLanes], std::size_t length,
                     std::uint32_t out[8][kLanes]);

}  // namespace fabric::prober::blake2s
