// The caller's side of Receiver.
#include "host/receiver.h"
#include "host/monotonic.h"

#include <utility>

namespace fabric::host {

namespace {

constexpr unsigned kAwake = 64;  // looks without a sleep: the callers poll
// After a close: how long a connection that does not end may still bring what was on its way.
constexpr std::int64_t kLastWordsNs = 1'000 * kMs;

}  // namespace

Receiver::Receiver(Context& context, std::uint64_t id, core::PathIndex primary,
                   std::uint32_t chunk_size, std::string peer, std::uint64_t incarnation,
                   std::uint8_t version)
    : context_(context),
      id_(id),
      primary_(primary),
      peer_(std::move(peer)),
      peer_incarnation_(incarnation),
      chunk_size_(chunk_size),
      gate_(context.waits),
      core_(chunk_size),
      stall_timer_(context.clock),
      outage_(monotonic_ns()) {
  activity_.busy_at = state_.said_at = monotonic_ns();
  facts_.version = version;
  facts_.weight.fill(core::kFullWeight);
  facts_.rdma.weight.fill(core::kFullWeight);
  context_.stats.recv_comms.fetch_add(1);
}

Receiver::~Receiver() { context_.stats.recv_comms.fetch_sub(1); }

Result Receiver::post(std::span<const ReceiveSlot> slots, bool& taken, core::GroupId& group,
                      std::span<const Registration> registrations) {
  taken = false;
  const CommGate::CallerGuard guard(gate_);
  if (!guard) {
    return Result::success;
  }
  if (end_.failed()) {
    add(context_.stats.errors, 1);
    return end_.error;
  }
  std::array<core::Buffer, core::kMaxSlots> buffers{};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    buffers[i].data = static_cast<std::byte*>(slots[i].data);
    buffers[i].slot.size = slots[i].size;
    buffers[i].slot.tag = slots[i].tag;
    if (i < registrations.size() && registrations[i].region != nullptr) {
      buffers[i].slot.where = reinterpret_cast<std::uintptr_t>(slots[i].data);
      buffers[i].slot.keys = registrations[i].keys;
      buffers[i].region = registrations[i].region;
      buffers[i].slot.device = registrations[i].device;
      if (buffers[i].slot.device && facts_.version < kWireVersionDevice) {
        return without_device_memory();
      }
    }
  }
  group = core_.post({buffers.data(), slots.size()});
  context_.note_activity();
  activity_.moved = true;
  watch_all();              // who posts may wait next
  if (core_.done(group)) {  // it came eagerly
    counters_.messages[core::receiver_rail(last_payload_.value_or(primary_))].add(1);
  } else if (context_.waits.wanted() && looks_.woken(context_.waits)) {
    progress();  // what came before woke a caller who had no receive for it, and wakes no more
  }
  if (core_.done(group)) {
    context_.waits.nudge();
  }
  answer(Tell::worthwhile);
  taken = true;
  return Result::success;
}

// The peer would have a CPU of its own move what goes there.
Result Receiver::without_device_memory() {
  context_.say(LogLevel::warn, peer_ + " speaks version " + std::to_string(facts_.version) +
                                   " of the wire, and device memory needs version " +
                                   std::to_string(kWireVersionDevice) +
                                   ": install the same release on all hosts, or unset "
                                   "FABRIC_GPUDIRECT");
  return Result::invalid_usage;
}

Result Receiver::test(core::GroupId group, std::size_t count, bool& done, int* sizes,
                      std::uint8_t* landed_rails) {
  done = false;
  const CommGate::CallerGuard guard(gate_);
  if (!guard) {
    return Result::success;
  }
  done = core_.done(group);
  if (!done && !end_.failed()) {
    progress();
    done = core_.done(group);
    if (!done) {
      answer(Tell::worthwhile);
      acknowledge_small();
    }
    if (!done && end_.peer_closed) {
      core::each(live_, [this](core::PathIndex index) { exhaust(index); });
      done = core_.done(group);
    }
    if (!done && end_.peer_closed && heard_out()) {
      abort_inside(Result::remote_error, "the peer closed the communicator; receives are pending");
    }
  }
  if (done) {
    stall_timer_.reset();
    for (std::size_t i = 0; sizes != nullptr && i < count; ++i) {
      sizes[i] = static_cast<int>(core_.received(group, i));
    }
    if (landed_rails != nullptr) {
      *landed_rails = core_.landed_rails(group);
    }
    core_.forget(group);
    return Result::success;
  }
  if (end_.failed()) {
    add(context_.stats.errors, 1);
  } else if (stall_timer_.stalled()) {
    context_.request_fast_tick();
  }
  return end_.error;
}

