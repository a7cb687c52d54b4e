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
    const core::PathSet others = others_of(index);
    if (facts.should_close(index, path.up_since, others, rdma)) {
      const pages::PathDownReason why = facts.of(kind_in(rdma, index)).why[index];
      fail(index, why);
      if (why == pages::PathDownReason::steer_page) {
        path.trust.leave_to_page();
      }
      return;
    }
    if ((rdma & core::bit(index)) != 0 && facts.to_stream(index) &&
        !(device_memory_ && others == core::bit(index))) {
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
        (choice_.eligible & ~core::bit(index)) != 0) {
      fail(index, pages::PathDownReason::rehash);
      return;
    }
    if (path.link->wants_poll()) {
      read_back(index);
      if (!path.life.live()) {
        return;
      }
    }
    if (!path.trust.validated()) {
      read_back(index);  // the caller may not look for long
      if (!path.life.live()) {
        return;
      }
      // Many at once on a slow rail take their time: only a standstill fails the path.
      const bool over = now - path.bytes.delivered_at > kValidationStallNs ||
                        now - path.up_since > kValidationMostNs;
      if (!path.trust.validated() && over && (live_ & ~core::bit(index)) != 0) {
        fail(index, pages::PathDownReason::path_validation);
        return;
      }
    }
    if (!context_.params.failover || !path.acks.maybe_unacked) {
      return;
    }
    const auto info = path.link->sample();
    if (info) {
      weigh(index, *info, now, actions);
    }
    const core::Liveness liveness = path.acks.judge(*path.link, info, now, facts.heard[index]);
    if (liveness == core::Liveness::suspect) {
      actions.suspect |= core::bit(index);
    }
    if (liveness == core::Liveness::dead) {
      fail(index, pages::PathDownReason::no_ack);
    } else if (info && info->unacknowledged == 0 && !path.sending && path.link->backlog() == 0) {
      path.acks.all_acknowledged();
      path.bytes.looked = 0;
    }
  });
}

void Sender::weigh(core::PathIndex index, const core::PathSample& info, std::int64_t now,
                   ControlActions& actions) {
  Path& path = paths_[index];
  const std::uint64_t delivered = path.bytes.update(info, now);
  activity_.moved = activity_.moved || delivered != 0;
  // Where nothing has to be shared, a caller that blocks is woken seldomer. On a slow rail that
  // would be much to send again.
  const bool alone = sleeps_ && choice_.eligible == core::bit(index);
  const std::int64_t passed = path.bytes.passed(now);
  const bool fast = path.bytes.looked != 0 &&
                    delivered >= static_cast<std::uint64_t>(passed) * kRoomyBytesPerMs / kMs;
  if (!alone || fast) {
    limit_unsent(index, alone ? kRoomyLimit : kUnsentLimit);
  }
  if (context_.params.adapt) {
    actions.loads.push_back({index, path.bytes.waiting(), delivered, passed, path.link->kind()});
  }
  path.bytes.looked = now;
}

void Sender::watch_trust(std::int64_t now) {
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    Path& path = paths_[i];
    path.trust.update(path.life.live(), weight(static_cast<core::PathIndex>(i)), now);
  }
  choose();
}

void Sender::watch_stall(std::int64_t now) {
  const auto still = static_cast<std::uint64_t>(now - activity_.idle_since);
  if (activity_.moved || core_.busy()) {
    activity_.busy_at = now;
  }
  if (activity_.moved || !core_.busy()) {
    if (activity_.stalled) {
      add(context_.stats.rails[core::sender_rail(primary_)].stall_ns, still);
      counters_.stall_ns.add(still);
    }
    activity_.moved = false;
    activity_.stalled = false;
    activity_.idle_since = now;
  } else if (!activity_.stalled && now - activity_.idle_since > kStallCountNs) {
    activity_.stalled = true;
    add(context_.stats.rails[core::sender_rail(primary_)].stalls, 1);
    counters_.stalls.add(1);
  }
}

// False: given up.
bool Sender::watch_deadline(std::int64_t now) {
  const bool barred = core_.needs_one_sided() && one_sided() == 0;
  const bool carries = live_ != 0 && !barred;
  if (carries && facts_.answered(context_.params)) {
    outage_.over();
    return true;
  }
  if (outage_.goes_on(carries, now)) {
    context_.stats.event(pages::StatsEventKind::all_paths_down, id_, 255, 255, 0);
  }
  if (outage_.lasted(now) < context_.params.deadline_ns) {
    return true;
  }
  const std::string what = barred && live_ != 0 ? "no path over RDMA to " : "no path to ";
  const std::string without = barred && live_ != 0 ? ", and device memory goes over no other" : "";
  const bool short_of_descriptors = context_.shortage.lasts(now);
  const std::string never =
      ": never connected" + (short_of_descriptors ? ", for " + context_.shortage.text() : "");
  abort_inside(short_of_descriptors ? Result::system_error : Result::remote_error,
               what + peer_ + " " + outage_.text(now, never) + without);
  return false;
}

}  // namespace fabric::host
