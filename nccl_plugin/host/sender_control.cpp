// The control thread's side of Sender: connections come and go, dead ones are fenced.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/schedule.h"
#include "host/monotonic.h"
#include "host/sender.h"

namespace fabric::host {

namespace {

constexpr std::int64_t kFirstConnectNs = 200 * kMs;

std::uint8_t sending_rail(core::PathIndex path) {
  return static_cast<std::uint8_t>(core::sender_rail(path));
}
std::uint8_t receiving_rail(core::PathIndex path) {
  return static_cast<std::uint8_t>(core::receiver_rail(path));
}

// Whether a connection that ended so tells of its path, and not of a rail that went or moved.
bool reveals_path(pages::PathDownReason reason) {
  return reason == pages::PathDownReason::path_validation ||
         reason == pages::PathDownReason::no_ack || reason == pages::PathDownReason::socket_error ||
         reason == pages::PathDownReason::peer_told;
}

}  // namespace

std::optional<ControlActions> Sender::tick(std::int64_t now, const PeerFacts& facts, bool wait) {
  const CommGate::ControlGuard guard(gate_, wait);
  if (!guard) {
    return std::nullopt;
  }
  ControlActions actions;
  actions.validations.swap(validations_);
  streams_ = 0;
  settle();
  introducing_ = end_.introducing;
  if (end_.introducing) {
    introduce(now, facts, actions);
    return actions;
  }
  if (end_.over()) {
    actions.close = closed();
    actions.tick_rate = TickRate::idle;  // nobody waits for anything here
    return actions;
  }
  core::each(facts.control_live & ~facts_.control_live, [this](core::PathIndex index) {
    paths_[index].redial.at_once();  // the link answers again: no need to sit out the backoff
  });
  facts_ = facts;
  core_.catch_up();
  count_delivered();
  // The first path to connect does not take what belongs to the primary.
  const bool settled = paths_[primary_].ever_live || now - born_ > kFirstConnectNs;
  heard_ = core_.allow_eager(sends_eager(facts) && settled && one_sided() == 0);
  sleeps_ = looks_.slept(context_.waits);
  watch_paths(now, facts, actions);
  core::each(live_, [&](core::PathIndex index) { watch_beside(index, now); });
  watch_trust(now);
  // Whose caller does not look: an answer that nobody has read is no stall.
  if (core_.awaits_cts() || (core_.busy() && !activity_.moved)) {
    core::each(live_, [this](core::PathIndex index) { read_back(index); });
  }
  if (heard_ && context_.waits.wanted()) {
    context_.waits.signal();  // the caller may sleep for just what came of this
  }
  watch_stall(now);
  if (end_.failed() || !watch_deadline(now)) {
    return actions;
  }
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    const auto index = static_cast<core::PathIndex>(i);
    Path& path = paths_[i];
    if (core_.fencing(index) && now - path.announced >= kAnnounceNs) {
      path.announced = now;
      actions.announce.push_back({index, core_.fence(index), 0});
    }
  }
  dial_due(now, settled, actions);
  // A primary that is still being connected for the first time is not lost.
  actions.primary_lost = choice_.primary_lost && settled;
  actions.shares = std::popcount(choice_.eligible) > 1;
  pump();
  needs_rdma_ = core_.needs_one_sided() && over_rdma() == 0;
  streams_ = old_streams(now);
  actions.tick_rate = tick_rate(settled, now);
  return actions;
}

void Sender::dial_due(std::int64_t now, bool settled, ControlActions& actions) {
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    const auto index = static_cast<core::PathIndex>(i);
    if (!context_.params.failover && index != primary_) {
      continue;
    }
    // What is said to be down, or failed its validation, is not dialled, unless there is nothing
    // else that carries what waits. A new comm first waits for what may yet connect.
    const bool held = (facts_.held & core::bit(index)) != 0;
    const bool bad = facts_.down.reports(index) || held;
    if (may_dial(index) && paths_[i].redial.due(now) &&
        (facts_.control_live & core::bit(index)) != 0 &&
        (!bad || ((live_ == 0 || needs_rdma_) && (settled || !held)))) {
      actions.dial |= core::bit(index);
    }
  }
}

void Sender::introduce(std::int64_t now, const PeerFacts& facts, ControlActions& actions) {
  facts_ = facts;
  if (outage_.lasted(now) >= context_.params.deadline_ns) {
    end_introduction();
  } else {
    dial_due(now, now - born_ > kFirstConnectNs, actions);
  }
  actions.close = closed();
}

