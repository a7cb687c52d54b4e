// The control thread's loop and its ticks: peers, comms and what they want, the stats page.
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "core/schedule.h"
#include "host/control.h"
#include "host/monotonic.h"

namespace fabric::host {

namespace {

constexpr int kAloneTickMs = 250;  // without comms
constexpr int kNice = -10;
constexpr int kFastTickAfter = 2;
constexpr int kMaxMissed = 8;  // looked at well within core::kStallNs
constexpr std::int64_t kLastHelloNs = 1'000 * kMs;
constexpr std::int64_t kPublishNs = 20 * kMs;
constexpr std::int64_t kIdlePublishNs = 250 * kMs;
constexpr std::int64_t kPingPerLinkNs = 1 * kMs;  // many peers: at most 1,000 pings a second in all

std::int64_t tick_every(TickRate tick_rate) {
  switch (tick_rate) {
    case TickRate::fast:
      return kTickNs;
    case TickRate::calm:
      return kCalmTickNs;
    case TickRate::slow:
      return kSlowTickNs;
    case TickRate::idle:
      break;
  }
  return kIdleTickNs;
}

// Where something is under way its own connection tells first, and has the link speak at once.
std::int64_t ping_every(TickRate tick_rate) {
  return (tick_rate == TickRate::fast ? 50 : tick_rate == TickRate::calm ? 100 : 200) * kMs;
}

}  // namespace

void Control::run() {
  ::pthread_setname_np(::pthread_self(), "fabric-control");
  // Where it may: a failover must not wait behind the threads of the job. Microseconds per tick.
  if (::getpriority(PRIO_PROCESS, 0) > kNice) {
    ::setpriority(PRIO_PROCESS, 0, kNice);
  }
  std::int64_t now = monotonic_ns();
  while (!stopping_.load() || introduces(now)) {
    const bool alone = senders_.empty() && receivers_.empty();
    const bool fast = std::exchange(fast_tick_, false);
    publish_tick_rate();
    const std::int64_t every = tick_every(tick_rate_);
    const std::int64_t left =
        std::clamp<std::int64_t>(last_tick_ + every - now, 0, fast ? kMs : every);
    pings_ = 0;
    const int events = poller_.run(alone ? kAloneTickMs : static_cast<int>((left + kMs - 1) / kMs));
    now = monotonic_ns();
    if (fast && events == 0 && now < last_tick_ + every) {
      tick_comms(now, Which::passed_over);
      continue;
    }
    // They were answered, and change nothing: a look at everything would cost a caller its core.
    if (events != 0 && events == pings_ && now < last_tick_ + every) {
      fast_tick_ = fast;
      continue;
    }
    tick(now);
    last_tick_ = now;
  }
  log_paths_due(context_, monotonic_ns() + PathLog::kEveryNs);
}

// Stopping waits a little for the hellos of senders that were closed at once.
bool Control::introduces(std::int64_t now) {
  if (stop_by_ == 0) {
    stop_by_ = now + kLastHelloNs;
    tick(now);  // takes over what was begun since
  }
  return now < stop_by_ && std::any_of(senders_.begin(), senders_.end(), [](const auto& entry) {
           return entry.second.comm->introducing();
         });
}

// What was begun in a comm after this look had passed it must not wait for a seldom next one.
void Control::publish_tick_rate() {
  const bool alone = senders_.empty() && receivers_.empty();
  context_.tick_rate.store(alone ? TickRate::fast : tick_rate_);
  if (tick_rate_ == TickRate::idle && context_.activity.load()) {
    tick_rate_ = TickRate::calm;
    context_.tick_rate.store(alone ? TickRate::fast : tick_rate_);
  }
}

void Control::tick_comms(std::int64_t now, Which which) {
  tick_senders(now, which);
  tick_receivers(now, which);
}

void Control::tick(std::int64_t now) {
  const TickRate was = std::exchange(tick_rate_, TickRate::idle);
  context_.activity.store(false);
  caller_waits_ = context_.tick_rate.load() < was;
  take_pending_connects();
  if (!silenced_) {
    renew_rails(now);
  }
  if (next_look_ != 0 && next_look_ < now + kIdleTickNs) {
    tick_rate_ = TickRate::calm;
  }
  const bool changed = hints_.poll(now);
  apply_fences(changed);
  if (!hints_.prompt()) {
    tick_rate_ = TickRate::fast;
  }
  for (auto* peers : {&outbound_, &inbound_}) {
    for (auto& [id, peer] : *peers) {
      peer->hints_dirty = peer->hints_dirty || changed;
    }
  }
  network_->tick(now);
  for (const auto& transport : transports_) {
    transport->tick(now);
  }
  if (transports_.size() > 1 && now >= next_improvement_) {
    next_improvement_ = now + kImproveNs;
    improve_streams(now);
  }
  links_ = 0;
  for (const auto& [id, peer] : outbound_) {
    links_ += std::popcount(peer->live());
  }
  for (auto* peers : {&outbound_, &inbound_}) {
    for (auto& [id, peer] : *peers) {
      tick_peer(*peer, now, was);
    }
  }
  reported_ = hints_.local().number;
  tick_comms(now, Which::all);
  if (std::exchange(closed_, false)) {
    count_primaries();
  }
  if (tick_rate_ != TickRate::idle) {
    next_publish_ = std::min(next_publish_, published_ + kPublishNs);
  }
  log_paths_due(context_, now);
  if (now >= next_publish_) {
    published_ = now;
    next_publish_ = now + kIdlePublishNs;
    publish(now);
  }
}

void Control::take_pending_connects() {
  std::vector<PendingConnect> pending_connects;
  {
    const std::scoped_lock lock(registry_);
    pending_connects.swap(pending_connects_);
  }
  for (const PendingConnect& pending : pending_connects) {
    Peer& peer = outbound_peer(pending.handle);
    peer.primaries |= core::bit(pending.comm->primary());
    ++peer.comms;
    peer.facts.primaries = peer.primaries;
    if (peer.gone) {
      pending.comm->abort(Result::remote_error, peer.gone_text);
    }
    senders_.insert_or_assign(pending.comm->id(), Sending{pending.comm,
                                                          &peer,
                                                          pending.handle.listen_id,
                                                          pending.handle.secret,
                                                          join_group(peer),
                                                          {}});
  }
}

// What carrier, page, peer and latency say of the paths.
void Control::hint(Peer& peer, std::int64_t now) {
  if (peer.outbound && context_.params.adapt) {
    const core::PathSet changed = peer.balance.step(now);
    core::each(changed, [&](core::PathIndex path) {
      context_.stats.event(
          pages::StatsEventKind::path_weight, 0, static_cast<std::uint8_t>(core::sender_rail(path)),
          static_cast<std::uint8_t>(core::receiver_rail(path)), peer.balance.factor(path));
    });
    core::each(peer.balance.take_rehash(),
               [&](core::PathIndex path) { peer.facts.rehash[path] = now; });
    peer.facts.slow = peer.balance.removed();
    peer.hints_dirty = peer.hints_dirty || changed != 0;
  }
  if (!peer.hints_dirty) {
    return;
  }
  peer.hints_dirty = false;
  const SaidDown said =
      hints_.apply(peer.facts, peer.addresses, peer.remote, peer.rails, peer.outbound);
  peer.hinted.report(said.stream, now);
  peer.rdma_hinted = said.rdma;
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    const auto path = static_cast<core::PathIndex>(i);
    const std::uint16_t was = std::exchange(peer.hinted_weight[i], peer.facts.weight[i]);
    const std::uint16_t rdma_was =
        std::exchange(peer.hinted_rdma_weight[i], peer.facts.rdma.weight[i]);
    if (was < peer.facts.weight[i] || rdma_was < peer.facts.rdma.weight[i]) {
      peer.path_changed(path);
    }
    std::uint16_t& weight = peer.facts.of(peer.balance.kind(path)).weight[i];
    if (weight != 0) {
      const unsigned factor = peer.balance.factor(path);
      weight = static_cast<std::uint16_t>(std::max(1U, weight * factor / core::kFullWeight));
    }
  }
}

