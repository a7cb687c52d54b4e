// The parts of what Sender and Receiver know of one path of their comm: its connection, whether
// that is acknowledged, how far the path is trusted, when it may be dialled again, what it carries.
// Whoever is inside the comm uses them (host/comm_gate.h). Times are ns of monotonic_ns(), sizes
// bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/ack_timeout.h"
#include "core/lifecycle.h"
#include "core/types.h"
#include "host/context.h"
#include "host/link.h"
#include "host/wait_set.h"

namespace fabric::host {

// The connection of a path: the one that is live, else the last one.
template <typename Link>
struct PathConnection {
  core::Lifecycle life;
  std::unique_ptr<Link> link;  // while the path is live, and until its link has quiesced
  core::Epoch epoch = 0;       // of the link
  std::int64_t up_since = 0;
  std::int64_t down_since = 0;  // 0: it is live, or was given up without a failure
  bool ever_live = false;
  bool watched = false;  // it is in the wait set

  // True: the path was live before.
  bool connect(std::unique_ptr<Link> made, core::Epoch numbered, std::int64_t now) {
    life.on(core::LinkEvent::connected);
    link = std::move(made);
    epoch = numbered;
    up_since = now;
    watched = false;
    return std::exchange(ever_live, true);
  }
  // Callers who wait hear of it from now on, if there are any.
  void watch(WaitSet& waits) {
    if (!watched && waits.wanted()) {
      watched = true;
      if (const int fd = link->descriptor(); fd >= 0) {
        waits.add(fd);
      }
    }
  }
};

// Does the far end acknowledge what the connection sends?
struct PathAcks {
  core::AckTimeoutDetector timeout;
  bool maybe_unacked = false;  // false: nothing is under way that could be found silent

  // A new connection: its hello is the first that may be unacknowledged.
  void connect() {
    timeout.reset();
    maybe_unacked = true;
  }
  void all_acknowledged() {
    timeout.reset();
    maybe_unacked = false;
  }
  // `heard`: when the control link over the same rails last had an ACK. A link that can tell by
  // itself is believed.
  template <typename Link>
  core::Liveness judge(Link& link, const std::optional<core::PathSample>& sample, std::int64_t now,
                       std::int64_t heard) {
    if (const auto own = link.judge(now)) {
      return *own;
    }
    return sample ? timeout.judge(*sample, now, heard) : core::Liveness::alive;
  }
};

// How far a sender trusts a path. The first connection is trusted at once. A later one delivers its
// validation first, and is held for a time that doubles with each failure; where the steer page had
// taken the path, the page decides instead.
class PathTrust {
 public:
  [[nodiscard]] bool trusted() const { return trusted_; }
  // It delivered its validation, or needs none.
  [[nodiscard]] bool validated() const { return validated_; }

  // A connection is there. `back`: not the first one of the path. `validated`: it needs no
  // validation.
  void connect(bool back, bool validated, std::int64_t now, std::int64_t hold_ns) {
    trusted_ = !back;
    validated_ = validated;
    if (back) {
      const int doublings = std::clamp(failures_ - 1, 0, 4);
      trusted_at_ = now + std::min(hold_ns << doublings, kHoldMaxNs);
    }
  }
  // True: it was not validated before.
  bool validate() { return !std::exchange(validated_, true); }
  // The connection is over. `counts`: that tells against the path. `calm`: it had stood for so long
  // that earlier failures count no more.
  void fail(bool counts, bool calm) {
    trusted_ = false;
    page_took_ = false;
    if (counts) {
      failures_ = calm ? 1 : failures_ + 1;
    }
  }
  // The steer page took the path: it is trusted when the page gives it back.
  void leave_to_page() { page_took_ = true; }
  void update(bool live, std::uint16_t weight, std::int64_t now) {
    page_took_ = page_took_ || (failures_ != 0 && weight == 0);
    if (live && !trusted_ && validated_ && (page_took_ ? weight != 0 : now >= trusted_at_)) {
      trusted_ = true;
      page_took_ = false;
    }
  }

 private:
  bool trusted_ = false;
  bool validated_ = false;
  bool page_took_ = false;
  int failures_ = 0;
  std::int64_t trusted_at_ = 0;
};

// When a path may be dialled again. The back-off doubles with each dial. Hundreds of comms that
// lost a rail together do not all come back to it in the same millisecond: their ids stagger them.
class PathRedial {
 public:
  [[nodiscard]] bool due(std::int64_t now) const { return now >= next_; }
  void dial(std::int64_t now, std::uint64_t comm) {
    backoff_ = backoff_ == 0 ? kDialMinNs : std::min(2 * backoff_, kDialMaxNs);
    fail(now, comm);
  }
  // The dial failed, or its connection is over: after the back-off.
  void fail(std::int64_t now, std::uint64_t comm) {
    next_ = now + backoff_ + backoff_ / 2 * static_cast<std::int64_t>(comm % 256) / 256;
  }
  void forget_backoff() { backoff_ = 0; }
  void at_once() { next_ = 0; }

 private:
  std::int64_t next_ = 0;
  std::int64_t backoff_ = 0;
};

// What a sender's connection carries, as the control thread saw at its last look.
struct PathBytes {
  std::uint64_t acknowledged = 0;  // by the far end's transport
  std::uint64_t written = 0;       // taken by the transport, counted as `acknowledged` is
  std::size_t unsent_limit = kUnsentLimit;
  std::size_t window = 0;         // that the transport would hold
  std::int64_t delivered_at = 0;  // when `acknowledged` was last seen to have grown
  std::int64_t looked = 0;        // when; 0: it was quiet

  // `sample`: the hello, answered.
  void connect(const std::optional<core::PathSample>& sample, std::int64_t now) {
    delivered_at = now;
    window = 0;
    unsent_limit = kUnsentLimit;
    looked = 0;
    if (sample) {
      acknowledged = written = sample->acknowledged_bytes;
    }
  }
  // Returns the bytes delivered since the last look; `looked` is still that one's.
  std::uint64_t update(const core::PathSample& sample, std::int64_t now) {
    const std::uint64_t delivered = sample.acknowledged_bytes - acknowledged;
    acknowledged = sample.acknowledged_bytes;
    window = sample.window;
    if (delivered != 0) {
      delivered_at = now;
    }
    return delivered;
  }
  // ns since the last look; 0: there was none since it was quiet.
  [[nodiscard]] std::int64_t passed(std::int64_t now) const {
    return looked == 0 ? 0 : now - looked;
  }
  // Bytes that wait for the path. Those that wait only because the limit is high tell nothing of
  // it.
  [[nodiscard]] std::uint64_t waiting() const {
    const std::uint64_t known = acknowledged + unsent_limit - kUnsentLimit;
    return written - std::min(written, known);
  }
};

}  // namespace fabric::host
