// The control thread's side of Receiver.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/schedule.h"
#include "host/monotonic.h"
#include "host/receiver.h"

namespace fabric::host {

namespace {

// At this end the local rail is the receiver's.
std::uint8_t local_of(core::PathIndex path) {
  return static_cast<std::uint8_t>(core::receiver_rail(path));
}
std::uint8_t remote_of(core::PathIndex path) {
  return static_cast<std::uint8_t>(core::sender_rail(path));
}

}  // namespace

std::optional<ControlActions> Receiver::tick(std::int64_t now, const PeerFacts& facts, bool wait) {
  const CommGate::ControlGuard guard(gate_, wait);
  if (!guard) {
    return std::nullopt;
  }
  settle();
  ControlActions actions;
  if (end_.over()) {
    actions.close = closed();
    actions.tick_rate = TickRate::idle;  // nobody waits for anything here
    return actions;
  }
  facts_ = facts;
  core_.expect_eager(sends_eager(facts) && writers_ == 0);
  heard_ = false;
  core::each(live_, [&](core::PathIndex index) {
    if (paths_[index].life.live()) {
      watch_path(index, now, facts, actions);
    }
  });
  if (heard_ && context_.waits.wanted()) {
    // The caller may sleep for just that, and a connection that was closed here wakes nobody.
    context_.waits.signal();
  }
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    Path& path = paths_[i];
    const bool quiesced = !lands_late(static_cast<core::PathIndex>(i));
    if (path.announce && quiesced && now - path.announced >= kAnnounceNs) {
      path.announced = now;
      // Nothing of that connection or an earlier one is taken any more.
      actions.announce.push_back({static_cast<core::PathIndex>(i), path.epoch + 1, 0});
    }
  }
  // A link is back: what was said on those that died may be lost, the sender's close too. Where the
  // comm is no more, that is the answer.
  actions.say_state =
      actions.say_state || std::exchange(state_.unsent, false) || facts.linked_at > state_.said_at;
  if (actions.say_state) {
    state_.said_at = now;
  }
  if (actions.say_state || !actions.announce.empty()) {
    actions.state = core_.state();
  }
  answer(Tell::all);
  if (now - activity_.aged_at >= kBusyNs) {
    // A path that took over for a while, or carried a validation, is none of those for ever.
    activity_.aged_at = now;
    activity_.busy = std::exchange(activity_.carried, 0);
    core::each(live_, [this](core::PathIndex index) {
      activity_.busy |= paths_[index].link->in_chunk() ? core::bit(index) : 0;
    });
  }
  if (std::exchange(activity_.moved, false) || core_.has_output()) {
    activity_.busy_at = now;
  }
  actions.tick_rate = tick_rate(now);
  watch_deadline(now);
  return actions;
}

// The paths of which another has to be there before a word may take this one. The sender's memory
// may be a GPU's, for which a stream is no other.
core::PathSet Receiver::others_of(core::PathIndex index) const {
  if (!context_.params.gpudirect) {
    return live_;
  }
  core::PathSet writing = 0;
  core::each(live_ & writers_, [&](core::PathIndex path) {
    writing |= paths_[path].link->prepared() ? core::bit(path) : 0;
  });
  return (writing & core::bit(index)) != 0 ? writing : live_;
}

