// The page on which a host's clock service leaves from which UDP source port its prober is to probe
// a path, where that is not the link's own (a path whose two ways differ, on its way to another
// ECMP path); twin of clocksync/page/ports.py. A latch (clocksync/page/latch.py): record[seq & 1]
// holds. `check` is the exclusive or of the words after it and kSalt. Little-endian. What was
// written holds until something else is, however old it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric::clock_ports {

inline constexpr std::uint32_t kMagic = 0x54504346;  // "FCPT"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kFileSize = 4096;
inline constexpr std::uint64_t kSalt = 0x9e3779b97f4a7c15;
inline constexpr std::size_t kEntries = 48;
inline constexpr std::uint16_t kLeastPort = 49152;  // dynamic and private ports (RFC 6335)

struct Entry {
  std::uint8_t own[16];   // address of our link; IPv6, or IPv4-mapped
  std::uint8_t peer[16];  // and of the peer's
  std::uint32_t host_id;  // of the peer
  std::uint16_t peer_port;
  std::uint16_t port;  // to probe from; 0: the entry says nothing
};
static_assert(sizeof(Entry) == 40);

struct Record {
  std::uint64_t check;
  std::uint64_t mono_ns;  // CLOCK_MONOTONIC when it was written
  Entry entry[kEntries];
};
static_assert(sizeof(Record) == 1936);

struct Page {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t used;
  std::uint64_t seq;
  Record record[2];
};
static_assert(sizeof(Page) == 3888);

}  // namespace fabric::clock_ports