void Receiver::close() {
  while (!hang_up()) {
    context_.waits.nap(1000);
  }
  context_.wake_control();
}

// False: the control thread is inside, or something may still land in a posted receive.
bool Receiver::hang_up() {
  const CommGate::CallerGuard guard(gate_);
  if (!guard) {
    return false;
  }
  if (!end_.closing) {
    end_.closing = true;
    hang_up_all(true);
  }
  return settle();
}

void Receiver::hang_up_all(bool say_close) {
  core::each(live_, [&](core::PathIndex index) {
    Path& path = paths_[index];
    if (say_close) {
      // The last word on each link says all: an acknowledgement on another may come later.
      path.link->close(core_.state());
    }
    path.life.on(core::LinkEvent::close);
    release(index);
  });
  live_ = 0;
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    if (paths_[i].beside.link != nullptr) {
      drop_beside(static_cast<core::PathIndex>(i));
    }
  }
}

void Receiver::watch_all() {
  if (context_.waits.wanted()) {
    core::each(live_, [this](core::PathIndex index) { paths_[index].watch(context_.waits); });
  }
}

void Receiver::progress() {
  const core::PathSet look =
      looks_.next(context_.waits, live_, activity_.busy, [this] { watch_all(); });
  core::each(look, [this](core::PathIndex index) {
    if (!paths_[index].life.live()) {
      return;
    }
    const auto dead = drain(index);
    if (dead && !end_.failed()) {
      fail(index, *dead);
    }
  });
  answer();
}

// Takes what came in, up to a budget. Something: the link is over, and why.
std::optional<pages::PathDownReason> Receiver::drain(core::PathIndex index) {
  LinkIn& link = *paths_[index].link;
  if (link.ended()) {
    return std::nullopt;
  }
  ReceiveProgress progress;
  link.poll(core_, hints(index), progress);
  account(index, progress);
  return progress.dead;
}

void Receiver::exhaust(core::PathIndex index) {
  const LinkIn& link = *paths_[index].link;
  while (!link.ended() && !drain(index)) {
    if (!link.pending()) {
      return;
    }
  }
}

ReceiveHints Receiver::hints(core::PathIndex index) {
  awake_ = looks_.slept(context_.waits) ? 0 : awake_ + 1;
  return {(activity_.busy & live_ & ~core::bit(index)) == 0, awake_ < kAwake};
}

void Receiver::account(core::PathIndex index, const ReceiveProgress& progress) {
  if (progress.bytes != 0 || progress.chunks != 0) {
    RailCounters& rail = context_.stats.rails[core::receiver_rail(index)];
    add(rail.rx_bytes, progress.bytes);
    add(rail.rx_chunks, progress.chunks);
    counters_.bytes.add(progress.bytes);
  }
  if (progress.duplicate_bytes != 0) {
    add(context_.stats.rails[core::receiver_rail(index)].duplicate_bytes, progress.duplicate_bytes);
  }
  Path& path = paths_[index];
  if (progress.carried) {
    note_carried(index);
  }
  path.awaits_validation = path.awaits_validation && !progress.validated;
  if (progress.messages != 0) {
    heard_ = true;
    path.small = progress.small;
    counters_.messages[core::receiver_rail(index)].add(progress.messages);
  }
  if (progress.peer_closed) {
    note_close();
  }
  if (progress.more) {
    context_.waits.signal();  // nobody may block on what is there already
  }
  path.acks.maybe_unacked = path.acks.maybe_unacked || progress.wrote;
}

// A chunk came, or begins to.
void Receiver::note_carried(core::PathIndex index) {
  activity_.busy |= core::bit(index);
  activity_.carried |= core::bit(index);
  activity_.moved = true;
  last_payload_ = index;
  paths_[index].awaits_validation = false;  // what comes first is all that it would be
  context_.note_activity();
}

void Receiver::note_close() {
  if (!end_.peer_closed) {
    end_.peer_closed = true;
    heard_ = true;
    peer_closed_at_ = monotonic_ns();
  }
}

bool Receiver::heard_out() const {
  bool open = false;
  core::each(live_, [&](core::PathIndex index) { open = open || !paths_[index].link->ended(); });
  return !open || monotonic_ns() - peer_closed_at_ >= kLastWordsNs;
}

}  // namespace fabric::host
