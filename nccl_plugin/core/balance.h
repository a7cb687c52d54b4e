// Weights that follow delivery. Pure; times in nanoseconds.
//
// What is watched of a path is the part of a second in which bytes stood waiting there, handed to
// the kernel and not yet with the peer's. Comms of one job wait for one another: a path with less
// room than its share takes up is the one on which bytes still wait while the others have nothing
// left to carry. Where every path is full, bytes wait on all of them alike and nothing is slow,
// however much the lengths of their queues differ (a mean latency by Little's law, L = λW, cannot
// tell the two apart).
//
// A path is slow when bytes wait on it much longer than on the middle one of the other paths to the
// same peer with a comparable load, and it delivers much less in the time in which it has any; two
// seconds in a row. From then on its factor follows the ratio of the two times over some seconds,
// both ways: it settles where the path is done when the others are. Where both are done together it
// stays, and a little more (in the end full weight, by which comms return to their primary paths)
// is tried only after some good seconds, twice as many each time that this proves wrong.
//
// A path of much less speed than the others is removed: whatever its weight, a chunk takes so long
// there that the collective waits for that one chunk, and the job is slower than without the path.
// It is tried again at full weight after a minute, then ever later, and at once when somebody else
// says that it changed.
//
// Only paths of the same kind are compared: what waits in a socket and what waits in a NIC's queue
// are not alike. A path that is one-sided for some comm is not judged by streams of others.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/schedule.h"

namespace fabric::core {

inline constexpr std::int64_t kBalanceStepNs =
    1'000'000'000;  // at most one change a second and path

class Balance {
 public:
  // One connection over `path`, looked at every few milliseconds: `waiting` bytes are not with the
  // peer's kernel yet, `delivered` came there since the last look, `passed` ns ago.
  // On a one-sided path `waiting` bytes are posted and not completed.
  void observe(PathIndex path, std::uint64_t waiting, std::uint64_t delivered, std::int64_t passed,
               std::int64_t now, PathKind kind = PathKind::stream);

  // Once a second. Returns the paths whose factor changed.
  PathSet step(std::int64_t now);

  // 1..kFullWeight, to be multiplied with what hints say.
  [[nodiscard]] std::uint16_t factor(PathIndex path) const { return paths_[path].factor; }
  // Of which kind the path was when that was found. What was found goes when the kind changes.
  [[nodiscard]] PathKind kind(PathIndex path) const { return paths_[path].kind; }
  // Paths that carry nothing while there is another.
  [[nodiscard]] PathSet removed() const { return removed_; }
  // Something about the path changed: what is removed is tried again with the next step.
  void retry(PathIndex path) { paths_[path].retry_at = 0; }
  // Paths that were slow for long: worth another source port. Says so once.
  PathSet take_rehash() { return std::exchange(rehash_, 0); }

 private:
  struct Path {
    PathKind kind = PathKind::stream;
    std::int64_t one_sided_until = 0;  // ns; streams do not count before
    std::int64_t held = 0;   // ns of this second in which bytes waited, over whichever connection
    std::int64_t until = 0;  // counted so far
    std::uint64_t delivered = 0;
    std::uint16_t factor = kFullWeight;
    int slow_steps = 0;   // in a row, at full weight
    double own_held = 0;  // below full weight: of the steps since the last judgement
    double others_held = 0;
    double own_bytes = 0;
    double others_speed = 0;
    bool much_slower = false;  // as of the last judgement
    int gathered = 0;
    int good_steps = 0;         // judgements
    int good_steps_needed = 0;  // good ones before more weight is tried again; 0: never slow
    bool tried = false;         // more weight was, on no better ground than good steps
    std::int64_t lowered = 0;   // since when
    std::int64_t healed = 0;    // when it was lowered last
    std::int64_t next_rehash = 0;
    std::int64_t rehash_backoff = 0;
    std::int64_t retry_at = 0;  // while it is removed
    std::int64_t pause = 0;     // the last time; 0: never removed
  };
  struct Others {
    double held = 0;      // of the middle one
    double speed = 0;     // of the quickest, bytes in a ns in which bytes waited
    double measured = 0;  // of the quickest full path, bytes/ns; 0: no other path is full
  };
  [[nodiscard]] std::optional<Others> others(const Path& path) const;
  bool enter(Path& path, const std::optional<Others>& others, std::int64_t now);
  bool follow(Path& path, const std::optional<Others>& others, std::int64_t now);

  std::array<Path, kMaxPaths> paths_{};
  void judge_speed(PathIndex index, std::int64_t now);
  bool try_again(PathIndex index, std::int64_t now);
  PathSet removed_ = 0;
  PathSet seen_ = 0;  // paths with anything to tell
  PathSet rehash_ = 0;
  PathSet renewed_ = 0;  // of another kind now, since the last step
  std::int64_t last_ = 0;
};

}  // namespace fabric::core
