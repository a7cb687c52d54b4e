// Is a one-sided connection dead though nobody says so? By the completions of its queue pair,
// sampled: work requests are unfinished and none completes for a while. Pure; times in nanoseconds.
//
// Why not the NIC's own verdict: it comes after seconds, and some NICs retry for ever. Why not our
// acknowledgements: a process that is stopped sends none, while its NIC still completes writes;
// credits (SendCore) see to it that nothing is ever unfinished for want of a posted receive.
// Nothing unfinished is never a silence, and neither is an old request behind others that complete.
//
// As with TCP (core/ack_timeout.h, whose limits hold here) a second witness is heard: a zero-length
// write on another queue pair of the same rail and traffic class, posted once the silence is half
// way to its limit. Only a longer silence closes a connection against it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "core/ack_timeout.h"

namespace fabric::core {

// A NIC in software may take this long for one large write while its other queue pairs work.
inline constexpr std::int64_t kCompletionTimeoutSlowNs = 1'000'000'000;

struct WorkSample {
  std::uint64_t posted = 0;     // work requests so far, those that ask for a completion
  std::uint64_t completed = 0;  // of them
  std::int64_t oldest = 0;      // when the oldest unfinished one was posted, ns
  bool paused = false;          // the port was told to pause (PFC) since the last sample
};

struct Witness {
  std::int64_t answered = 0;  // when its last write completed, ns; 0: there is no witness
  bool failed = false;        // its last write completed with an error
};

class CompletionTimeout {
 public:
  // `backoff`: all limits are 2^backoff times as long, 2^kMaxBackoff at most. For a connection
  // whose predecessors were called dead and came back at once: the peer is slow, not gone.
  static constexpr unsigned kMaxBackoff = 3;
  void set_backoff(unsigned backoff) { backoff_ = std::min(backoff, kMaxBackoff); }

  // Call now and then while work is unfinished, and within 10 ms of a look that found nothing
  // moving. `suspect`: post the witness's write.
  Liveness judge(const WorkSample& sample, std::int64_t now, const Witness& witness) {
    limit_.look(now);
    const std::uint64_t finished = sample.completed - std::exchange(completed_, sample.completed);
    const bool idle = sample.posted == sample.completed;
    moving_ = idle || finished != 0;
    if (finished != 0 && busy_) {
      learn((now - since_) / static_cast<std::int64_t>(finished));
    }
    busy_ = !idle;
    if (moving_ || since_ == 0) {
      since_ = now;
    }
    if (idle) {
      return Liveness::alive;
    }
    since_ = std::max(since_, sample.oldest);
    // An error is one, however slow the peer. Else a longer limit is a shorter silence.
    const std::int64_t scale = witness.failed ? 1 : std::int64_t{1} << backoff_;
    const std::int64_t most = kAckTimeoutMaxNs * scale;
    const std::int64_t usual = mean_ == 0 ? most : 2 * (mean_ + 4 * deviation_);
    const std::int64_t slow = witness.failed ? 0 : sample.paused ? most : usual;
    const std::int64_t heard = witness.failed ? 0 : witness.answered;
    return limit_.judge((now - since_) / scale, slow / scale, now,
                        heard == 0 ? 0 : now - (now - heard) / scale,
                        std::clamp(usual / scale, kAckTimeoutAloneNs,
                                   std::max(kAckTimeoutAloneNs, kCompletionTimeoutSlowNs / scale)));
  }
  // At the last look nothing was unfinished, or something had completed since the look before.
  [[nodiscard]] bool moving() const { return moving_; }
  // A new queue pair.
  void reset() { *this = {}; }

 private:
  // How long a completion usually lets others wait, as TCP estimates a round trip (RFC 6298).
  void learn(std::int64_t took) {
    deviation_ = mean_ == 0 ? took / 2 : deviation_ + (std::abs(mean_ - took) - deviation_) / 4;
    mean_ = mean_ == 0 ? took : mean_ + (took - mean_) / 8;
  }

  DetectionTime limit_;
  unsigned backoff_ = 0;
  std::int64_t since_ = 0;  // nothing completed since, though there was something to complete
  std::uint64_t completed_ = 0;
  std::int64_t mean_ = 0;       // ns between completions; 0: not known
  std::int64_t deviation_ = 0;  // ns
  bool busy_ = false;           // something was unfinished at the last look
  bool moving_ = true;
};

}  // namespace fabric::core