void Control::tick_peer(Peer& peer, std::int64_t now, TickRate was) {
  hint(peer, now);
  if (!context_.params.failover) {
    // The plain mode: no control links, no hints, one path.
    peer.facts.control_live = peer.primaries;
    peer.facts.down.report(0, now);
    peer.facts.weight.fill(core::kFullWeight);
    peer.facts.rdma.down.report(0, now);
    peer.facts.rdma.weight.fill(core::kFullWeight);
    return;
  }
  if (hints_.local().number != reported_) {
    peer.broadcast([&](Bytes& out) { append_rails(out, hints_.local(), peer.facts.version); });
  }
  peer.tick(now, std::max(ping_every(was), links_ * kPingPerLinkNs));
  const bool whole = (peer.facts.base & ~peer.live()) == 0;
  // Links are judged often enough so; more would have each end ping for the other's pings.
  tick_rate_ = std::min(tick_rate_, whole && peer.calm(now) ? TickRate::idle : TickRate::calm);
  if (peer.facts.down.down() != 0) {
    // While a path is said to be dead, whoever was passed over must hear soon.
    tick_rate_ = TickRate::fast;
  }
  if (peer.comms == 0 || peer.gone) {
    return;
  }
  if (peer.outbound) {
    core::each(peer.to_dial(now), [&](core::PathIndex path) { dial_link(peer, path, now); });
  } else {
    core::each(peer.to_probe(now), [&](core::PathIndex path) { probe_liveness(peer, path); });
  }
  judge(peer, now);
}

