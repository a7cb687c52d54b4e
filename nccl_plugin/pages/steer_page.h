// The steer page: the daemon writes, the plugin reads. Owner: fabricd/steer/page.py, which writes
// exactly this layout (tests/unit/fabricd/steer/test_page_layouts.py compares the two).
// Little-endian.
//
// What always holds: the file is created whole and renamed into place, has kSteerPageSize bytes
// for ever and is never truncated. A reader uses pread into private memory, never mmap. `seq` is a
// seqlock (odd while a write is under way). `crc` is CRC-32 (zlib's polynomial) over bytes
// [kSteerCrcFrom, kSteerRailsAt + 64 * rail_count) followed by
// [kSteerPathsAt, kSteerPathsAt + 64 * path_count).
//
// The fences lie at the very end of the page: `fence_count` numbers of 8 bytes from
// steer_fences_at(fence_count) on, with a CRC-32 of their own, `fence_crc`. Paths end before them;
// the writer leaves out paths that find no room. Releases before fences wrote 0 in both fields and
// read over them, so the version stays: either may be the older one.
// RDMA has a weight of its own where `rdma_given` is 1: verbs goes by it, TCP by `weight`. Where it
// is 0 both go by `weight`, as on pages of releases before RDMA probes, which wrote zeros there.
//
// `epoch` of a SteerRail or SteerPath counts the changes of that entry. It is not the epoch of a
// connection (core/types.h).
//
// A page that fails any check, or whose heartbeat is older than kSteerStaleNs, counts as absent. A
// torn read (`seq` is odd, or changed) is repeated; until one succeeds, the last good copy counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric::pages {

inline constexpr std::uint32_t kSteerMagic = 0x52545346;  // "FSTR"
inline constexpr std::uint16_t kSteerVersion = 1;         // a reader takes this and the one before
inline constexpr std::size_t kSteerPageSize = 65536;
inline constexpr std::size_t kSteerMaxRails = 32;
inline constexpr std::size_t kSteerMaxPaths = 960;
inline constexpr std::size_t kSteerMaxFences = 4096;  // as many as one host can be told of
inline constexpr std::uint64_t kSteerStaleNs = 3'000'000'000;

// Same numbers as telemetry.events.LinkState, in order of definition.
enum class LinkState : std::uint8_t {
  unknown = 0,
  up = 1,
  suspect = 2,
  down = 3,
  hold = 4,
  probation = 5,
  degraded = 6,
  admin = 7,
};

enum class SteerMode : std::uint32_t { observe = 0, steer = 1, migrate = 2 };

struct SteerHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_size;   // sizeof(SteerHeader)
  std::uint64_t seq;           // seqlock: odd while being written
  std::uint32_t page_size;     // kSteerPageSize
  std::uint32_t crc;           // over everything used from heartbeat_ns on
  std::uint64_t heartbeat_ns;  // CLOCK_MONOTONIC of the last write, at most 1 s apart
  std::uint64_t incarnation;   // of the daemon: changes at each of its starts
  std::uint64_t generation;    // +1 whenever an entry, the mode or the fences changed
  std::uint32_t rail_count;
  std::uint32_t path_count;
  std::uint32_t mode;  // SteerMode; in observe every weight is kWeightFull
  std::uint32_t fence_count;
  std::uint32_t fence_crc;
  std::uint32_t reserved[15];
};
static_assert(sizeof(SteerHeader) == 128);
inline constexpr std::size_t kSteerCrcFrom = offsetof(SteerHeader, heartbeat_ns);
static_assert(kSteerCrcFrom == 24);

inline constexpr std::uint16_t kWeightFull = 1000;  // 0: carry nothing while another path lives

// One local rail.
struct SteerRail {
  char netdev[16];       // NUL-terminated interface name
  std::uint32_t epoch;   // +1 at each change of this entry's weights or states
  std::uint16_t weight;  // 0..kWeightFull
  std::uint8_t state;    // LinkState
  std::uint8_t reserved0;
  std::uint64_t since_ns;  // CLOCK_MONOTONIC of the last change
  std::uint16_t rdma_weight;
  std::uint8_t rdma_state;  // LinkState
  std::uint8_t rdma_given;
  std::uint32_t reserved[7];
};
static_assert(sizeof(SteerRail) == 64);

// One (local rail, remote address): an exception to the rail's own entry, so that a peer's dead
// NIC is avoided without giving up the local rail. Paths without an entry follow their rail.
struct SteerPath {
  char netdev[16];
  std::uint8_t remote[16];  // IPv6, or IPv4 mapped (::ffff:a.b.c.d)
  std::uint32_t epoch;
  std::uint16_t weight;
  std::uint8_t state;  // LinkState
  std::uint8_t reserved0;
  std::uint64_t since_ns;
  std::uint16_t rdma_weight;
  std::uint8_t rdma_state;
  std::uint8_t rdma_given;
  std::uint32_t reserved[3];
};
static_assert(sizeof(SteerPath) == 64);

// What verbs may carry by an entry, a SteerRail or a SteerPath.
template <typename Entry>
constexpr std::uint16_t rdma_weight(const Entry& entry) {
  return entry.rdma_given != 0 ? entry.rdma_weight : entry.weight;
}
template <typename Entry>
constexpr LinkState rdma_state(const Entry& entry) {
  return static_cast<LinkState>(entry.rdma_given != 0 ? entry.rdma_state : entry.state);
}

// A fence is the incarnation of a fabric-run, as host/fenced_runs.h has it; never 0. None of its
// processes may take part in anything any more. It holds in every mode.
using SteerFence = std::uint64_t;
static_assert(sizeof(SteerFence) == 8);

inline constexpr std::size_t kSteerRailsAt = sizeof(SteerHeader);
inline constexpr std::size_t kSteerPathsAt = kSteerRailsAt + kSteerMaxRails * sizeof(SteerRail);
static_assert(kSteerPathsAt + kSteerMaxPaths * sizeof(SteerPath) <= kSteerPageSize);

constexpr std::size_t steer_fences_at(std::size_t fence_count) {
  return kSteerPageSize - fence_count * sizeof(SteerFence);
}
static_assert(kSteerPathsAt < steer_fences_at(kSteerMaxFences));

}  // namespace fabric::pages
