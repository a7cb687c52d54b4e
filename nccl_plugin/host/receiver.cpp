// The caller's side of Receiver.
#include "host/receiver.h"

#include <sys/socket.h>

namespace fabric::host {

namespace {

constexpr unsigned kGlance = 8;
// After a close: how long a connection that does not end may still bring what was on its way.
constexpr std::int64_t kLastWordsNs = 1'000 * kMs;

}  // namespace

Receiver::Receiver(Context& context, std::uint64_t id, core::PathIndex home,
                   std::uint32_t chunk_size, std::string peer)
    : context_(context),
      id_(id),
      home_(home),
      peer_(std::move(peer)),
      chunk_size_(chunk_size),
      tenure_(context.waits),
      core_(chunk_size),
      patience_(context.clock) {
  dead_since_ = monotonic_ns();
  busy_at_ = dead_since_;
  last_state_ = dead_since_;
  facts_.weight.fill(core::kFullWeight);
  context_.stats.recv_comms.fetch_add(1);
}

Receiver::~Receiver() { context_.stats.recv_comms.fetch_sub(1); }

Result Receiver::post(std::span<const ReceiveSlot> slots, bool& taken, core::GroupId& group) {
  taken = false;
  const Tenure::Call call(tenure_);
  if (!call) {
    return Result::success;
  }
  if (error_ != Result::success) {
    add(context_.stats.errors, 1);
    return error_;
  }
  std::array<core::Buffer, core::kMaxSlots> buffers{};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    buffers[i].data = static_cast<std::byte*>(slots[i].data);
    buffers[i].slot.size = slots[i].size;
    buffers[i].slot.tag = slots[i].tag;
  }
  group = core_.post({buffers.data(), slots.size()});
  context_.stir();
  moved_ = true;
  watch_all();              // who posts may wait next
  if (core_.done(group)) {  // it came ahead
    tally_.messages[core::receiver_rail(last_payload_.value_or(home_))].add(1);
  } else if (context_.waits.wanted() && context_.waits.generation() != seen_generation_) {
    progress();  // what came before woke a caller who had no receive for it, and wakes no more
  }
  if (core_.done(group)) {
    context_.waits.nudge();
  }
  answer(Tell::worthwhile);
  taken = true;
  return Result::success;
}

Result Receiver::test(core::GroupId group, std::size_t count, bool& done, int* sizes) {
  done = false;
  const Tenure::Call call(tenure_);
  if (!call) {
    return Result::success;
  }
  done = core_.done(group);
  if (!done && error_ == Result::success) {
    progress();
    done = core_.done(group);
    if (!done) {
      answer(Tell::worthwhile);
      acknowledge_small();
    }
    if (!done && peer_closed_) {
      core::each(live_, [this](core::PathIndex index) { exhaust(index); });
      done = core_.done(group);
    }
    if (!done && peer_closed_ && heard_out()) {
      abort_inside(Result::remote_error, "the peer closed the communicator; receives are pending");
    }
  }
  if (done) {
    patience_.served();
    for (std::size_t i = 0; sizes != nullptr && i < count; ++i) {
      sizes[i] = static_cast<int>(core_.received(group, i));
    }
    core_.forget(group);
    return Result::success;
  }
  if (error_ != Result::success) {
    add(context_.stats.errors, 1);
  } else if (patience_.waits()) {
    context_.hurry();
  }
  return error_;
}

void Receiver::close() {
  while (!hang_up()) {
    context_.waits.nap(1000);
  }
  context_.wake_control();
}

// False: the control thread is inside.
bool Receiver::hang_up() {
  const Tenure::Call call(tenure_);
  if (!call) {
    return false;
  }
  core::each(live_, [this](core::PathIndex index) {
    // The last word on each connection says all: an acknowledgement on another may come later.
    Path& path = paths_[index];
    append_state(path.out, id_, {std::nullopt, core_.state()});
    append_frame(path.out, FrameType::close, id_);
    [[maybe_unused]] const auto sent =
        ::send(path.fd.get(), path.out.data() + path.out_at, path.out.size() - path.out_at,
               MSG_DONTWAIT | MSG_NOSIGNAL);
    path.life.on(core::LinkEvent::close);
    path.fd.reset();
  });
  live_ = 0;
  closed_.store(true, std::memory_order_release);
  return true;
}

void Receiver::watch(core::PathIndex index) {
  Path& path = paths_[index];
  if (!path.watched && context_.waits.wanted()) {
    path.watched = true;
    context_.waits.add(path.fd.get());
  }
}

void Receiver::watch_all() {
  if (context_.waits.wanted()) {
    core::each(live_, [this](core::PathIndex index) { watch(index); });
  }
}

void Receiver::progress() {
  const std::uint64_t generation = context_.waits.generation();
  core::PathSet look = live_;
  if (generation != seen_generation_) {
    watch_all();
  } else if (++calls_ % kGlance != 0 && (busy_ & live_) != 0) {
    look &= busy_;
  }
  seen_generation_ = generation;
  core::each(look, [this](core::PathIndex index) {
    if (paths_[index].life.live() && !drain(index) && error_ == Result::success) {
      fail(index, pages::PathDownReason::socket_error);
    }
  });
  answer();
}

void Receiver::exhaust(core::PathIndex index) {
  while (!paths_[index].ended && drain(index)) {
    std::byte probe{};
    if (::recv(paths_[index].fd.get(), &probe, 1, MSG_DONTWAIT | MSG_PEEK) < 0) {
      return;
    }
  }
}

void Receiver::note_close() {
  if (!peer_closed_) {
    peer_closed_ = true;
    heard_ = true;
    peer_closed_at_ = monotonic_ns();
  }
}

bool Receiver::heard_out() const {
  bool open = false;
  core::each(live_, [&](core::PathIndex index) { open = open || !paths_[index].ended; });
  return !open || monotonic_ns() - peer_closed_at_ >= kLastWordsNs;
}

}  // namespace fabric::host
