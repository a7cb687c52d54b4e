// The page on which a host's clock service leaves what its prober is to tell the peers; twin of
// clocksync/page/outbox.py. clocksync/mesh/messages.py knows what the messages mean. A latch
// (clocksync/page/latch.py): record[seq & 1] holds. `check` is the exclusive or of the 64-bit words
// after it and kSalt. Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric::clock_outbox {

inline constexpr std::uint32_t kMagic = 0x44574346;  // "FCWD"
inline constexpr std::uint16_t kVersion = 2;
inline constexpr std::size_t kFileSize = 4096;
inline constexpr std::uint64_t kSalt = 0x9e3779b97f4a7c15;
inline constexpr std::size_t kMessages = 8;  // for all paths
inline constexpr std::size_t kLinks = 32;    // one more for the paths of each link, by its index

struct Record {
  std::uint64_t check;
  std::uint64_t mono_ns;                // CLOCK_MONOTONIC when it was written
  std::uint64_t message[kMessages][4];  // one whose first part is 0 is none
  std::uint64_t link[kLinks][4];
};
static_assert(sizeof(Record) == 1296);

struct Page {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t used;
  std::uint64_t seq;
  Record record[2];
};
static_assert(sizeof(Page) == 2608);

}  // namespace fabric::clock_outbox
