// The bytes that come in.
#include "tcp/link_in.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/ordered_copy.h"
#include "tcp/socket.h"

namespace fabric::tcp {

namespace {

using host::FrameType;
using host::kChunkHeaderSize;
using host::kFrameHeaderSize;

constexpr std::size_t kPollBudget = 8U << 20U;  // bytes of one path before the others get a turn
constexpr std::size_t kLowWaterMost = std::size_t{512} * 1024;
constexpr std::size_t kSpill = std::size_t{16} * 1024;

// Where duplicates go, and what is behind a header or a small chunk: so that small messages come
// many at a time, and one comes with its header in one read.
std::span<std::byte> scratch() {
  thread_local std::array<std::byte, std::size_t{64} * 1024> bytes;
  return bytes;
}

}  // namespace

// Where one read puts what comes: into the chunk under way and the header behind it, then
// - into the next chunks of the message that the sender has promised, each with its header: a read
//   that ends at each chunk leaves bytes with the kernel, which then has the sender's core
//   acknowledge them (__tcp_ack_snd_check in net/ipv4/tcp_input.c: the window advances), a tenth of
//   the speed;
// - else aside, where little is expected.
// Nothing is ever read to where it does not belong: see ReceiveCore.
struct TcpLinkIn::Scatter {
  std::array<iovec, 2 + 2 * core::kMostFollow> parts;  // as far as `used`
  std::size_t used = 0;
  std::size_t wanted = 0;
  std::array<std::array<std::byte, kChunkHeaderSize>, core::kMostFollow> headers;  // by the kernel

  void add(std::byte* data, std::size_t size) {
    parts[used++] = {data, size};
    wanted += size;
  }
};

TcpLinkIn::TcpLinkIn(host::Fd fd, const host::LinkSetup& setup, std::uint8_t version)
    : fd_(std::move(fd)),
      comm_(setup.comm),
      path_(setup.path),
      epoch_(setup.epoch),
      chunk_size_(setup.chunk_size),
      version_(version) {}

// Reads what the kernel holds, up to a budget.
void TcpLinkIn::poll(core::ReceiveCore& core, const host::ReceiveHints& hints,
                     host::ReceiveProgress& progress) {
  Poll poll{core, hints, progress};
  std::size_t budget = kPollBudget;
  After after = After::again;
  while (!ended_ && after == After::again) {
    after = read(poll, budget);
  }
  if (after == After::over) {
    ended_ = true;
    progress.dead = pages::PathDownReason::socket_error;
  }
}

TcpLinkIn::After TcpLinkIn::read(Poll& poll, std::size_t& budget) {
  Scatter into;
  aim(poll, into);
  msghdr message{};
  message.msg_iov = into.parts.data();
  message.msg_iovlen = into.used;
  const ssize_t count = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  if (count < 0 && errno == EINTR) {
    return After::again;
  }
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    lower_water(poll.hints);
    return After::enough;
  }
  if (count <= 0) {
    return After::over;
  }
  const auto got = static_cast<std::size_t>(count);
  budget -= std::min(budget, got);
  if (!take(poll, into, got)) {
    return After::over;
  }
  if (ended_) {
    return After::enough;
  }
  if (got < into.wanted) {
    lower_water(poll.hints);
    return After::enough;
  }
  poll.progress.more = budget == 0;
  return budget == 0 ? After::enough : After::again;
}

bool TcpLinkIn::pending() const {
  std::byte probe{};
  return ::recv(fd_.get(), &probe, 1, MSG_DONTWAIT | MSG_PEEK) >= 0;
}

// Where the next bytes are to go.
void TcpLinkIn::aim(const Poll& poll, Scatter& into) {
  const std::span<std::byte> aside = scratch();
  if (in_payload_) {
    const std::size_t length = duplicate_ ? std::min(left_, aside.size()) : left_;
    into.add(duplicate_ ? aside.data() : data_, length);
    if (length != left_) {
      return;
    }
  }
  // The next header comes with the tail of this chunk.
  into.add(header_.data() + header_at_, header_.size() - header_at_);
  if (!in_payload_) {
    into.add(aside.data(), kSpill);
    return;
  }
  if (duplicate_) {
    return;
  }
  if (follow_ != 0) {
    std::byte* data = data_ + left_;
    std::size_t behind = behind_;
    const std::size_t chunks = poll.core.missing_behind(path_, follow_);
    for (std::size_t i = 0; i < chunks; ++i) {
      const std::size_t length = std::min<std::size_t>(chunk_size_, behind);
      into.add(data, length);
      into.add(into.headers[i].data(), into.headers[i].size());
      data += length;
      behind -= length;
    }
    if (chunks != 0) {
      return;
    }
  }
  if (left_ <= core::kCopyLimit) {
    into.add(aside.data(), kSpill);
  }
}

// Takes what one read brought. False: not ours.
bool TcpLinkIn::take(Poll& poll, const Scatter& into, std::size_t got) {
  std::size_t at = 0;
  const auto next = [&] { return std::min(got, into.parts[at].iov_len); };
  if (in_payload_) {
    const std::size_t part = next();
    arrived(poll, part);
    got -= part;
    ++at;
  }
  while (got != 0) {
    const std::size_t part = next();
    std::byte* const to = header_.data() + header_at_;
    if (into.parts[at].iov_base != to) {
      std::memcpy(to, into.parts[at].iov_base, part);
    }
    header_at_ += part;
    got -= part;
    ++at;
    if (!take_header(poll)) {
      return false;
    }
    if (ended_ || got == 0) {
      return true;
    }
    const iovec& body = into.parts[at];
    if (at + 1 == into.used) {
      return feed(poll, {static_cast<const std::byte*>(body.iov_base), got});  // it was aside
    }
    const bool foreseen =
        in_payload_ && !duplicate_ && data_ == body.iov_base && left_ == body.iov_len;
    if (!foreseen) {
      return false;  // a broken promise
    }
    const std::size_t payload = next();
    arrived(poll, payload);
    got -= payload;
    ++at;
  }
  return true;
}

