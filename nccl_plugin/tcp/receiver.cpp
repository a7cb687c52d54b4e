// The caller's side of Receiver, and the bytes that come in.
#include "tcp/receiver.h"
#include "core/schedule.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace fabric::tcp {

namespace {

constexpr std::size_t kDrainBudget = 8U << 20U;  // bytes of one path before the others get a turn
constexpr unsigned kGlance = 8;
constexpr unsigned kAwake = 64;  // looks without a sleep: the callers poll
constexpr std::size_t kLowWaterMost = std::size_t{512} * 1024;
constexpr std::size_t kSpill = std::size_t{16} * 1024;
// After a close: how long a connection that does not end may still bring what was on its way.
constexpr std::int64_t kLastWordsNs = 1'000 * kMs;

// Where duplicates go, and what is behind a header or a small chunk: so that small messages come
// many at a time, and one comes with its header in one read.
std::span<std::byte> scratch() {
  thread_local std::array<std::byte, std::size_t{64} * 1024> bytes;
  return bytes;
}

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
  if (core_.done(group)) {  // it came ahead
    tally_.messages[core::receiver_rail(last_payload_.value_or(home_))].add(1);
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
    context_.waits.wait(1000);
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

void Receiver::progress() {
  const std::uint64_t generation = context_.waits.generation();
  core::PathSet look = live_;
  if (generation == seen_generation_ && ++calls_ % kGlance != 0 && (busy_ & live_) != 0) {
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
    peer_closed_at_ = monotonic_ns();
  }
}

bool Receiver::heard_out() const {
  bool open = false;
  core::each(live_, [&](core::PathIndex index) { open = open || !paths_[index].ended; });
  return !open || monotonic_ns() - peer_closed_at_ >= kLastWordsNs;
}

// Reads what the kernel holds, up to a budget. False: the connection is over (or speaks nonsense).
bool Receiver::drain(core::PathIndex index) {
  Path& path = paths_[index];
  if (path.ended) {
    return true;
  }
  const std::span<std::byte> aside = scratch();
  std::size_t budget = kDrainBudget;
  while (true) {
    std::array<iovec, 3> parts{};
    const bool payload = path.in_payload;
    if (payload) {
      const std::size_t length = path.duplicate ? std::min(path.left, aside.size()) : path.left;
      parts[0] = {path.duplicate ? aside.data() : path.data, length};
    }
    // The next header comes with the tail of this chunk.
    if (!payload || parts[0].iov_len == path.left) {
      parts[1] = {path.header.data() + path.header_at, path.header.size() - path.header_at};
      if (!payload || (!path.duplicate && path.left <= core::kCopyLimit)) {
        parts[2] = {aside.data(), kSpill};
      }
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t count = ::recvmsg(path.fd.get(), &message, MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      path.ended = errno != EAGAIN && errno != EWOULDBLOCK;
      if (!path.ended) {
        lower_water(index);
      }
      return !path.ended;
    }
    if (count == 0) {
      path.ended = true;
      return false;
    }
    auto got = static_cast<std::size_t>(count);
    const bool short_read = got < parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
    budget -= std::min(budget, got);
    if (payload) {
      const std::size_t part = std::min(got, parts[0].iov_len);
      arrived(index, part);
      got -= part;
    }
    if (got != 0) {
      const std::size_t part = std::min(got, parts[1].iov_len);
      path.header_at += part;
      if (!take_header(index) || !feed(index, aside.first(got - part))) {
        path.ended = true;
        return false;
      }
      if (path.ended) {
        return true;
      }
    }
    if (short_read) {
      lower_water(index);
      return true;
    }
    if (budget == 0) {
      context_.waits.signal();  // there is more: nobody may block on it
      return true;
    }
  }
}

// What the rest of a message brings is known, so the caller need not see every packet of it; when
// it is whole, it is told at once. Only while no other path has a part in it. Should the rest come
// another way after all, the next tick wakes.
void Receiver::lower_water(core::PathIndex index) {
  Path& path = paths_[index];
  const std::uint64_t sleeps = context_.waits.sleeps();
  awake_ = std::exchange(seen_sleeps_, sleeps) == sleeps ? awake_ + 1 : 0;
  std::size_t mark = 1;
  if (awake_ < kAwake && path.in_payload && !path.duplicate &&
      (busy_ & live_) == core::bit(index)) {
    const std::size_t headers = (path.behind + chunk_size_ - 1) / chunk_size_ * kChunkHeaderSize;
    mark = std::min(path.left + path.behind + headers, kLowWaterMost);
  }
  if (mark != path.low_water) {
    path.low_water = mark;
    set_low_water(path.fd.get(), mark);
  }
}

// What was read aside. False: not ours.
bool Receiver::feed(core::PathIndex index, std::span<const std::byte> bytes) {
  Path& path = paths_[index];
  while (!bytes.empty() && !path.ended) {
    if (path.in_payload) {
      const std::size_t part = std::min(path.left, bytes.size());
      if (!path.duplicate) {
        std::memcpy(path.data, bytes.data(), part);
      }
      arrived(index, part);
      bytes = bytes.subspan(part);
      continue;
    }
    const std::size_t part = std::min(path.header.size() - path.header_at, bytes.size());
    std::memcpy(path.header.data() + path.header_at, bytes.data(), part);
    path.header_at += part;
    bytes = bytes.subspan(part);
    if (!take_header(index)) {
      return false;
    }
  }
  return true;
}

// So many bytes of the present chunk are where they belong.
void Receiver::arrived(core::PathIndex index, std::size_t payload) {
  Path& path = paths_[index];
  count_payload(index, payload);
  path.left -= payload;
  path.data += path.duplicate ? 0 : payload;
  if (path.left == 0) {
    finish_chunk(index);
    path.header_at = 0;
  }
}

// Begins the chunk whose header is complete. False: not ours.
bool Receiver::take_header(core::PathIndex index) {
  Path& path = paths_[index];
  if (path.header_at < kFrameHeaderSize) {
    return true;
  }
  const auto frame = decode_frame_header({path.header.data(), kFrameHeaderSize});
  if (!frame || frame->comm != id_ || !speaks(facts_.version, frame->type)) {
    return false;
  }
  if (frame->type == FrameType::close) {
    path.ended = true;
    note_close();
    return true;
  }
  if (path.header_at < kChunkHeaderSize) {
    return frame->type == FrameType::chunk || frame->type == FrameType::ahead ||
           frame->type == FrameType::trial;
  }
  if (frame->type == FrameType::trial) {
    path.in_payload = true;
    path.trial = true;
    path.duplicate = true;
    path.left = frame->length - (kChunkHeaderSize - kFrameHeaderSize);
    path.header_at = 0;
    return path.left == kTrialSize;
  }
  const auto header = decode_chunk(path.header);
  if (!header) {
    return false;
  }
  const core::Placement placement = core_.begin(index, path.epoch, *header);
  if (placement.verdict == core::Verdict::refuse || placement.verdict == core::Verdict::stale) {
    return false;
  }
  path.in_payload = true;
  path.trial = false;
  path.awaits_trial = false;  // what comes first is all that it would be
  path.duplicate = placement.verdict == core::Verdict::duplicate;
  path.data = placement.data;
  path.left = header->length;
  path.behind = header->message_size - header->offset - header->length;
  path.header_at = 0;
  busy_ |= core::bit(index);
  moved_ = true;
  context_.stir();
  last_payload_ = index;
  if (path.left == 0) {
    finish_chunk(index);
  }
  return true;
}

void Receiver::count_payload(core::PathIndex index, std::size_t payload) {
  if (paths_[index].trial) {
    return;
  }
  RailCounters& rail = context_.stats.rails[core::receiver_rail(index)];
  if (paths_[index].duplicate) {
    add(rail.duplicate_bytes, payload);
  } else {
    add(rail.rx_bytes, payload);
    tally_.bytes.add(payload);
  }
}

void Receiver::finish_chunk(core::PathIndex index) {
  Path& path = paths_[index];
  path.in_payload = false;
  if (path.trial) {
    path.trial = false;
    path.awaits_trial = false;
    append_frame(path.out, FrameType::trial_done, id_);
    return;  // the control thread's next tick sends it
  }
  if (core_.finish(index)) {
    tally_.messages[core::receiver_rail(index)].add(1);
  }
  if (!paths_[index].duplicate) {
    add(context_.stats.rails[core::receiver_rail(index)].rx_chunks, 1);
  }
}

}  // namespace fabric::tcp
