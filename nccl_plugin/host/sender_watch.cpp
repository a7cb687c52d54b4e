// What the control thread watches of a Sender's connections: death, delivery, trust, stalls.
#include <algorithm>

#include "core/schedule.h"
#include "host/sender.h"

namespace fabric::host {

namespace {

constexpr std::int64_t kValidationMostNs = 30'000 * kMs;  // of a validation that only trickles
constexpr std::size_t kRoomyLimit = std::size_t{1} << 20U;
constexpr std::uint64_t kRoomyBytesPerMs = 64'000;  // half of 1 Gbit/s
constexpr std::int64_t kRehashNs = 1000 * kMs;      // for how long it is asked

}  // namespace

// Finds what has died: said so by a hint, or silent.
void Sender::watch_paths(std::int64_t now, const PeerFacts& facts, ControlActions& actions) {
  core::each(live_, [&](core::PathIndex index) {
    Path& path = paths_[index];
    if (!path.life.live()) {
      return;  // went down with another of this round
    }
    const core::PathSet rdma = over_rdma();
    if (facts.should_close(index, path.up_since, live_, rdma)) {
      const pages::PathDownReason why = facts.of(kind_in(rdma, index)).why[index];
      fail(index, why);
      path.page_took = path.page_took || why == pages::PathDownReason::steer_page;
      return;
    }
    if ((rdma & core::bit(index)) != 0 && facts.to_stream(index)) {
      fail(index, pages::PathDownReason::steer_page);
      leave_to_page(index);
      return;
    }
    if (facts.outdated(index, path.up_since)) {
      fail(index, pages::PathDownReason::moved);
      return;
    }
    // What could not be applied at once is out of date: the path may be well by now.
    if (path.up_since < facts.rehash[index] && now - facts.rehash[index] < kRehashNs &&
        (eligible_ & ~core::bit(index)) != 0) {
      fail(index, pages::PathDownReason::rehash);
      return;
    }
    if (path.link->wants_poll()) {
      read_back(index);
      if (!path.life.live()) {
        return;
      }
    }
    if (!path.tried) {
      read_back(index);  // the caller may not look for long
      if (!path.life.live()) {
        return;
      }
      // Many at once on a slow rail take their time: only a standstill fails the path.
      const bool over =
          now - path.delivered_at > kValidationStallNs || now - path.up_since > kValidationMostNs;
      if (!path.tried && over && (live_ & ~core::bit(index)) != 0) {
        fail(index, pages::PathDownReason::path_validation);
        return;
      }
    }
    if (!context_.params.failover || !path.maybe_unacked) {
      return;
    }
    const auto info = path.link->sample();
    if (info) {
      weigh(index, *info, now, actions);
    }
    core::Liveness liveness = core::Liveness::alive;
    if (const auto own = path.link->judge(now)) {
      liveness = *own;
    } else if (info) {
      liveness = path.ack_timeout.judge(*info, now, facts.heard[index]);
    }
    if (liveness == core::Liveness::suspect) {
      actions.suspect |= core::bit(index);
    }
    if (liveness == core::Liveness::dead) {
      fail(index, pages::PathDownReason::no_ack);
    } else if (info && info->unacknowledged == 0 && !path.sending && path.link->backlog() == 0) {
      path.maybe_unacked = false;
      path.looked = 0;
      path.ack_timeout.reset();
    }
  });
}

void Sender::weigh(core::PathIndex index, const core::PathSample& info, std::int64_t now,
                   ControlActions& actions) {
  Path& path = paths_[index];
  const std::uint64_t delivered = info.acknowledged_bytes - path.acked_bytes;
  moved_ = moved_ || delivered != 0;
  path.acked_bytes = info.acknowledged_bytes;
  path.window = info.window;
  // Where nothing has to be shared, a caller that blocks is woken seldomer. On a slow rail that
  // would be much to send again.
  const bool alone = sleeps_ && eligible_ == core::bit(index);
  const bool fast = path.looked != 0 && delivered >= static_cast<std::uint64_t>(now - path.looked) *
                                                         kRoomyBytesPerMs / kMs;
  if (!alone || fast) {
    limit_unsent(index, alone ? kRoomyLimit : kUnsentLimit);
  }
  if (delivered != 0) {
    path.delivered_at = now;
  }
  if (context_.params.adapt) {
    // What waits only because the limit is high tells nothing of the path.
    const std::uint64_t known = info.acknowledged_bytes + path.unsent_limit - kUnsentLimit;
    const std::uint64_t waiting = path.written - std::min(path.written, known);
    actions.loads.push_back(
        {index, waiting, delivered, path.looked == 0 ? 0 : now - path.looked, path.link->kind()});
  }
  path.looked = now;
}

void Sender::watch_trust(std::int64_t now) {
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    Path& path = paths_[i];
    const std::uint16_t told = weight(static_cast<core::PathIndex>(i));
    if (path.failures != 0 && told == 0) {
      path.page_took = true;
    }
    if (!path.life.live() || path.trusted) {
      continue;
    }
    if (path.tried && (path.page_took ? told != 0 : now >= path.trusted_at)) {
      path.trusted = true;
      path.page_took = false;
    }
  }
  choose();
}

void Sender::watch_stall(std::int64_t now) {
  const auto still = static_cast<std::uint64_t>(now - idle_since_);
  if (moved_ || core_.busy()) {
    busy_at_ = now;
  }
  if (moved_ || !core_.busy()) {
    if (stalled_) {
      add(context_.stats.rails[core::sender_rail(primary_)].stall_ns, still);
      counters_.stall_ns.add(still);
    }
    moved_ = false;
    stalled_ = false;
    idle_since_ = now;
  } else if (!stalled_ && now - idle_since_ > kStallCountNs) {
    stalled_ = true;
    add(context_.stats.rails[core::sender_rail(primary_)].stalls, 1);
    counters_.stalls.add(1);
  }
}

// False: given up.
bool Sender::watch_deadline(std::int64_t now) {
  if (live_ != 0 && facts_.answered(context_.params)) {
    dead_since_ = 0;
    told_all_down_ = false;
    return true;
  }
  if (dead_since_ == 0) {
    dead_since_ = now;
  }
  if (live_ == 0 && !told_all_down_ && last_failure_at_ != 0) {
    told_all_down_ = true;
    context_.stats.event(pages::StatsEventKind::all_paths_down, id_, 255, 255, 0);
  }
  if (now - dead_since_ < context_.params.deadline_ns) {
    return true;
  }
  abort_inside(
      Result::remote_error,
      "no path to " + peer_ + " for " + std::to_string((now - dead_since_) / 1'000 / kMs) +
          " s (FABRIC_DEADLINE)" +
          (last_failure_.empty() ? std::string(": never connected")
                                 : "; the last to fail: " + last_failure_ + ", " +
                                       std::to_string((now - last_failure_at_) / kMs) + " ms ago"));
  return false;
}

}  // namespace fabric::host
