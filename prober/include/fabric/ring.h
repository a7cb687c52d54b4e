// The ring file: the prober writes, the daemon reads (fabricd/probes/layout.py has the same layout;
// tests/unit/fabricd/probes/test_ring_layout.py compares the two). Little-endian.
//
// Path: $FABRIC_RUN_DIR/prober/ring. Created whole under a dot-name and renamed into place;
// kRingFileSize bytes for ever. A restarted prober makes a new file with a greater incarnation.
//
//   [header][link table][path table][event ring][sample ring]
//
// `index` of a record is the commit word: 0 while the record is being written, otherwise the
// record's number + 1. Record i lies in slot i % slots. A copy is whole when `index` is i + 1
// before and after copying. Rows of the tables are seqlocks: `seq` is odd while a row is written.
// The header's fields are independent words, each written whole. Times are CLOCK_MONOTONIC
// nanoseconds, but for the stamps of a sample.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric::ring {

inline constexpr std::uint32_t kRingMagic = 0x474e5246;  // "FRNG"
inline constexpr std::uint16_t kRingVersion = 4;
inline constexpr std::size_t kMaxLinks = 64;
inline constexpr std::size_t kMaxPaths = 1024;
inline constexpr std::size_t kEventSlots = 8192;
inline constexpr std::size_t kSampleSlots = 16384;
inline constexpr std::uint16_t kNone = 0xffff;  // no link, no path

enum class EventKind : std::uint16_t {
  kCarrier = 1,
  kMiss = 2,
  kHeard = 3,
  kStall = 4,
  kPeerRestart = 5,
  kRdmaPort = 6,
};

// Flags of an event. What they mean is in fabricd/probes/records.py.
inline constexpr std::uint16_t kFlagInconclusive = 1u << 0;
inline constexpr std::uint16_t kFlagTx = 1u << 1;  // else rx
inline constexpr std::uint16_t kFlagFirst = 1u << 2;
inline constexpr std::uint16_t kFlagPeerStalled = 1u << 3;
inline constexpr std::uint16_t kFlagCarrier = 1u << 4;
inline constexpr std::uint16_t kFlagInitial = 1u << 5;
inline constexpr std::uint16_t kFlagGone = 1u << 6;
inline constexpr std::uint16_t kFlagReturned = 1u << 7;

// value[] and count by kind:
//   CARRIER:      down_count, up_count, since_ns, ifindex;        count: downs
//   MISS:         interval_ns, silent_ns, last_heard_ns, due_ns;  count: conclusive misses in a row
//   HEARD:        silent_ns, 0, 0, 0;                             count: misses of the ended run
//   STALL:        gap_ns, start_ns, 0, 0
//   PEER_RESTART: old incarnation, new incarnation, 0, 0
//   RDMA_PORT:    0, 0, 0, 0: the verbs port of an RDMA link became active (kFlagCarrier) or not
struct EventRecord {
  std::uint64_t index;
  std::uint64_t mono_ns;
  std::uint16_t kind;
  std::uint16_t flags;
  std::uint16_t link;
  std::uint16_t path;
  std::uint32_t count;
  std::uint32_t config;
  std::uint64_t value[4];
};
static_assert(sizeof(EventRecord) == 64);

inline constexpr std::uint16_t kSampleHasOut = 1u << 0;
inline constexpr std::uint16_t kSampleHasBack = 1u << 1;
inline constexpr std::uint16_t kSampleHwLocal = 1u << 2;
inline constexpr std::uint16_t kSampleHwPeer = 1u << 3;
inline constexpr int kSampleOutTrainShift = 8;    // two bits: 1..3, or 0
inline constexpr int kSampleBackTrainShift = 10;  // two bits
struct SampleRecord {
  std::uint64_t index;
  std::uint64_t mono_ns;
  std::uint16_t path;
  std::uint16_t flags;
  std::uint32_t config;
  std::uint32_t local_seq;  // low 32 bits
  std::uint32_t peer_seq;
  std::int64_t t1;
  std::int64_t t2;
  std::int64_t t3;
  std::int64_t t4;
  std::uint64_t clock_message[4];  // of the peer's clock service, with this packet; 0: none
};
static_assert(sizeof(SampleRecord) == 96);

// Reasons for refusing a packet: index into RingHeader::refused.
enum class Refusal : std::uint32_t {
  kShort = 0,
  kMagic = 1,
  kVersion = 2,
  kAuth = 3,
  kReplay = 4,
  kUnknownPath = 5,
  kUnproven = 6,
};
inline constexpr std::size_t kRefusals = 7;