// The peer knows, or cannot be told.
void Sender::end_introduction() {
  end_.introducing = false;
  hang_up_all(true);
  settle();
}

// Messages that pass, or none: whatever happens to them may be seen a little later.
TickRate Sender::tick_rate(bool settled, std::int64_t now) const {
  bool calm = settled && !activity_.stalled && live_ != 0;
  core::each(live_, [&](core::PathIndex index) {
    calm = calm && paths_[index].trust.validated() && paths_[index].acks.timeout.moving();
    calm = calm && (paths_[index].beside.link == nullptr || paths_[index].beside.validating);
  });
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    calm = calm && !core_.fencing(static_cast<core::PathIndex>(i));
  }
  if (!calm) {
    return TickRate::fast;
  }
  // With a path to be dialled or to be trusted soon, time matters.
  bool whole = (facts_.control_live & facts_.base & ~live_ & ~facts_.held) == 0;
  core::each(live_, [&](core::PathIndex index) { whole = whole && paths_[index].trust.trusted(); });
  const bool idle = whole && now - activity_.busy_at > kIdleAfterNs && !core_.awaits_cts();
  if (idle) {
    return TickRate::idle;
  }
  const bool large = core_.unacknowledged_large();
  if (large && std::popcount(choice_.eligible & live_) > 1) {
    return TickRate::fast;  // where paths share, room on a path of less weight is no event
  }
  return !whole || large || stall_timer_.expired() ? TickRate::calm : TickRate::slow;
}

core::Epoch Sender::dial(core::PathIndex index, std::int64_t now) {
  const CommGate::ControlGuard guard(gate_);
  Path& path = paths_[index];
  if (!may_dial(index)) {
    return 0;
  }
  path.life.on(core::LinkEvent::dial);
  path.redial.dial(now, id_);
  return core_.dial(index);
}

void Sender::dial_failed(core::PathIndex index, core::Epoch epoch, std::int64_t now) {
  const CommGate::ControlGuard guard(gate_);
  Path& path = paths_[index];
  if (epoch == path.beside.epoch) {
    drop_beside(index);
    return;
  }
  if (path.life.phase() != core::LinkPhase::dialing || epoch != core_.epoch(index)) {
    return;
  }
  path.life.on(core::LinkEvent::lost);
  path.redial.fail(now, id_);
  if (!context_.params.failover) {
    abort_inside(Result::remote_error, "cannot connect to " + peer_);
  }
}

void Sender::attach(core::PathIndex index, core::Epoch epoch, std::unique_ptr<LinkOut> link,
                    std::int64_t now) {
  const CommGate::ControlGuard guard(gate_);
  Path& path = paths_[index];
  if (epoch == path.beside.epoch) {
    path.beside.link = std::move(link);
    return;
  }
  if (epoch != core_.epoch(index) || path.life.phase() != core::LinkPhase::dialing) {
    return;  // given up meanwhile
  }
  if (end_.introducing) {
    take(index, epoch, std::move(link), now, true);
    end_introduction();
    context_.wake_control();
    return;
  }
  // Closed or aborted while it was dialled: nobody would close it any more.
  if (end_.closing || end_.failed()) {
    path.life.on(core::LinkEvent::lost);
    return;
  }
  take(index, epoch, std::move(link), now, !path.ever_live);
  pump();
}

// The path has a link now. `validated`: it need not deliver a validation.
void Sender::take(core::PathIndex index, core::Epoch epoch, std::unique_ptr<LinkOut> link,
                  std::int64_t now, bool validated) {
  Path& path = paths_[index];
  const bool back = path.connect(std::move(link), epoch, now);
  path.link->begin_service();
  path.sending = path.link->room() == 0;
  path.acks.connect();
  path.bytes.connect(path.link->sample(), now);
  path.trust.connect(back, validated || !speaks(facts_.version, FrameType::path_validation), now,
                     context_.params.hold_ns);
  path.rejoined = back;
  if (back) {
    add(context_.stats.rails[sending_rail(index)].rejoins, 1);
  }
  if (const std::int64_t since = std::exchange(path.down_since, 0); since != 0) {
    log(index, "is up again after " + std::to_string((now - since) / kMs) + " ms", now);
  }
  if (!path.trust.validated()) {
    path.link->start_validation();
    path.sending = true;
  }
  live_ |= core::bit(index);
  path.watch(context_.waits);
  choose();
}