// Finds what has died: said so by a hint, or silent.
void Receiver::watch_path(core::PathIndex index, std::int64_t now, const PeerFacts& facts,
                          ControlActions& actions) {
  Path& path = paths_[index];
  if (facts.should_close(index, path.up_since, others_of(index), writers_)) {
    fail(index, facts.of(kind_in(writers_, index)).why[index]);
    return;
  }
  if (facts.outdated(index, path.up_since)) {
    fail(index, pages::PathDownReason::moved);
    return;
  }
  // The caller of an idle comm does not look: without this the validation is never answered.
  path.awaits_validation =
      path.awaits_validation && speaks(facts.version, FrameType::path_validation);
  if (path.awaits_validation) {
    if (const auto dead = drain(index)) {
      fail(index, *dead);
      return;
    }
  }
  path.link->tick();
  if (path.link->wants_poll()) {
    if (const auto dead = drain(index)) {
      fail(index, *dead);
      return;
    }
  }
  if (path.link->unsent()) {
    flush(index);
  }
  if (path.beside.link != nullptr) {
    ReceiveProgress unused;
    path.beside.link->prepare(unused);
    if (unused.dead) {
      drop_beside(index);
    }
  }
  if (!path.life.live() || !context_.params.failover || !path.acks.maybe_unacked) {
    return;
  }
  const auto info = path.link->sample();
  const core::Liveness liveness = path.acks.judge(*path.link, info, now, facts.heard[index]);
  if (liveness == core::Liveness::suspect) {
    actions.suspect |= core::bit(index);
    // A CTS that was lost alone in flight would wait 200 ms for its retransmission.
    actions.say_state = now - state_.said_at >= kAnnounceNs;
  }
  if (liveness == core::Liveness::dead) {
    fail(index, pages::PathDownReason::no_ack);
  } else if (info && info->unacknowledged == 0 && path.link->backlog() == 0) {
    path.acks.all_acknowledged();
  }
}

void Receiver::watch_deadline(std::int64_t now) {
  if (live_ != 0 && facts_.answered(context_.params)) {
    outage_.over();
    return;
  }
  if (outage_.goes_on(live_ != 0, now)) {
    context_.stats.event(pages::StatsEventKind::all_paths_down, id_, 255, 255, 0);
  }
  if (outage_.lasted(now) >= context_.params.deadline_ns) {
    abort_inside(Result::remote_error, "no path from " + peer_ + " " +
                                           outage_.text(now, "; its control links are silent"));
  }
}

TickRate Receiver::tick_rate(std::int64_t now) const {
  bool calm = live_ != 0 && !state_.owed;
  for (const Path& path : paths_) {
    const bool unsent = path.link != nullptr && path.link->unsent();
    calm =
        calm && !path.announce && !path.awaits_validation && !unsent && path.acks.timeout.moving();
    calm = calm && (path.beside.link == nullptr || path.beside.link->prepared());
  }
  if (!calm) {
    return TickRate::fast;
  }
  if (now - activity_.busy_at > kIdleAfterNs && !core_.waiting_large()) {
    return TickRate::idle;
  }
  return core_.waiting_large() || stall_timer_.expired() ? TickRate::calm : TickRate::slow;
}

std::optional<core::Epoch> Receiver::attach(core::PathIndex index, core::Epoch epoch,
                                            const MakeLink& make, std::uint8_t version,
                                            const LinkOffer& offer) {
  const CommGate::ControlGuard guard(gate_);
  facts_.version = version;  // frames may come before the first tick
  Path& path = paths_[index];
  const bool newer = core_.open(index) && epoch > core_.epoch(index);
  if (newer && path.beside.link != nullptr) {
    drop_beside(index);
  }
  const bool beside = newer && offer.beside && path.life.live() &&
                      (writers_ & core::bit(index)) == 0 && !lands_late(index);
  if (newer && !beside) {
    retire(index);  // the sender has given the old one up; its fence is on the way
  }
  if (end_.closing || end_.failed() || lands_late(index)) {
    return core_.epoch(index) + 1;
  }
  if (beside) {
    path.beside.link = make();
    path.beside.epoch = epoch;
    path.beside.credits = offer.credits;
    return std::nullopt;
  }
  if (!core_.admit(index, epoch, offer.kind, offer.credits)) {
    return core_.epoch(index) + 1;
  }
  writers_ |= offer.kind == core::PathKind::one_sided ? core::bit(index) : 0;
  std::unique_ptr<LinkIn> link = make();
  if (link == nullptr) {
    end_in_core(index, epoch);
    return std::nullopt;
  }
  take(index, epoch, std::move(link));
  answer();
  return std::nullopt;
}

