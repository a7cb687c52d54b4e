// The stats page: one per process, the plugin writes, telemetry reads (telemetry/statslayout.py has
// the same layout; tests/unit/telemetry/test_stats_layout.py compares the two). Little-endian.
//
// Path: $FABRIC_RUN_DIR/stats/<pid>-<start_ns>.page, owned by the job's user, mode 0640: the
// directory (mode 1733: anybody may make a file there, nobody but its owner lists it) hands fabricd
// the right to read by a default ACL or its group; without either the mode is 0600. Created whole
// under a dot-name and renamed into place; kStatsPageSize bytes for ever; removed at finalize. A
// page whose process is gone has ended; only fabricd removes it, when nothing of it changed for 60
// s and all it said is stored (for 1 h when it never saw that pid: it may be of another pid
// namespace, and frozen). So a writer must not rely on its page's name, and a reader takes a
// missing page for an ended one. Pages are hostile to the reader: it checks type, owner, size and
// every count, and uses pread, never mmap.
//
// `seq` is a seqlock around the header's changing part, the rails, their latencies and the groups.
// The event ring needs no lock: an event is whole when its own `index` equals the index it is read
// for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric::pages {

inline constexpr std::uint32_t kStatsMagic = 0x41545346;  // "FSTA"
// Version 1 had neither groups nor latencies (those of StatsRail and below were reserved, zero).
inline constexpr std::uint16_t kStatsVersion = 2;
inline constexpr std::uint16_t kStatsOldestVersion = 1;
inline constexpr std::size_t kStatsPageSize = 65536;
inline constexpr std::size_t kStatsMaxRails = 32;
inline constexpr std::size_t kStatsMaxEvents = 512;
inline constexpr std::size_t kStatsMaxGroups = 65;  // the last one: all that found no row
inline constexpr std::size_t kStatsLatencyBuckets = 28;

struct StatsHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_size;  // sizeof(StatsHeader)
  std::uint64_t seq;          // seqlock
  std::uint32_t page_size;
  std::uint32_t pid;           // in the writer's pid namespace
  std::uint64_t start_ns;      // CLOCK_MONOTONIC at init: the process's incarnation
  std::uint64_t heartbeat_ns;  // CLOCK_MONOTONIC, by the control thread, at most 1 s apart
  std::uint32_t rail_count;
  std::uint32_t send_comms;  // open now
  std::uint32_t recv_comms;
  std::uint32_t reserved0;
  std::uint64_t errors;         // results other than success ever returned to NCCL
  std::uint64_t refused_peers;  // connections dropped: bad secret, proof, version, magic or shape
  // Steer pages refused: corrupt, of another size or version, or of an untrusted owner. Torn reads
  // are repeated and not counted.
  std::uint64_t steer_rejected;
  std::uint64_t event_count;    // events ever written; event i lies in slot i % kStatsMaxEvents
  std::uint32_t steer_present;  // 1 while a fresh, valid steer page is being followed
  std::uint32_t failover;       // 0: FABRIC_FAILOVER=0, the plain single-path mode
  char job[64];                 // FABRIC_JOB, or the process's comm name
  // From version 2 on.
  std::uint32_t group_count;  // rows in use
  std::uint32_t
      pid_namespace;  // inode of /proc/self/ns/pid: where `pid` means something; 0: unknown
  // Connections of or to fenced processes that were refused; releases before fences left it 0.
  std::uint64_t refused_fenced;
  std::uint32_t reserved[20];
};
static_assert(sizeof(StatsHeader) == 256);

struct StatsRail {
  char netdev[16];
  std::uint64_t tx_bytes;  // payload handed to the transport, retransmits included
  std::uint64_t rx_bytes;  // payload accepted
  std::uint64_t tx_chunks;
  std::uint64_t rx_chunks;
  std::uint64_t retransmit_bytes;  // payload sent again after a fence, counted on the new rail
  std::uint64_t retransmit_chunks;
  std::uint64_t duplicate_bytes;  // received again and dropped
  std::uint64_t failovers;        // paths on this rail given up
  std::uint64_t rejoins;          // paths on this rail taken back
  std::uint64_t stalls;           // times a comm had work but no path made progress for > 10 ms
  std::uint64_t stall_ns;
  std::uint64_t in_flight_bytes;  // sent on this rail and not yet acknowledged by the peer's core
  std::uint32_t live_paths;
  std::uint32_t dead_paths;
  // From version 2 on.
  std::uint64_t tx_messages;  // acknowledged by the peer's core; the last chunk went over this rail
  std::uint64_t rx_messages;  // made whole by a chunk that came over this rail
  std::uint64_t reserved[13];
};
static_assert(sizeof(StatsRail) == 240);