inline constexpr std::uint32_t kHeaderRunning = 1u << 0;
inline constexpr std::uint32_t kHeaderRealtime = 1u << 1;
inline constexpr std::uint32_t kHeaderLocked = 1u << 2;
inline constexpr std::uint32_t kHeaderSynchronized = 1u << 3;  // packets go by fabric time
struct RingHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_size;  // where the link table begins
  std::uint64_t file_size;
  std::uint32_t link_row_size;
  std::uint32_t path_row_size;
  std::uint32_t max_links;
  std::uint32_t max_paths;
  std::uint32_t event_slots;
  std::uint32_t sample_slots;
  std::uint64_t path_offset;
  std::uint64_t event_offset;
  std::uint64_t sample_offset;
  std::uint32_t pid;
  std::uint32_t flags;
  std::uint64_t incarnation;
  std::uint64_t start_ns;
  std::uint64_t heartbeat_ns;
  std::uint64_t event_head;   // events ever written
  std::uint64_t sample_head;  // samples ever written
  std::uint32_t config_epoch;
  std::uint32_t link_count;
  std::uint32_t path_count;
  std::uint32_t misses;
  std::uint64_t link_interval_ns;
  std::uint32_t clock_train_hz;
  std::uint32_t due_times_refused;
  std::uint64_t sent;
  std::uint64_t received;
  std::uint64_t stalls;
  std::uint64_t stall_ns;
  std::uint64_t stall_max_ns;
  std::uint64_t control_errors;
  std::uint64_t refused[kRefusals];
  // How long it takes to read the wall clock and CLOCK_MONOTONIC_RAW together: the kernel's stamps
  // are off by up to half of it, all alike. 0: not known yet.
  std::uint64_t clock_read_ns;
  // RDMA links and paths have the rows after `link_count` and `path_count`, and indices in records
  // to match. A writer without RDMA probes leaves both 0, as one that is older than these fields.
  std::uint32_t rdma_link_count;
  std::uint32_t rdma_path_count;
};
static_assert(sizeof(RingHeader) == 264);
inline constexpr std::size_t kHeaderSize = 4096;

inline constexpr std::uint32_t kLinkPresent = 1u << 0;
inline constexpr std::uint32_t kLinkBound = 1u << 1;
inline constexpr std::uint32_t kLinkCarrier = 1u << 2;
inline constexpr std::uint32_t kLinkHwStamps = 1u << 3;
// A verbs port. Bound: its queue pair is open. Carrier: the port is active. HwStamps: the device
// stamps completions; they are converted to CLOCK_MONOTONIC_RAW.
inline constexpr std::uint32_t kLinkRdma = 1u << 4;
inline constexpr int kLinkSourceShift = 8;  // two bits: 0 none, 1 sysfs, 2 netlink
struct LinkRow {
  std::uint64_t seq;  // seqlock
  char netdev[16];
  std::uint8_t address[16];  // IPv6, or IPv4-mapped
  std::uint16_t port;
  std::uint16_t bind_errno;  // why the socket is not bound; 0: it is, or was not tried yet
  std::uint32_t flags;
  std::uint32_t ifindex;
  std::uint32_t phc;  // of hardware stamps: the n of /dev/ptp<n>, plus one; 0: none
  std::uint64_t carrier_down_count;
  std::uint64_t carrier_up_count;
  std::uint64_t last_change_ns;
  std::uint64_t downs;
  std::uint64_t read_ns;
  std::uint64_t last_heard_ns;
  std::uint64_t sent;
  std::uint64_t received;
  std::uint64_t send_errors;
};
static_assert(sizeof(LinkRow) == 128);

inline constexpr std::uint32_t kPathClock = 1u << 0;
inline constexpr std::uint32_t kPathEstablished = 1u << 1;
inline constexpr std::uint32_t kPathGone = 1u << 2;       // the peer sent a bye: silent by intent
inline constexpr std::uint32_t kPathByDueTime = 1u << 3;  // judged by fabric time
// The source port that was asked for (fabric/clock_ports.h) cannot be had: bound, but not heard.
inline constexpr std::uint32_t kPathPortRefused = 1u << 4;
inline constexpr std::uint32_t kPathRdma = 1u << 5;
inline constexpr std::uint32_t kPathPeerRdma = 1u << 6;  // the peer told of a queue pair
inline constexpr int kPathPeerMovesShift = 8;  // eight bits: changes of the peer's source port
inline constexpr int kPathPortShift = 16;      // 16 bits: our source port; 0: the link's own
struct PathRow {
  std::uint64_t seq;  // seqlock
  std::uint8_t address[16];
  std::uint16_t port;
  std::uint16_t link;
  std::uint32_t flags;
  std::uint32_t host_id;
  std::uint32_t awake_us;  // by said_ns the peer had been running without a gap for so long
  std::uint64_t interval_ns;
  std::uint64_t peer_interval_ns;
  std::uint64_t sent;
  std::uint64_t received;
  std::uint64_t rx_lost;
  std::uint64_t tx_lost;
  std::uint64_t duplicates;
  std::uint64_t restarts;
  std::uint32_t rx_missed;
  std::uint32_t tx_missed;
  std::uint64_t rtt_last_ns;
  std::uint64_t rtt_min_ns;
  std::uint64_t rtt_smoothed_ns;
  std::uint64_t last_heard_ns;
  std::uint64_t peer_incarnation;
  std::uint64_t rx_bitmap;
  std::uint64_t tx_bitmap;
  std::uint64_t acked_ns;  // when the newest packet was sent that the peer says it heard; 0: none
  // On the clock of the peer (peer_incarnation): when the newest packet heard was due, and when the
  // first single packet after it is. Of a peer that does not say: when it came, on ours.
  std::uint64_t said_ns;
  std::uint64_t due_ns;
  std::uint64_t late_ns;  // how much later than last_heard_ns + due_ns - said_ns it may come
};
static_assert(sizeof(PathRow) == 200);

inline constexpr std::size_t kLinkOffset = kHeaderSize;
inline constexpr std::size_t kPathOffset = kLinkOffset + kMaxLinks * sizeof(LinkRow);
inline constexpr std::size_t kEventOffset = kPathOffset + kMaxPaths * sizeof(PathRow);
inline constexpr std::size_t kSampleOffset = kEventOffset + kEventSlots * sizeof(EventRecord);
inline constexpr std::size_t kRingFileSize = kSampleOffset + kSampleSlots * sizeof(SampleRecord);

}  // namespace fabric::ring