void Sender::hangup(core::PathIndex index, core::Epoch epoch) {
  const CommGate::ControlGuard guard(gate_);
  Path& path = paths_[index];
  if (epoch == path.beside.epoch) {
    drop_beside(index);
    return;
  }
  if (!path.life.live() || path.epoch != epoch) {
    return;
  }
  read_back(index);  // the last words may be a close
  if (path.life.live() && !end_.peer_closed) {
    fail(index, pages::PathDownReason::socket_error);
  }
  pump();
  context_.waits.signal();  // for what was read: the connection is closed, and wakes nobody
}

void Sender::fail(core::PathIndex index, pages::PathDownReason reason, core::Epoch beside) {
  Path& path = paths_[index];
  if (!path.life.live()) {
    return;  // an abort has closed it
  }
  if (beside == 0 && path.beside.epoch != 0) {
    abandon_beside(index);
  }
  const std::int64_t now = monotonic_ns();
  if (!path.trust.validated() && reveals_path(reason)) {
    validations_.push_back({index, path.up_since, false});
  }
  path.life.on(core::LinkEvent::lost);
  live_ &= ~core::bit(index);
  choice_.eligible &= ~core::bit(index);
  answering_ &= ~core::bit(index);
  const bool calm = now - path.up_since > kCalmNs;
  path.trust.fail(reason != pages::PathDownReason::rehash, calm);
  if (calm) {
    path.redial.forget_backoff();
  }
  path.redial.fail(now, id_);
  path.announced = 0;
  const bool had_work = core_.in_flight(index) || core_.has_chunk();
  core_.fail(index, beside);
  const std::string why = "(" + reason_text(reason, path.link->why()) + ")";
  release(index);
  outage_.path_failed(path_text(context_, sending_rail(index), receiving_rail(index)) + " " + why,
                      now);
  if (beside == 0) {
    path.down_since = now;
    log(index, "is down " + why, now);
  }
  RailCounters& rail = context_.stats.rails[sending_rail(index)];
  add(rail.failovers, 1);
  counters_.failovers.add(1);
  context_.stats.event(pages::StatsEventKind::path_down, id_, sending_rail(index),
                       receiving_rail(index), static_cast<std::uint32_t>(reason));
  if (had_work) {
    awaiting_first_byte_ = index;
  }
  if (!context_.params.failover) {
    abort_inside(Result::remote_error,
                 "the connection to " + peer_ + " died: " + outage_.last_failure());
    return;
  }
  choose();
  context_.wake_control();
}

void Sender::log(core::PathIndex index, const std::string& what, std::int64_t now) {
  log_path(context_, {peer_incarnation_, sending_rail(index), receiving_rail(index)}, "to " + peer_,
           what, now);
}

void Sender::give_back(core::PathSet paths) {
  const CommGate::ControlGuard guard(gate_);
  core::each(paths & live_ & ~over_rdma(), [this](core::PathIndex index) {
    fail(index, pages::PathDownReason::rehash);
    leave_to_page(index);
  });
}

// The page opens this path again as another kind: when is the page's to say, and it said now.
void Sender::leave_to_page(core::PathIndex index) {
  paths_[index].trust.leave_to_page();
  paths_[index].redial.at_once();
}

core::PathSet Sender::over_rdma() const {
  core::PathSet found = 0;
  core::each(live_, [&](core::PathIndex index) {
    found |= paths_[index].link->over_rdma() ? core::bit(index) : 0;
  });
  return found;
}

std::uint16_t Sender::weight(core::PathIndex index) const {
  const auto& link = paths_[index].link;
  const bool rdma = link != nullptr && link->over_rdma();
  return rdma ? facts_.rdma.weight[index] : facts_.weight[index];
}

// The paths that write where a CTS points. While there are any nothing goes before its CTS.
core::PathSet Sender::one_sided() const {
  core::PathSet found = 0;
  core::each(live_, [&](core::PathIndex index) {
    found |= paths_[index].link->kind() == core::PathKind::one_sided ? core::bit(index) : 0;
  });
  return found;
}