// The path has a link now, which the core has admitted.
void Receiver::take(core::PathIndex index, core::Epoch epoch, std::unique_ptr<LinkIn> link) {
  Path& path = paths_[index];
  const std::int64_t now = monotonic_ns();
  const bool back = path.connect(std::move(link), epoch, now);
  path.acks.connect();
  path.announce = false;
  path.awaits_validation = back;
  if (back) {
    add(context_.stats.rails[local_of(index)].rejoins, 1);
  }
  if (const std::int64_t since = std::exchange(path.down_since, 0); since != 0) {
    log(index, "is up again after " + std::to_string((now - since) / kMs) + " ms", now);
  }
  live_ |= core::bit(index);
  path.watch(context_.waits);
}

// The stream is over, by the fence that gives its place to the link beside it, or by itself.
void Receiver::promote(core::PathIndex index) {
  Path& path = paths_[index];
  if (path.beside.link == nullptr || path.life.live()) {
    return;
  }
  if (lands_late(index) || end_.failed() || end_.closing ||
      !core_.admit(index, path.beside.epoch, core::PathKind::one_sided, path.beside.credits)) {
    drop_beside(index);
    return;
  }
  writers_ |= core::bit(index);
  take(index, path.beside.epoch, std::move(path.beside.link));
}

// The sender may have given it the stream's place already, and its NIC may have written: all of
// that is sent again, for no fence is answered before nothing can land any more.
void Receiver::drop_beside(core::PathIndex index) {
  Path& path = paths_[index];
  path.beside.dropped = std::move(path.beside.link);
  if (path.beside.dropped != nullptr) {
    release_dropped(index);
  }
}

void Receiver::release_dropped(core::PathIndex index) {
  Path& path = paths_[index];
  if (path.beside.dropped->quiesce()) {
    path.beside.dropped.reset();
    dropping_ &= ~core::bit(index);
  } else {
    dropping_ |= core::bit(index);
  }
}

void Receiver::hangup(core::PathIndex index, core::Epoch epoch) {
  const CommGate::ControlGuard guard(gate_);
  Path& path = paths_[index];
  if (path.beside.link != nullptr && path.beside.epoch == epoch) {
    drop_beside(index);
    return;
  }
  if (!path.life.live() || path.epoch != epoch) {
    return;
  }
  if (end_.peer_closed) {
    exhaust(index);
  } else if (const auto dead = drain(index)) {
    fail(index, *dead);
  }
  answer();
  context_.waits.signal();
}

// Drains what the transport holds, keeps whole chunks, ends the link.
void Receiver::retire(core::PathIndex index) {
  Path& path = paths_[index];
  if (!path.life.live()) {
    return;
  }
  exhaust(index);
  path.life.on(core::LinkEvent::lost);
  live_ &= ~core::bit(index);
  if ((writers_ & core::bit(index)) != 0) {
    core_.begin_retire(index);
  }
  release(index);
  activity_.busy &= ~core::bit(index);
  state_.owed = true;  // whatever was said on it may be lost
}

// The link of a path that is over: nothing may land on its behalf when the core retires it.
void Receiver::release(core::PathIndex index) {
  Path& path = paths_[index];
  if (!path.link->quiesce()) {
    quiescing_ |= core::bit(index);
    return;
  }
  quiescing_ &= ~core::bit(index);
  end_in_core(index, path.epoch);
  path.link.reset();
}

// Nothing lands on behalf of this connection any more.
void Receiver::end_in_core(core::PathIndex index, core::Epoch epoch) {
  if ((writers_ & core::bit(index)) == 0) {
    core_.retire(index);
    return;
  }
  writers_ &= ~core::bit(index);
  core_.begin_retire(index);
  core_.retired(index, epoch);
}

