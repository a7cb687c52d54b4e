// What goes over the wire and what must have arrived. Every value depends on the iteration, the
// place and the ranks, so that stale, swapped, shifted, lost or doubled data shows. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fabric::perf {

// Bytes of one (source, destination, iteration), any offset: point to point and all-to-all.
struct ByteStream {
  int source;
  int destination;
  std::uint64_t iteration;
};
void fill(std::span<std::byte> out, std::size_t offset, const ByteStream& stream);
// Number of bytes of `got` that are not what fill() writes at `offset`.
std::size_t count_corrupt(std::span<const std::byte> got, std::size_t offset,
                          const ByteStream& stream);

// All-reduce: rank r adds base(i) + r * weight(i) at element i, weight odd and at least 1, so every
// rank's part counts and no two ranks' parts are alike. All are integers, small enough that float32
// sums of `world` ranks stay below 2^24 and are exact in any order. Successive iterations differ in
// every element.
template <typename Element>
void fill_summand(std::span<Element> out, std::size_t first, int rank, int world,
                  std::uint64_t iteration);
// Number of bytes of `got` that are not the exact sum over all ranks.
template <typename Element>
std::size_t count_corrupt_sum(std::span<const Element> got, std::size_t first, int world,
                              std::uint64_t iteration);
// The largest world whose float32 sums are exact with this pattern.
inline constexpr int kMaxExactWorld = 1024;

template <typename Element>
void add_into(std::span<Element> into, std::span<const Element> summand);

}  // namespace fabric::perf
