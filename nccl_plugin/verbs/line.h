// A line is 64 bytes that one end's NIC writes into the memory of the other in one RDMA WRITE, and
// that the other end polls: aligned to 64 bytes, so that it lies in one cache line. A NIC may yet
// write it piece by piece, so it ends with a checksum: what is half written is no line.
//
// Who polls copies the 64 bytes first (read_line) and decodes the copy. Little-endian.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fabric::verbs {

inline constexpr std::size_t kLineSize = 64;
using Line = std::array<std::byte, kLineSize>;
using LineBytes = std::span<const std::byte, kLineSize>;

enum class LineKind : std::uint8_t { cts = 1, progress = 2 };  // 0: memory that nobody wrote

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

// Offsets that all lines have.
inline constexpr std::size_t kLineKindAt = 55;
inline constexpr std::size_t kLineChecksumAt = 60;

// The line at `from`, which a NIC may be writing. `from` is aligned to 64 bytes.
inline Line read_line(LineBytes from) {
  using Word = std::uint64_t;
  std::array<Word, kLineSize / sizeof(Word)> words{};
  // An atomic_ref is of what could be written; this is only read.
  auto* at = reinterpret_cast<Word*>(const_cast<std::byte*>(from.data()));
  for (Word& word : words) {
    word = std::atomic_ref(*at++).load(std::memory_order_acquire);
  }
  return std::bit_cast<Line>(words);
}

template <typename T>
void put(Line& line, std::size_t at, const T& value) {
  std::memcpy(line.data() + at, &value, sizeof value);
}
template <typename T>
T get(LineBytes line, std::size_t at) {
  T value{};
  std::memcpy(&value, line.data() + at, sizeof value);
  return value;
}

// Of all that comes before it.
inline std::uint32_t line_checksum(LineBytes line) {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ULL;
  std::uint64_t sum = kMultiplier;
  for (std::size_t at = 0; at < kLineChecksumAt; at += sizeof(std::uint32_t)) {
    sum = (std::rotl(sum, 23) ^ get<std::uint32_t>(line, at)) * kMultiplier;
  }
  return static_cast<std::uint32_t>(sum >> 32U);
}

inline void seal(Line& line, LineKind kind) {
  put(line, kLineKindAt, kind);
  put(line, kLineChecksumAt, line_checksum(line));
}
// Is it a whole line of this kind?
inline bool sealed(LineBytes line, LineKind kind) {
  return get<LineKind>(line, kLineKindAt) == kind &&
         get<std::uint32_t>(line, kLineChecksumAt) == line_checksum(line);
}

}  // namespace fabric::verbs
