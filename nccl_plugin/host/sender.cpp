// The caller's side of Sender, and the bytes that go out.
#include "host/sender.h"
#include "core/schedule.h"
#include "host/monotonic.h"

#include <algorithm>
#include <bit>

namespace fabric::host {

namespace {

// So long a caller is told "not yet" while the copy budget is spent. Longer than acknowledgements
// take on a busy host, much shorter than anybody minds: it is for callers that would wait for ever.
constexpr std::int64_t kBudgetWaitNs = 2'000'000;

}  // namespace

Sender::Sender(Context& context, std::uint64_t id, core::PathIndex primary, std::string peer,
               std::uint64_t incarnation)
    : context_(context),
      id_(id),
      primary_(primary),
      peer_(std::move(peer)),
      peer_incarnation_(incarnation),
      gate_(context.waits),
      pool_(context.memory == nullptr ? nullptr : context.memory->make_copy_pool()),
      core_(context.params.chunk_size, pool_.get()),
      stall_timer_(context.clock),
      turn_(core::sender_rail(primary)),
      outage_(monotonic_ns()) {
  born_ = activity_.idle_since = activity_.busy_at = monotonic_ns();
  facts_.weight.fill(core::kFullWeight);
  facts_.rdma.weight.fill(core::kFullWeight);
  context_.stats.send_comms.fetch_add(1);
}

Sender::~Sender() { context_.stats.send_comms.fetch_sub(1); }

Result Sender::post(const void* data, std::size_t size, int tag, bool& taken,
                    core::Sequence& sequence, core::Origin origin) {
  taken = false;
  const CommGate::CallerGuard guard(gate_);
  if (!guard) {
    return Result::success;
  }
  if (end_.peer_closed) {
    abort_inside(Result::remote_error, "the peer closed the communicator");
  }
  if (end_.failed()) {
    add(context_.stats.errors, 1);
    return end_.error;
  }
  const std::uint64_t stamp = context_.clock.now();
  auto posted = core_.post(data, size, tag, stamp, without_copy(size), origin);
  if (posted && core_.has_chunk()) {
    pump();  // its CTS is here: no need to look at what came back first
    if (core_.nearly_full()) {
      core::each(answering_ & live_, [this](core::PathIndex index) { read_back(index); });
    }
    count_delivered();
  } else {
    progress();
    if (!posted) {
      posted = core_.post(data, size, tag, stamp, without_copy(size), origin);
      pump();
    }
  }
  if (posted) {
    context_.note_activity();
    watch_all();  // who posts may wait next
    if (core_.done(*posted)) {
      context_.waits.nudge();
    }
    taken = true;
    sequence = *posted;
  }
  return Result::success;
}

// Ranks that post all their sends before they test a receive would wait for each other for ever.
core::NoCopy Sender::without_copy(std::size_t size) {
  if (size > core::kCopyLimit || core_.room_for_copy(size)) {
    budget_spent_since_ = size > core::kCopyLimit ? budget_spent_since_ : 0;
    return core::NoCopy::refuse;
  }
  const std::int64_t now = monotonic_ns();
  if (budget_spent_since_ == 0) {
    budget_spent_since_ = now;
  }
  return now - budget_spent_since_ >= kBudgetWaitNs ? core::NoCopy::take : core::NoCopy::refuse;
}

Result Sender::test(core::Sequence sequence, bool& done, std::size_t& size) {
  done = false;
  const CommGate::CallerGuard guard(gate_);
  if (!guard) {
    return Result::success;
  }
  done = core_.done(sequence);
  if (!done && !end_.failed()) {
    progress();
    done = core_.done(sequence);
  }
  if (done) {
    stall_timer_.reset();
    size = core_.size(sequence).value_or(size);
    core_.forget(sequence);
    return Result::success;
  }
  if (end_.failed()) {
    add(context_.stats.errors, 1);
  } else if (stall_timer_.stalled()) {
    context_.request_fast_tick();
  }
  return end_.error;
}

void Sender::close() {
  // Nobody is left to serve the connections after finalize: what they hold by themselves is all.
  close_within(context_.ended.load() ? 0 : context_.close_budget_ns);
}

void Sender::close_within(std::int64_t budget_ns) {
  const std::int64_t until = monotonic_ns() + budget_ns;
  while (!hang_up(until)) {
    context_.waits.nap(1000);
  }
  context_.wake_control();
}

// False: before `until` there is something to wait for, or the control thread is inside.
bool Sender::hang_up(std::int64_t until) {
  const CommGate::CallerGuard guard(gate_);
  if (!guard) {
    return false;
  }
  if (end_.closing) {
    return end_.introducing || settle();
  }
  if (!end_.failed() && !end_.peer_closed) {
    progress();
  }
  if (!end_.failed() && !end_.peer_closed && core_.has_unacked_copies()) {
    // Hundreds are closed one after the other: where nothing carries, only the first waits.
    const std::int64_t now = monotonic_ns();
    const bool in_vain =
        live_ == 0 && now - context_.closed_in_vain.load() < context_.close_budget_ns;
    if (now < until && !in_vain) {
      return false;
    }
    if (live_ == 0) {
      context_.closed_in_vain.store(now);
    }
  }
  end_.closing = true;
  // After finalize nobody could.
  end_.introducing =
      !end_.failed() && !end_.peer_closed && !ever_connected() && !context_.ended.load();
  hang_up_all(true);
  return end_.introducing || settle();
}

bool Sender::ever_connected() const {
  return std::any_of(paths_.begin(), paths_.end(), [](const Path& path) { return path.ever_live; });
}

void Sender::hang_up_all(bool say_close) {
  core::each(live_, [&](core::PathIndex index) {
    if (say_close) {
      paths_[index].link->close();
    }
    abandon_beside(index);
    paths_[index].life.on(core::LinkEvent::close);
    release(index);
  });
  live_ = 0;
  choice_.eligible = 0;
}

// The link of a path that is over: its transport has to let go of the bytes that it reads.
void Sender::release(core::PathIndex index) {
  Path& path = paths_[index];
  path.sending = false;
  if (path.link->quiesce()) {
    core_.quiesced(index);
    path.link.reset();
    quiescing_ &= ~core::bit(index);
  } else {
    quiescing_ |= core::bit(index);
  }
}

// True: no transport reads anything any more. Of a comm that closes that is the end.
bool Sender::settle() {
  core::each(quiescing_, [this](core::PathIndex index) { release(index); });
  if (end_.closing && !end_.introducing && quiescing_ == 0) {
    end_.closed.store(true, std::memory_order_release);
  }
  return quiescing_ == 0;
}

void Sender::watch_all() {
  if (context_.waits.wanted()) {
    core::each(live_, [this](core::PathIndex index) { paths_[index].watch(context_.waits); });
  }
}

void Sender::progress() {
  const core::PathSet look =
      looks_.next(context_.waits, live_, answering_, [this] { watch_all(); });
  core::each(look, [this](core::PathIndex index) { read_back(index); });
  core_.catch_up();
  count_delivered();
  pump();
}

// A comm that had device memory once has it again.
void Sender::note_device_memory() {
  if (!device_memory_ && core_.needs_one_sided()) {
    device_memory_ = true;
    choose();
  }
}

void Sender::pump() {
  note_device_memory();
  core::PathSet blocked = 0;
  core::each(live_, [&](core::PathIndex index) {
    if (paths_[index].sending && paths_[index].life.live() && !flush(index)) {
      blocked |= core::bit(index);
    }
  });
  while (core_.has_chunk()) {
    const auto index = choice_.share.next(choice_.eligible & live_ & ~blocked);
    if (!index) {
      return;
    }
    if (full(*index)) {
      blocked |= core::bit(*index);
      continue;
    }
    Path& path = paths_[*index];
    take_batch(*index);
    if (batch_.empty()) {
      blocked |= core::bit(*index);
      continue;
    }
    SendProgress progress;
    path.link->put(batch_, progress);
    path.sending = path.link->room() == 0;
    if (!account(*index, progress) || path.sending) {
      blocked |= core::bit(*index);
    }
  }
}

// As many as fit one call; where paths share, one at a time, so that none runs ahead. None, while
// the link has no room or the core nothing for this path.
void Sender::take_batch(core::PathIndex index) {
  const bool alone = std::popcount(choice_.eligible & live_) == 1;
  const std::size_t room = paths_[index].link->room();
  const std::size_t most = alone ? room : std::min<std::size_t>(room, 1);
  paths_[index].sending = room == 0;
  batch_.clear();
  while (batch_.size() < most && core_.has_chunk()) {
    const auto out = core_.take(index);
    if (!out) {
      return;
    }
    batch_.push_back(*out);
    choice_.share.carried(index, out->header.length, weight(index), out->again);
  }
}

// By weight: the transport's own limits know nothing of that.
bool Sender::full(core::PathIndex index) const {
  const std::uint16_t own = weight(index);
  return own < choice_.heaviest &&
         paths_[index].link->backlog() >=
             core::most_outstanding(own, choice_.heaviest, paths_[index].bytes.window);
}

void Sender::limit_unsent(core::PathIndex index, std::size_t bytes) {
  paths_[index].bytes.unsent_limit = bytes;
  paths_[index].link->limit_unsent(bytes);
}

// True when the path can take other chunks.
bool Sender::flush(core::PathIndex index) {
  Path& path = paths_[index];
  SendProgress progress;
  path.link->advance(progress);
  path.sending = path.link->room() == 0;
  return account(index, progress) && !path.sending;
}

}  // namespace fabric::host