// True: nothing lands any more on behalf of any link that is over. Of a comm that closes that is
// the end.
bool Receiver::settle() {
  core::each(quiescing_, [this](core::PathIndex index) {
    // What landed meanwhile counts; and until all that was posted has completed, nothing ends. Not
    // by drain(): a link that has failed has more to complete.
    ReceiveProgress progress;
    paths_[index].link->poll(core_, hints(index), progress);
    account(index, progress);
    release(index);
  });
  core::each(dropping_, [this](core::PathIndex index) {
    ReceiveProgress unused;  // what landed is of no connection that the core knows
    paths_[index].beside.dropped->poll(core_, hints(index), unused);
    release_dropped(index);
  });
  const bool settled = (quiescing_ | dropping_) == 0;
  if (end_.closing && settled) {
    end_.closed.store(true, std::memory_order_release);
  }
  return settled;
}

void Receiver::fail(core::PathIndex index, pages::PathDownReason reason) {
  Path& path = paths_[index];
  if (end_.peer_closed || !path.life.live()) {
    return;
  }
  const std::string why = "(" + reason_text(reason, path.link->why()) + ")";
  retire(index);
  if (end_.peer_closed) {
    return;  // its last words
  }
  path.announce = context_.params.failover;
  path.announced = 0;
  const std::int64_t now = monotonic_ns();
  outage_.path_failed(path_text(context_, local_of(index), remote_of(index)) + " " + why, now);
  add(context_.stats.rails[local_of(index)].failovers, 1);
  counters_.failovers.add(1);
  context_.stats.event(pages::StatsEventKind::path_down, id_, local_of(index), remote_of(index),
                       static_cast<std::uint32_t>(reason));
  promote(index);
  if (path.life.live()) {
    log(index, "goes over RDMA again", now);
  } else {
    path.down_since = now;
    log(index, "is down " + why, now);
  }
  if (!context_.params.failover) {
    abort_inside(Result::remote_error,
                 "the connection from " + peer_ + " died: " + outage_.last_failure());
    return;
  }
  context_.wake_control();
}

void Receiver::log(core::PathIndex index, const std::string& what, std::int64_t now) {
  log_path(context_, {peer_incarnation_, local_of(index), remote_of(index)}, "from " + peer_, what,
           now);
}

std::optional<StateFrame> Receiver::on_fence(const PathEpoch& fence) {
  const CommGate::ControlGuard guard(gate_);
  Path& path = paths_[fence.path];
  if (path.beside.link != nullptr && path.beside.epoch < fence.epoch) {
    drop_beside(fence.path);
  }
  if (core_.fence(fence.path, fence.epoch) && path.life.live()) {
    fail(fence.path, pages::PathDownReason::peer_told);  // one beside it takes its place
  }
  if (path.epoch < fence.epoch) {
    path.announce = false;  // the sender knows
  }
  std::optional<StateFrame> answered;
  if (core_.fence_done(fence.path, fence.epoch) && (dropping_ & core::bit(fence.path)) == 0) {
    answered = StateFrame{fence, core_.state()};
  }
  answer();
  context_.waits.signal();
  return answered;
}

core::ReceiverState Receiver::state() const {
  const CommGate::ControlGuard guard(gate_);
  return core_.state();
}

void Receiver::on_peer_close() {
  const CommGate::ControlGuard guard(gate_);
  note_close();
  // What is in the kernel may still complete a receive, or one that is yet to be posted: its sender
  // may have been told that it is done.
  core::each(live_, [this](core::PathIndex index) { exhaust(index); });
  context_.waits.signal();
}

void Receiver::abort(Result result, const std::string& text) {
  const CommGate::ControlGuard guard(gate_);
  if (!closed() && !end_.peer_closed) {
    abort_inside(result, text);
  }
}

void Receiver::cut(const std::string& text) {
  const CommGate::ControlGuard guard(gate_);
  if (closed()) {
    return;
  }
  core::each(live_, [this](core::PathIndex index) { paths_[index].link->discard(); });
  abort_inside(Result::remote_error, text);
}

void Receiver::abort_inside(Result result, const std::string& text) {
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

const RailCounts& Receiver::counts() {
  const CommGate::ControlGuard guard(gate_, false);
  if (!guard) {
    return counts_;
  }
  counts_ = {};
  count_paths(paths_, local_of, counts_);
  return counts_;
}

}  // namespace fabric::host