// From a message's posting to the receiving core's acknowledgement, measured at the sender. Bucket
// 0 is below 1 us, bucket i from 2^(i-1) to 2^i us, the last one all from 2^26 us (67 s) on.
struct StatsLatency {
  std::uint64_t sum_ns;
  std::uint64_t bucket[kStatsLatencyBuckets];
};
static_assert(sizeof(StatsLatency) == 232);

enum class StatsDirection : std::uint8_t { both = 0, send = 1, receive = 2 };

// All comms with one peer process in one direction. A group that has no comm any more may give its
// row to a new one; what it counted goes to the last row (address and incarnation 0, both
// directions), and so does all of a group that finds every row taken.
struct StatsGroup {
  std::uint8_t address[16];   // of the peer's first rail; IPv4 as ::ffff:a.b.c.d
  std::uint64_t incarnation;  // of the peer process
  std::uint8_t direction;     // StatsDirection, from this process
  std::uint8_t reserved0[3];
  std::uint32_t comms;     // open now
  std::uint64_t bytes;     // payload, retransmits included; receiving: accepted
  std::uint64_t messages;  // acknowledged; receiving: whole
  std::uint64_t retransmit_bytes;
  std::uint64_t retransmit_chunks;
  std::uint64_t failovers;  // paths given up
  std::uint64_t stalls;     // as in StatsRail
  std::uint64_t stall_ns;
  std::uint64_t in_flight_bytes;
  StatsLatency latency;  // sending only
  std::uint64_t reserved[3];
};
static_assert(sizeof(StatsGroup) == 352);

enum class StatsEventKind : std::uint16_t {
  path_down = 1,  // a path was given up; `detail` is PathDownReason
  // The first payload byte of that comm on a survivor after path_down; `detail`: the path that went
  // (sender's rail x 8 + receiver's). Missing when nothing was left to send by the time the fence
  // was answered: then that fence_done is the end of the comm's stall.
  first_byte = 2,
  fence_done = 3,      // the peer answered the fence; `detail`: bytes to resend
  path_up = 4,         // a path carries payload again
  rail_told_down = 5,  // the peer said in band that its rail is down
  all_paths_down = 6,
  error = 7,  // an error was returned to NCCL; `detail` is the result code
  path_weight =
      8,  // the weight by latency of a path to some peer changed; `detail`: to this, of 1000
};

enum class PathDownReason : std::uint32_t {
  steer_page = 1,
  socket_error = 2,
  no_ack = 3,
  peer_told = 4,
  carrier = 5,
  connect_failed = 6,
  path_validation = 7,  // back, but did not deliver what it had to before being trusted
  moved = 8,            // the rail's address went away or changed
  rehash = 9,           // slow for long: opened again from another port
};

struct StatsEvent {
  std::uint64_t index;       // this event's number + 1, written last; 0: never written
  std::uint64_t time_ns;     // CLOCK_MONOTONIC
  std::uint64_t comm;        // id of the comm, the same on both its ends
  std::uint16_t kind;        // StatsEventKind
  std::uint8_t local_rail;   // index into this page's rail table; 255: none
  std::uint8_t remote_rail;  // index into the peer's; 255: unknown
  std::uint32_t detail;
};
static_assert(sizeof(StatsEvent) == 32);

inline constexpr std::size_t kStatsRailsAt = sizeof(StatsHeader);
inline constexpr std::size_t kStatsEventsAt = 8192;
static_assert(kStatsRailsAt + kStatsMaxRails * sizeof(StatsRail) <= kStatsEventsAt);
inline constexpr std::size_t kStatsLatencyAt = 24576;  // one StatsLatency for each rail
static_assert(kStatsEventsAt + kStatsMaxEvents * sizeof(StatsEvent) <= kStatsLatencyAt);
inline constexpr std::size_t kStatsGroupsAt = 32768;
static_assert(kStatsLatencyAt + kStatsMaxRails * sizeof(StatsLatency) <= kStatsGroupsAt);
static_assert(kStatsGroupsAt + kStatsMaxGroups * sizeof(StatsGroup) <= kStatsPageSize);

}  // namespace fabric::pages