void Control::judge(Peer& peer, std::int64_t now) {
  if (peer.dead(now)) {
    give_up(peer, peer.name() + ": the process is gone (connections refused)");
  }
}

void Control::give_up(Peer& peer, const std::string& text) {
  peer.gone = true;
  peer.gone_text = text;
  each_comm_of(peer, [&](auto& comm) { comm.abort(Result::remote_error, text); });
}

// A comm whose caller is inside, and perhaps lost the CPU there, must not hold up the others: it is
// looked at again in the next tick, then every millisecond, and waited for when it was never free;
// one that was calm is waited for in the next tick, which comes late enough. Who is inside sees for
// itself whether messages come.
template <typename Comms, typename Serve>
void Control::tick_all(Comms& comms, std::int64_t now, Which which, Serve serve) {
  for (auto next = comms.begin(); next != comms.end();) {
    auto& [id, entry] = *next;
    if (which == Which::passed_over && entry.missed == 0) {
      ++next;
      continue;
    }
    const int most = entry.tick_rate == TickRate::fast ? kMaxMissed : 1;
    const auto actions = entry.comm->tick(now, entry.peer->facts, entry.missed >= most);
    if (!actions) {
      // Once is common beside a caller that polls; waking for it would cost that caller its core.
      ++entry.missed;
      entry.tick_rate = std::min(entry.tick_rate, caller_waits_ ? TickRate::calm : TickRate::slow);
      tick_rate_ = std::min(tick_rate_, entry.tick_rate);
      fast_tick_ = fast_tick_ || entry.missed >= kFastTickAfter;
      ++next;
      continue;
    }
    entry.missed = 0;
    entry.tick_rate = actions->tick_rate;
    tick_rate_ = std::min(tick_rate_, entry.tick_rate);
    entry.peer->ping(actions->suspect, now);
    serve(id, entry, *actions);
    if (actions->close) {
      collect_counters(entry);
      context_.stats.groups.leave(entry.group);
      for (const Poller::Watch& watch : entry.watches) {
        poller_.forget(watch);
      }
    }
    next = actions->close ? comms.erase(next) : std::next(next);
  }
}

void Control::tick_senders(std::int64_t now, Which which) {
  tick_all(
      senders_, now, which, [&](std::uint64_t id, Sending& sending, const ControlActions& actions) {
        for (const PathEpoch& fence : actions.announce) {
          sending.peer->broadcast(
              [&](Bytes& out) { append_path(out, FrameType::fence, id, fence); });
        }
        Peer& peer = *sending.peer;
        for (const PathValidation& done : actions.validations) {
          if (done.succeeded) {
            peer.validation.succeeded(done.path);
          } else {
            peer.validation.failed(done.path, done.since, now);
          }
        }
        core::each(actions.dial, [&](core::PathIndex path) {
          peer.validation.began(path, now);
          dial_data(sending, path, now);
        });
        if (actions.dial != 0 || !actions.validations.empty()) {
          peer.facts.held = peer.validation.held(now);  // for the comms that come after this one
        }
        for (const PathLoad& load : actions.loads) {
          sending.peer->balance.observe(load.path, load.waiting, load.delivered, load.passed, now,
                                        load.kind);
        }
        sending.primary_lost = actions.primary_lost && !actions.close;
        sending.shares = actions.shares && !actions.close;
        if (actions.close) {
          sending.peer->broadcast([&](Bytes& out) { append_frame(out, FrameType::close, id); });
          --sending.peer->comms;
          closed_ = true;
        }
      });
  for (auto& [id, peer] : outbound_) {
    peer->facts.primary_lost = false;
    peer->sharing = 0;
  }
  for (auto& [id, sending] : senders_) {
    sending.peer->facts.primary_lost = sending.peer->facts.primary_lost || sending.primary_lost;
    if (sending.shares) {
      sending.comm->share_as(sending.peer->sharing++);
    }
  }
}