void Sender::choose() {
  std::array<core::PathView, core::kMaxPaths> views{};
  std::size_t count = 0;
  core::each(live_, [&](core::PathIndex index) {
    const Path& path = paths_[index];
    const bool base = (facts_.base & core::bit(index)) != 0;
    const bool backup =
        base && context_.policy.backup_of[sending_rail(index)] == sending_rail(primary_);
    const bool slow = (facts_.slow & core::bit(index)) != 0;
    views[count++] = {index,
                      index == primary_,
                      base,
                      path.trust.trusted(),
                      weight(index),
                      backup,
                      slow,
                      path.link->kind(),
                      path.trust.validated()};
  });
  core::Policy policy = context_.policy;
  policy.primary_lost = facts_.primary_lost;
  policy.primaries = facts_.primaries;
  policy.device_memory = device_memory_;
  const core::PathSet chosen = core::eligible({views.data(), count}, policy);
  choice_.primary_lost = core::primary_place({views.data(), count}, device_memory_) == 0;
  if (chosen != choice_.eligible) {
    choice_.share.change(choice_.eligible, chosen);
    choice_.eligible = chosen;
    if (std::popcount(chosen) > 1) {
      core::each(chosen, [this](core::PathIndex index) { limit_unsent(index, kUnsentLimit); });
    }
  }
  choice_.share.begin_with(chosen, turn_.load(std::memory_order_relaxed));
  choice_.heaviest = 0;
  core::each(chosen, [this](core::PathIndex index) {
    choice_.heaviest = std::max(choice_.heaviest, weight(index));
  });
}

void Sender::on_state(const StateFrame& frame) {
  const CommGate::ControlGuard guard(gate_);
  if (frame.fenced) {
    fenced(frame);
  } else {
    core_.on_state(frame.state);
  }
  count_delivered();
  activity_.moved = true;
  pump();
  context_.waits.signal();
}

void Sender::on_retired(const StateFrame& frame) {
  const CommGate::ControlGuard guard(gate_);
  const core::PathIndex index = frame.fenced->path;
  Path& path = paths_[index];
  if (path.life.live() && path.epoch < frame.fenced->epoch) {
    fail(index, pages::PathDownReason::peer_told);
  } else if (path.life.phase() == core::LinkPhase::dialing &&
             core_.epoch(index) < frame.fenced->epoch) {
    path.life.on(core::LinkEvent::lost);  // its welcome is on the way: nobody is there any more
  }
  fenced(frame);
  count_delivered();
  activity_.moved = true;
  pump();
  context_.waits.signal();
}

void Sender::fenced(const StateFrame& frame) {
  const core::PathIndex index = frame.fenced->path;
  const auto again = core_.on_fence_answer(index, frame.fenced->epoch, frame.state);
  if (!again) {
    return;
  }
  context_.stats.event(pages::StatsEventKind::fence_done, id_, sending_rail(index),
                       receiving_rail(index), static_cast<std::uint32_t>(*again));
  // All of it had arrived and nothing else waits: there is no first byte to wait for.
  if (awaiting_first_byte_ == index && !core_.has_chunk()) {
    awaiting_first_byte_.reset();
  }
}

void Sender::on_peer_close() {
  const CommGate::ControlGuard guard(gate_);
  if (end_.peer_closed || closed()) {
    return;
  }
  end_.peer_closed = true;
  if (core_.unacknowledged()) {
    abort_inside(Result::remote_error, "the peer closed the communicator with sends pending");
  }
}

// Once connected, the answer to a fence brings the receiver's last word; a refusal proves nothing.
void Sender::on_refused() {
  const CommGate::ControlGuard guard(gate_);
  if (!ever_connected() && !closed()) {
    abort_inside(Result::remote_error, peer_ + " closed the communicator before it was accepted");
  }
}

void Sender::abort(Result result, const std::string& text) {
  const CommGate::ControlGuard guard(gate_);
  if (!closed() && !(end_.peer_closed && !core_.unacknowledged())) {
    abort_inside(result, text);
  }
}

void Sender::cut(const std::string& text) {
  const CommGate::ControlGuard guard(gate_);
  if (closed()) {
    return;
  }
  core::each(live_, [this](core::PathIndex index) { paths_[index].link->discard(); });
  abort_inside(Result::remote_error, text);
}

void Sender::abort_inside(Result result, const std::string& text) {
  if (end_.introducing) {
    end_introduction();  // its caller has gone: nobody is left who would ask why
    return;
  }
  if (end_.failed()) {
    return;
  }
  end_.error = result;
  context_.stats.event(pages::StatsEventKind::error, id_, 255, 255,
                       static_cast<std::uint32_t>(result));
  context_.say(LogLevel::warn, text);
  hang_up_all(false);
  context_.waits.signal();
}

const RailCounts& Sender::counts() {
  const CommGate::ControlGuard guard(gate_, false);
  if (!guard) {
    return counts_;
  }
  counts_ = {};
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    const auto index = static_cast<core::PathIndex>(i);
    counts_.in_flight[sending_rail(index)] += core_.in_flight_bytes(index);
  }
  count_paths(paths_, sending_rail, counts_);
  return counts_;
}

}  // namespace fabric::host