// What was read aside. False: not ours.
bool TcpLinkIn::feed(Poll& poll, std::span<const std::byte> bytes) {
  while (!bytes.empty() && !ended_) {
    if (in_payload_) {
      const std::size_t part = std::min(left_, bytes.size());
      if (!duplicate_) {
        core::copy_in_order(data_, bytes.data(), part);
      }
      arrived(poll, part);
      bytes = bytes.subspan(part);
      continue;
    }
    const std::size_t part = std::min(header_.size() - header_at_, bytes.size());
    std::memcpy(header_.data() + header_at_, bytes.data(), part);
    header_at_ += part;
    bytes = bytes.subspan(part);
    if (!take_header(poll)) {
      return false;
    }
  }
  return true;
}

// So many bytes of the present chunk are where they belong.
void TcpLinkIn::arrived(Poll& poll, std::size_t payload) {
  if (!validation_) {
    (duplicate_ ? poll.progress.duplicate_bytes : poll.progress.bytes) += payload;
  }
  left_ -= payload;
  data_ += duplicate_ ? 0 : payload;
  if (left_ == 0) {
    finish_chunk(poll);
    header_at_ = 0;
  }
}

// Begins the frame whose header is complete. False: not ours.
bool TcpLinkIn::take_header(Poll& poll) {
  if (header_at_ < kFrameHeaderSize) {
    return true;
  }
  const auto frame = host::decode_frame_header({header_.data(), kFrameHeaderSize});
  if (!frame || frame->comm != comm_ || !host::speaks(version_, frame->type)) {
    return false;
  }
  if (frame->type == FrameType::close) {
    ended_ = true;
    poll.progress.peer_closed = true;
    return true;
  }
  if (header_at_ < kChunkHeaderSize) {
    return host::carries_payload(frame->type);
  }
  if (frame->type == FrameType::path_validation) {
    if (follow_ != 0) {
      return false;
    }
    in_payload_ = true;
    validation_ = true;
    duplicate_ = true;
    left_ = frame->length - (kChunkHeaderSize - kFrameHeaderSize);
    header_at_ = 0;
    return left_ == host::kValidationSize;
  }
  return begin_chunk(poll);
}

// False: not ours.
bool TcpLinkIn::begin_chunk(Poll& poll) {
  const auto header = host::decode_chunk(header_);
  if (!header) {
    return false;
  }
  const bool next =
      header->group == group_ && header->slot == slot_ && header->offset == next_offset_;
  if (follow_ != 0 && (header->eager || !next)) {
    return false;  // not what was promised
  }
  const core::Placement placement = poll.core.begin(path_, epoch_, *header);
  if (placement.verdict == core::Verdict::refuse || placement.verdict == core::Verdict::stale) {
    return false;
  }
  in_payload_ = true;
  validation_ = false;
  duplicate_ = placement.verdict == core::Verdict::duplicate;
  data_ = placement.data;
  left_ = header->length;
  behind_ = header->message_size - header->offset - header->length;
  follow_ = header->follow;
  group_ = header->group;
  slot_ = header->slot;
  next_offset_ = header->offset + header->length;
  header_at_ = 0;
  poll.progress.carried = true;
  if (left_ == 0) {
    finish_chunk(poll);
  }
  return true;
}

void TcpLinkIn::finish_chunk(Poll& poll) {
  in_payload_ = false;
  if (validation_) {
    validation_ = false;
    poll.progress.validated = true;
    host::append_frame(out_, FrameType::path_validation_done, comm_);
    return;
  }
  if (poll.core.finish(path_)) {
    poll.progress.small = next_offset_ <= core::kCopyLimit;
    ++poll.progress.messages;
  }
  poll.progress.chunks += duplicate_ ? 0 : 1;
}

// What the rest of a message brings is known, so the caller need not see every packet of it; when
// it is whole, it is told at once. Only while no other path has a part in it. Should the rest come
// another way after all, the next tick wakes.
void TcpLinkIn::lower_water(const host::ReceiveHints& hints) {
  std::size_t mark = 1;
  if (hints.sleeps && in_payload_ && !duplicate_ && hints.alone) {
    const std::size_t headers = (behind_ + chunk_size_ - 1) / chunk_size_ * kChunkHeaderSize;
    mark = std::min(left_ + behind_ + headers, kLowWaterMost);
  }
  if (mark != low_water_) {
    low_water_ = mark;
    set_low_water(fd_.get(), mark);
  }
}

void TcpLinkIn::tick() {
  if (low_water_ > 1 && std::exchange(low_left_, left_) == left_) {
    low_water_ = 1;
    set_low_water(fd_.get(), 1);  // it may never get that far
  }
}

bool TcpLinkIn::quiesce() {
  fd_.reset();
  in_payload_ = false;
  ended_ = true;
  return true;
}

}  // namespace fabric::tcp