void Control::tick_receivers(std::int64_t now, Which which) {
  tick_all(receivers_, now, which,
           [&](std::uint64_t id, Receiving& receiving, const ControlActions& actions) {
             if (actions.say_state) {
               const StateFrame frame{std::nullopt, actions.state};
               receiving.peer->broadcast([&](Bytes& out) { append_state(out, id, frame); });
             }
             for (const PathEpoch& fence : actions.announce) {
               const StateFrame frame{fence, actions.state};
               receiving.peer->broadcast(
                   [&](Bytes& out) { append_state(out, id, frame, FrameType::retired); });
             }
             if (actions.close) {
               add_tombstone(receiving);
               closed_ = true;
             }
           });
}

void Control::add_tombstone(const Receiving& receiving) {
  constexpr std::size_t kTombstones = 1024;
  const std::uint64_t id = receiving.comm->id();
  const core::ReceiverState state = receiving.comm->state();
  receiving.peer->broadcast([&](Bytes& out) {
    append_state(out, id, {std::nullopt, state});
    append_frame(out, FrameType::close, id);
  });
  --receiving.peer->comms;
  tombstones_[id] = state;
  tombstone_order_.push_back(id);
  if (tombstone_order_.size() > kTombstones) {
    tombstones_.erase(tombstone_order_.front());
    tombstone_order_.pop_front();
  }
}

// The primaries of closed comms count no more.
void Control::count_primaries() {
  for (auto* peers : {&outbound_, &inbound_}) {
    for (auto& [id, peer] : *peers) {
      peer->primaries = 0;
    }
  }
  for (auto& [id, sending] : senders_) {
    sending.peer->primaries |= core::bit(sending.comm->primary());
  }
  for (auto& [id, receiving] : receivers_) {
    receiving.peer->primaries |= core::bit(receiving.comm->primary());
  }
  for (auto& [id, peer] : outbound_) {
    peer->facts.primaries = peer->primaries;
  }
}

Groups::Index Control::join_group(const Peer& peer) {
  const auto direction =
      peer.outbound ? pages::StatsDirection::send : pages::StatsDirection::receive;
  const auto named = std::find_if(peer.addresses.begin(), peer.addresses.end(),
                                  [](const Address& address) { return address.present(); });
  return context_.stats.groups.join(named == peer.addresses.end() ? Address{} : *named,
                                    peer.incarnation, direction);
}

template <typename Comm>
void Control::collect_counters(Comm& entry) {
  entry.delta.apply(
      entry.comm->counters(), context_.clock,
      entry.peer->outbound ? pages::StatsDirection::send : pages::StatsDirection::receive,
      context_.stats.groups.row(entry.group), context_.stats.deliveries);
}

void Control::publish(std::int64_t now) {
  RailCounts sum;
  context_.stats.groups.clear_in_flight();
  for (auto& [id, sending] : senders_) {
    const RailCounts& counts = sending.comm->counts();
    sum += counts;
    collect_counters(sending);
    context_.stats.groups.row(sending.group).in_flight_bytes +=
        std::accumulate(counts.in_flight.begin(), counts.in_flight.end(), std::uint64_t{0});
  }
  for (auto& [id, receiving] : receivers_) {
    sum += receiving.comm->counts();
    collect_counters(receiving);
  }
  for (std::size_t i = 0; i < core::kMaxRails; ++i) {
    RailCounters& rail = context_.stats.rails[i];
    rail.in_flight_bytes.store(sum.in_flight[i], std::memory_order_relaxed);
    rail.live_paths.store(sum.live[i], std::memory_order_relaxed);
    rail.dead_paths.store(sum.dead[i], std::memory_order_relaxed);
  }
  context_.stats.publish(now);
}

}  // namespace fabric::host
