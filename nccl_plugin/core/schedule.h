// Which path carries the next chunk. Pure: the caller says what it knows of each path.
//
// One-sided paths come first: a stream carries only where no trusted one-sided path has a weight
// (best_kind), and in a comm with device memory only where no one-sided path is validated. The
// rules hold among the paths of that kind; first that leaves a path wins:
//   1. the primary path (the pair of rails that NCCL chose for the comm), when it is up, trusted
//      and at full weight; but not when the pool is open (below)
//   2. the rail that is the backup of the primary rail, likewise;
//   3. the pool: every trusted path with a weight that is not much slower, cross-rail ones only
//      from a rail to a rail whose own pairs are not among them, one for each rail, standby rails
//      only for rails that have no path there; shared by weight. Two paths that meet at a rail
//      would get two shares of what it can carry, and the collective would wait for it;
//   4. every trusted path with a weight;
//   5. every path with a weight, though it came back only just now;
//   6. every live path: a hint never removes the last one.
//
// The pool is open to a comm on its primary path as well when another comm to the same peer has
// lost its primary and the pool holds a path that is nobody's primary, or one of less than full
// weight. Otherwise comms without a primary alone would use that path and then wait for those who
// share theirs: a collective is as fast as its slowest comm. With striping it is always open.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/types.h"

namespace fabric::core {

inline constexpr std::uint16_t kFullWeight = 1000;

struct PathView {
  PathIndex path = 0;
  bool primary = false;
  bool base = false;     // one of the pairs connected from the start (same rail at both ends)
  bool trusted = false;  // past its hold-down
  std::uint16_t weight = 0;
  bool backup = false;  // of the rail that is the backup of the primary rail
  bool slow = false;    // so much slower than the others that they are better off without it
  PathKind kind = PathKind::stream;
  bool validated = true;  // it has delivered what a path that came back has to
};

inline constexpr std::uint8_t kBackupOfNone = 0xff;

// What holds for all paths of a comm.
struct Policy {
  bool stripe = false;          // never keep to the primary path
  bool device_memory = false;   // of the comm, which no stream can carry
  bool primary_lost = false;    // some comm to this peer has lost its primary
  std::uint64_t primaries = 0;  // PathSet: primary paths of all comms to this peer
  // By the sender's rail: which of its rails it is the backup of. Such a rail is nobody's primary.
  std::array<std::uint8_t, kMaxRails> backup_of{};

  Policy() { backup_of.fill(kBackupOfNone); }
};

// The kind of the paths that carry: of those that are trusted and have a weight one-sided ones,
// else streams; where no path is both, the same among those with a weight. nullopt: no path has a
// weight, and paths of both kinds carry. With `device_memory`: one-sided
// ones while any is validated, whatever else holds.
std::optional<PathKind> best_kind(std::span<const PathView> live, bool device_memory = false);

// Where the comm belongs, by rules 1 and 2; 0: its primary is lost.
PathSet primary_place(std::span<const PathView> live, bool device_memory = false);

// `live`: the paths that have a connection, in any order.
PathSet eligible(std::span<const PathView> live, const Policy& policy = {});

// Shares chunks among paths in proportion to weight: the next goes to the path that is furthest
// behind. A path that could not take one is skipped, not waited for.
//
// Of the paths that are level the first in their order goes next, and the order begins elsewhere
// for each comm (begin_with). Comms of one job run in step: with one order all of them would send
// their next chunk over the same path, then all over another, and a collective waits for that path.
// The order begins one path further with each chunk, counted as the comm's messages have them: what
// went again, or what a path carried while another was away, would else put this comm out of step
// with the others for good.
class Share {
 public:
  Share() = default;
  // Paths that differ by so many bytes at full weight are level: small messages do not change whose
  // turn it is.
  explicit Share(std::uint64_t level) : level_(level) {}

  // The path among `candidates` to try next.
  [[nodiscard]] std::optional<PathIndex> next(PathSet candidates) const;
  // `again`: it was carried before.
  void carried(PathIndex path, std::uint64_t bytes, std::uint16_t weight, bool again = false);
  // Other paths share from now on. Who joins is level with those who stay, or else with those who
  // leave, or else with one another: it neither makes up for its absence nor starves.
  void change(PathSet from, PathSet to);
  // The order of `paths` begins with the one that `turn` others of them are before, counted on from
  // the first one where there are not so many.
  void begin_with(PathSet paths, std::size_t turn);

 private:
  std::array<std::uint64_t, kMaxPaths> carried_{};  // bytes / weight, scaled
  std::uint64_t level_ = 0;
  PathSet paths_ = 0;  // in order
  std::size_t turn_ = 0;
  std::size_t chunks_ = 0;  // that count as such
};

// How many chunks go out in one call on a path that shares with no other. The end of a call makes
// a packet that is not full, and what was taken for a call keeps to its path: so as many as the
// path takes in about a millisecond.
class BatchSize {
 public:
  static constexpr std::size_t kLeast = 4;
  static constexpr std::size_t kMost = 16;
  [[nodiscard]] std::size_t most() const { return most_; }
  // So many are through, after `took`.
  void through(std::size_t chunks, std::int64_t took_ns);

 private:
  std::size_t most_ = kLeast;
};

// Bytes that a path may have outstanding. One of less weight than the heaviest that shares with it
// may hold that much less: what waits there, its latency, is what the weight is there to lower. The
// heaviest has no limit but its socket's, so that its room is an event and nobody waits for a tick.
// `window`: bytes that the socket would hold without a limit, as last seen.
inline constexpr std::size_t kBacklog = std::size_t{1} << 20U;  // though the window be less
std::size_t most_outstanding(std::uint16_t weight, std::uint16_t heaviest, std::size_t window);

}  // namespace fabric::core
