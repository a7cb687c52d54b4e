// The caller's side of Sender, and the bytes that go out.
#include "host/sender.h"
#include "core/schedule.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace fabric::host {

namespace {

constexpr unsigned kGlance = 8;  // look at quiet connections every so many calls
// So long a caller is told "not yet" while the copy budget is spent. Longer than acknowledgements
// take on a busy host, much shorter than anybody minds: it is for callers that would wait for ever.
constexpr std::int64_t kBudgetPatienceNs = 2'000'000;

}  // namespace

Sender::Sender(Context& context, std::uint64_t id, core::PathIndex home, std::string peer)
    : context_(context),
      id_(id),
      home_(home),
      peer_(std::move(peer)),
      tenure_(context.waits),
      core_(context.params.chunk_size),
      patience_(context.clock) {
  idle_since_ = monotonic_ns();
  dead_since_ = idle_since_;
  born_ = idle_since_;
  busy_at_ = idle_since_;
  facts_.weight.fill(core::kFullWeight);
  context_.stats.send_comms.fetch_add(1);
}

Sender::~Sender() { context_.stats.send_comms.fetch_sub(1); }

Result Sender::post(const void* data, std::size_t size, int tag, bool& taken,
                    core::Sequence& sequence) {
  taken = false;
  const Tenure::Call call(tenure_);
  if (!call) {
    return Result::success;
  }
  if (peer_closed_) {
    abort_inside(Result::remote_error, "the peer closed the communicator");
  }
  if (error_ != Result::success) {
    add(context_.stats.errors, 1);
    return error_;
  }
  const std::uint64_t stamp = context_.clock.now();
  auto posted = core_.post(data, size, tag, stamp, without_copy(size));
  if (posted && core_.has_chunk()) {
    pump();  // granted already: no need to look at what came back first
    if (core_.nearly_full()) {
      core::each(answering_ & live_, [this](core::PathIndex index) { read_back(index); });
    }
    count_delivered();
  } else {
    progress();
    if (!posted) {
      posted = core_.post(data, size, tag, stamp, without_copy(size));
      pump();
    }
  }
  if (posted) {
    context_.stir();
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
  return now - budget_spent_since_ >= kBudgetPatienceNs ? core::NoCopy::take : core::NoCopy::refuse;
}

Result Sender::test(core::Sequence sequence, bool& done, std::size_t& size) {
  done = false;
  const Tenure::Call call(tenure_);
  if (!call) {
    return Result::success;
  }
  done = core_.done(sequence);
  if (!done && error_ == Result::success) {
    progress();
    done = core_.done(sequence);
  }
  if (done) {
    patience_.served();
    size = core_.size(sequence).value_or(size);
    core_.forget(sequence);
    return Result::success;
  }
  if (error_ != Result::success) {
    add(context_.stats.errors, 1);
  } else if (patience_.waits()) {
    context_.hurry();
  }
  return error_;
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
  const Tenure::Call call(tenure_);
  if (!call) {
    return false;
  }
  if (error_ == Result::success && !peer_closed_) {
    progress();
  }
  if (error_ == Result::success && !peer_closed_ && core_.owes()) {
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
  core::each(live_, [this](core::PathIndex index) {
    Path& path = paths_[index];
    // In the middle of a chunk the close frame would be taken for payload: just hang up.
    if (!path.sending) {
      Bytes frame;
      append_frame(frame, FrameType::close, id_);
      [[maybe_unused]] const auto sent_bytes =
          ::send(path.fd.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    path.life.on(core::LinkEvent::close);
    core_.quiesced(index);
    path.fd.reset();
  });
  live_ = 0;
  eligible_ = 0;
  closed_.store(true, std::memory_order_release);
  return true;
}

void Sender::watch(core::PathIndex index) {
  Path& path = paths_[index];
  if (!path.watched && context_.waits.wanted()) {
    path.watched = true;
    context_.waits.add(path.fd.get());
  }
}

void Sender::watch_all() {
  if (context_.waits.wanted()) {
    core::each(live_, [this](core::PathIndex index) { watch(index); });
  }
}

void Sender::progress() {
  const std::uint64_t generation = context_.waits.generation();
  core::PathSet look = live_;
  if (generation != seen_generation_) {
    watch_all();
  } else if (++calls_ % kGlance != 0 && (answering_ & live_) != 0) {
    look &= answering_;
  }
  seen_generation_ = generation;
  core::each(look, [this](core::PathIndex index) { read_back(index); });
  core_.catch_up();
  count_delivered();
  pump();
}

void Sender::pump() {
  core::PathSet blocked = 0;
  core::each(live_, [&](core::PathIndex index) {
    if (paths_[index].sending && paths_[index].life.live() && !flush(index)) {
      blocked |= core::bit(index);
    }
  });
  while (core_.has_chunk()) {
    const auto index = share_.next(eligible_ & live_ & ~blocked);
    if (!index) {
      return;
    }
    if (full(*index)) {
      blocked |= core::bit(*index);
      continue;
    }
    // As many as fit one call; where paths share, one at a time, so that none runs ahead.
    const bool alone = std::popcount(eligible_ & live_) == 1;
    Path& path = paths_[*index];
    const std::size_t most = alone ? path.batch_size.most() : 1;
    for (std::size_t i = 0; i < most && core_.has_chunk(); ++i) {
      const auto out = core_.take(*index);
      if (!out) {
        break;
      }
      start(*index, *out);
    }
    if (!path.sending) {
      return;
    }
    if (path.batch.size() >= core::BatchSize::kLeast) {
      path.batch_began = monotonic_ns();
    }
    if (!flush(*index)) {
      blocked |= core::bit(*index);
    }
  }
}

// By weight: the socket's own limits know nothing of that.
bool Sender::full(core::PathIndex index) const {
  const std::uint16_t weight = facts_.weight[index];
  return weight < heaviest_ && waiting_bytes(paths_[index].fd.get()) >=
                                   core::most_outstanding(weight, heaviest_, paths_[index].window);
}

void Sender::start(core::PathIndex index, const core::Outgoing& out) {
  Path& path = paths_[index];
  if (!path.sending) {
    path.sending = true;
    path.trial = false;
    path.batch.clear();
    path.batch_at = 0;
    path.piece_at = 0;
  }
  path.batch.push_back({encode_chunk(id_, out.header), out.data, out.header.length, out.again});
  share_.carried(index, out.header.length, facts_.weight[index]);
}

void Sender::start_trial(core::PathIndex index) {
  static constexpr std::array<std::byte, kTrialSize> kZeros{};
  Path& path = paths_[index];
  path.sending = true;
  path.trial = true;
  path.batch.assign(1, {encode_trial(id_), kZeros.data(), kZeros.size(), false});
  path.batch_at = 0;
  path.piece_at = 0;
}

void Sender::limit_unsent(core::PathIndex index, std::size_t bytes) {
  Path& path = paths_[index];
  if (bytes != path.unsent_limit) {
    path.unsent_limit = bytes;
    set_unsent_limit(path.fd.get(), bytes);
  }
}

// True when all chunks under way are with the kernel and the path can take others.
bool Sender::flush(core::PathIndex index) {
  while (paths_[index].sending) {
    const auto count = write(index);
    if (!count) {
      return false;
    }
    wrote(index, *count);
  }
  return true;
}

// Nothing: the kernel takes no more now, or the connection is over.
std::optional<std::size_t> Sender::write(core::PathIndex index) {
  Path& path = paths_[index];
  std::array<iovec, 2 * core::BatchSize::kMost> parts;  // as far as `used`
  std::size_t used = 0;
  const auto add_part = [&](const std::byte* data, std::size_t length, std::size_t& skip) {
    const std::size_t skipped = std::min(skip, length);
    skip -= skipped;
    if (length != skipped) {
      parts[used++] = {const_cast<std::byte*>(data + skipped), length - skipped};
    }
  };
  std::size_t skip = path.piece_at;
  for (std::size_t i = path.batch_at; i < path.batch.size(); ++i) {
    add_part(path.batch[i].header.data(), kChunkHeaderSize, skip);
    add_part(path.batch[i].data, path.batch[i].length, skip);
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = used;
  while (true) {
    const ssize_t count = ::sendmsg(path.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      return static_cast<std::size_t>(count);
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
      fail(index, pages::PathDownReason::socket_error);
    }
    return std::nullopt;
  }
}

void Sender::wrote(core::PathIndex index, std::size_t bytes) {
  Path& path = paths_[index];
  path.written += bytes;
  path.maybe_unacked = true;
  while (path.sending && bytes != 0) {
    const Piece& piece = path.batch[path.batch_at];
    const std::size_t whole = kChunkHeaderSize + piece.length;
    const std::size_t part = std::min(bytes, whole - path.piece_at);
    const std::size_t before = std::max(path.piece_at, kChunkHeaderSize);
    path.piece_at += part;
    bytes -= part;
    if (!path.trial) {
      sent(index, piece, std::max(path.piece_at, kChunkHeaderSize) - before);
    }
    if (path.piece_at == whole) {
      piece_sent(index, piece);
      path.piece_at = 0;
      path.sending = ++path.batch_at != path.batch.size();
      if (!path.sending && path.batch.size() >= core::BatchSize::kLeast) {
        path.batch_size.through(path.batch.size(), monotonic_ns() - path.batch_began);
      }
    }
  }
}

void Sender::piece_sent(core::PathIndex index, const Piece& piece) {
  if (paths_[index].trial) {
    return;
  }
  RailCounters& rail = context_.stats.rails[core::sender_rail(index)];
  add(rail.tx_chunks, 1);
  if (piece.again) {
    add(rail.retransmit_chunks, 1);
    tally_.retransmit_chunks.add(1);
  }
  core_.written(index);
}

void Sender::sent(core::PathIndex index, const Piece& piece, std::size_t payload) {
  Path& path = paths_[index];
  const auto local = static_cast<std::uint8_t>(core::sender_rail(index));
  const auto remote = static_cast<std::uint8_t>(core::receiver_rail(index));
  RailCounters& rail = context_.stats.rails[local];
  add(rail.tx_bytes, payload);
  tally_.bytes.add(payload);
  if (piece.again) {
    add(rail.retransmit_bytes, payload);
    tally_.retransmit_bytes.add(payload);
  }
  if (awaiting_first_byte_) {
    context_.stats.event(pages::StatsEventKind::first_byte, id_, local, remote,
                         *awaiting_first_byte_);
    awaiting_first_byte_.reset();
  }
  if (path.rejoined) {
    path.rejoined = false;
    context_.stats.event(pages::StatsEventKind::path_up, id_, local, remote, 0);
  }
  moved_ = true;
}

}  // namespace fabric::host
