#include "perf/pattern.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace fabric::perf {
namespace {

// One kibibyte or so of expected data at a time: stays in the first-level cache, and memcmp decides
// the usual case (all well).
constexpr std::size_t kBlock = 512;

std::uint64_t mix(std::uint64_t x) {
  x *= 0x9e3779b97f4a7c15ULL;
  x ^= x >> 32U;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32U;
  return x;
}

std::uint64_t seed_of(const ByteStream& s) {
  return mix(mix(s.iteration + 1) ^
             (static_cast<std::uint64_t>(static_cast<unsigned>(s.source)) << 32U) ^
             static_cast<unsigned>(s.destination));
}

// 32-bit arithmetic only: compilers vectorize it on any x86-64.
std::uint32_t mix32(std::uint32_t x) {
  x *= 0x9e3779b1U;
  x ^= x >> 15U;
  x *= 0x85ebca77U;
  x ^= x >> 13U;
  return x;
}

// base in [0, 2^bits), weight odd in [1, 8). With bits so chosen, world * (2^bits - 1 + 7 * world
// / 2) stays below 2^24 up to kMaxExactWorld = 1024.
struct Terms {
  std::uint32_t mask;
  std::uint32_t shift;  // of the iteration: makes successive iterations differ everywhere
  std::uint32_t salt;   // changes when `shift` wraps
  Terms(int world, std::uint64_t iteration) {
    const auto w = static_cast<std::uint32_t>(world);
    mask = 1024;
    while (std::uint64_t{w} * (mask - 1 + 4ULL * w) >= (1U << 24U) && mask > 16) mask /= 2;
    mask -= 1;
    shift = static_cast<std::uint32_t>(iteration);
    salt = static_cast<std::uint32_t>(mix((iteration >> 4U) + 0x51));
  }
  std::uint32_t base(std::uint32_t h) const { return (h + shift) & mask; }
  static std::uint32_t weight(std::uint32_t h) { return ((h >> 28U) & 6U) | 1U; }
  std::uint32_t hash(std::size_t index) const {
    return mix32(static_cast<std::uint32_t>(index) ^
                 (static_cast<std::uint32_t>(index >> 32U) * 0x27d4eb2fU));
  }
};

}  // namespace

void fill(std::span<std::byte> out, std::size_t offset, const ByteStream& stream) {
  const std::uint64_t seed = seed_of(stream);
  std::size_t i = 0;
  const auto single = [&] {
    const std::uint64_t word = mix(seed + (offset + i) / 8);
    out[i] = static_cast<std::byte>(word >> (8 * ((offset + i) % 8)));
    ++i;
  };
  while (i < out.size() && (offset + i) % 8 != 0) single();
  for (; i + 8 <= out.size(); i += 8) {
    const std::uint64_t word = mix(seed + (offset + i) / 8);
    std::memcpy(out.data() + i, &word, 8);
  }
  while (i < out.size()) single();
}

std::size_t count_corrupt(std::span<const std::byte> got, std::size_t offset,
                          const ByteStream& stream) {
  std::array<std::byte, kBlock * 4> expected;
  std::size_t corrupt = 0;
  for (std::size_t at = 0; at < got.size(); at += expected.size()) {
    const std::size_t n = std::min(expected.size(), got.size() - at);
    fill(std::span(expected).first(n), offset + at, stream);
    if (std::memcmp(expected.data(), got.data() + at, n) == 0) continue;
    for (std::size_t i = 0; i < n; ++i) corrupt += expected[i] != got[at + i] ? 1U : 0U;
  }
  return corrupt;
}

template <typename Element>
void fill_summand(std::span<Element> out, std::size_t first, int rank, int world,
                  std::uint64_t iteration) {
  const Terms terms(world, iteration);
  const auto r = static_cast<std::uint32_t>(rank);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint32_t h = terms.hash(first + i);
    out[i] = static_cast<Element>(static_cast<std::int32_t>(terms.base(h) + r * terms.weight(h)));
  }
}

template <typename Element>
std::size_t count_corrupt_sum(std::span<const Element> got, std::size_t first, int world,
                              std::uint64_t iteration) {
  const Terms terms(world, iteration);
  const auto w = static_cast<std::uint32_t>(world);
  const std::uint32_t ranks = w * (w - 1) / 2;
  std::array<Element, kBlock> expected;
  std::size_t corrupt = 0;
  for (std::size_t at = 0; at < got.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, got.size() - at);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t h = terms.hash(first + at + i);
      expected[i] = static_cast<Element>(
          static_cast<std::int32_t>(w * terms.base(h) + ranks * terms.weight(h)));
    }
    const std::span<const Element> part = got.subspan(at, n);
    if (std::memcmp(expected.data(), part.data(), n * sizeof(Element)) == 0) continue;
    const auto want = std::as_bytes(std::span<const Element>(expected).first(n));
    const auto have = std::as_bytes(part);
    for (std::size_t i = 0; i < want.size(); ++i) corrupt += want[i] != have[i] ? 1U : 0U;
  }
  return corrupt;
}

template <typename Element>
void add_into(std::span<Element> into, std::span<const Element> summand) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] += summand[i];
}

template void fill_summand(std::span<float>, std::size_t, int, int, std::uint64_t);
template void fill_summand(std::span<std::int32_t>, std::size_t, int, int, std::uint64_t);
template std::size_t count_corrupt_sum(std::span<const float>, std::size_t, int, std::uint64_t);
template std::size_t count_corrupt_sum(std::span<const std::int32_t>, std::size_t, int,
                                       std::uint64_t);
template void add_into(std::span<float>, std::span<const float>);
template void add_into(std::span<std::int32_t>, std::span<const std::int32_t>);

}  // namespace fabric::perf
