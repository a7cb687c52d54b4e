#include "tcp/link_out.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "host/monotonic.h"
#include "tcp/socket.h"

namespace fabric::tcp {

namespace {

using host::FrameType;
using host::kChunkHeaderSize;
using host::kFrameHeaderSize;

constexpr std::size_t kReadBack = std::size_t{16} * 1024;

// How many right behind the first are the next of its message, in order. A batch goes out whole and
// in order, or its connection ends.
std::uint8_t following(std::span<const core::Outgoing> chunks) {
  std::size_t count = 0;
  while (count < core::kMostFollow && count + 1 < chunks.size()) {
    const core::ChunkHeader& last = chunks[count].header;
    const core::ChunkHeader& next = chunks[count + 1].header;
    if (next.eager || next.group != last.group || next.slot != last.slot ||
        next.offset != last.offset + last.length) {
      break;
    }
    ++count;
  }
  return static_cast<std::uint8_t>(count);
}

}  // namespace

TcpLinkOut::TcpLinkOut(host::Fd fd, const host::LinkSetup& setup, std::uint8_t version)
    : fd_(std::move(fd)), comm_(setup.comm), version_(version) {}

void TcpLinkOut::put(std::span<const core::Outgoing> chunks, host::SendProgress& progress) {
  sending_ = true;
  validation_ = false;
  batch_.clear();
  batch_at_ = 0;
  piece_at_ = 0;
  const bool tells = version_ >= host::kWireVersionOneSided;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const core::Outgoing& out = chunks[i];
    core::ChunkHeader header = out.header;
    header.follow = tells ? following(chunks.subspan(i)) : std::uint8_t{0};
    batch_.push_back({host::encode_chunk(comm_, header), out.data, header.length, out.again});
  }
  if (batch_.size() >= core::BatchSize::kLeast) {
    batch_began_ = host::monotonic_ns();
  }
  advance(progress);
}

void TcpLinkOut::start_validation() {
  static constexpr std::array<std::byte, host::kValidationSize> kZeros{};
  sending_ = true;
  validation_ = true;
  batch_.assign(1, {host::encode_path_validation(comm_), kZeros.data(), kZeros.size(), false});
  batch_at_ = 0;
  piece_at_ = 0;
}

void TcpLinkOut::advance(host::SendProgress& progress) {
  while (sending_) {
    const auto count = write(progress);
    if (!count) {
      return;
    }
    wrote(*count, progress);
  }
}

// Nothing: the kernel takes no more now, or the connection is over.
std::optional<std::size_t> TcpLinkOut::write(host::SendProgress& progress) {
  std::array<iovec, 2 * core::BatchSize::kMost> parts;  // as far as `used`
  std::size_t used = 0;
  const auto add_part = [&](const std::byte* data, std::size_t length, std::size_t& skip) {
    const std::size_t skipped = std::min(skip, length);
    skip -= skipped;
    if (length != skipped) {
      parts[used++] = {const_cast<std::byte*>(data + skipped), length - skipped};
    }
  };
  std::size_t skip = piece_at_;
  for (std::size_t i = batch_at_; i < batch_.size(); ++i) {
    add_part(batch_[i].header.data(), kChunkHeaderSize, skip);
    add_part(batch_[i].data, batch_[i].length, skip);
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = used;
  while (true) {
    const ssize_t count = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      return static_cast<std::size_t>(count);
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
      progress.dead = pages::PathDownReason::socket_error;
    }
    return std::nullopt;
  }
}

void TcpLinkOut::wrote(std::size_t bytes, host::SendProgress& progress) {
  progress.wire_bytes += bytes;
  while (sending_ && bytes != 0) {
    const Piece& piece = batch_[batch_at_];
    const std::size_t whole = kChunkHeaderSize + piece.length;
    const std::size_t part = std::min(bytes, whole - piece_at_);
    const std::size_t before = std::max(piece_at_, kChunkHeaderSize);
    piece_at_ += part;
    bytes -= part;
    const bool through = piece_at_ == whole;
    if (!validation_) {
      const std::size_t payload = std::max(piece_at_, kChunkHeaderSize) - before;
      progress.carried = true;
      progress.bytes += payload;
      progress.released += through ? 1 : 0;
      if (piece.again) {
        progress.retransmitted_bytes += payload;
        progress.retransmitted += through ? 1 : 0;
      }
    }
    if (through) {
      piece_at_ = 0;
      sending_ = ++batch_at_ != batch_.size();
      if (!sending_ && batch_.size() >= core::BatchSize::kLeast) {
        batch_size_.through(batch_.size(), host::monotonic_ns() - batch_began_);
      }
    }
  }
}

void TcpLinkOut::poll(core::SendCore& core, host::SendProgress& progress) {
  while (!over_ && !(progress.peer_closed && core.unacknowledged())) {
    std::array<std::byte, kReadBack> buffer;
    const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (count <= 0) {
      over_ = true;
      break;
    }
    progress.answered = true;
    in_.insert(in_.end(), buffer.begin(), buffer.begin() + count);
    if (!parse(core, progress)) {
      over_ = true;
      break;
    }
    if (static_cast<std::size_t>(count) < buffer.size()) {
      return;
    }
  }
  if (over_) {
    progress.dead = pages::PathDownReason::socket_error;
  }
}

// False: the bytes are not ours.
bool TcpLinkOut::parse(core::SendCore& core, host::SendProgress& progress) {
  std::size_t at = 0;
  while (in_.size() - at >= kFrameHeaderSize) {
    const std::span<const std::byte> rest(in_.data() + at, in_.size() - at);
    const auto header = host::decode_frame_header(rest);
    if (!header || host::carries_payload(header->type) || header->comm != comm_ ||
        !host::speaks(version_, header->type)) {
      return false;
    }
    if (rest.size() < kFrameHeaderSize + header->length) {
      break;
    }
    if (!handle(*header, rest.subspan(kFrameHeaderSize, header->length), core, progress)) {
      return false;
    }
    at += kFrameHeaderSize + header->length;
    if (progress.peer_closed && core.unacknowledged()) {
      break;  // a close with sends pending: the comm ends
    }
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

bool TcpLinkOut::handle(const host::FrameHeader& header, std::span<const std::byte> body,
                        core::SendCore& core, host::SendProgress& progress) {
  switch (header.type) {
    case FrameType::cts: {
      const auto cts = host::decode_cts(body);
      if (cts) {
        core.on_cts(*cts);
      }
      return cts.has_value();
    }
    case FrameType::acknowledge: {
      const auto acknowledged = host::decode_acknowledge(body);
      if (acknowledged) {
        core.on_acknowledge(acknowledged->first, acknowledged->second);
        progress.acknowledged = true;
      }
      return acknowledged.has_value();
    }
    case FrameType::state: {
      const auto frame = host::decode_state(body);
      if (frame) {
        core.on_state(frame->state);
      }
      return frame.has_value();
    }
    case FrameType::path_validation_done:
      progress.validated = true;
      return true;
    case FrameType::close:
      progress.peer_closed = true;
      return true;
    default:
      return false;
  }
}

std::optional<core::PathSample> TcpLinkOut::sample() { return tcp::sample(fd_.get()); }

std::size_t TcpLinkOut::backlog() const { return waiting_bytes(fd_.get()); }

void TcpLinkOut::limit_unsent(std::size_t bytes) {
  if (bytes != unsent_limit_) {
    unsent_limit_ = bytes;
    set_unsent_limit(fd_.get(), bytes);
  }
}

void TcpLinkOut::close() {
  if (sending_) {
    return;  // in the middle of a chunk the frame would be taken for payload
  }
  host::Bytes frame;
  host::append_frame(frame, FrameType::close, comm_);
  [[maybe_unused]] const auto sent =
      ::send(fd_.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void TcpLinkOut::discard() { reset_on_close(fd_.get()); }

bool TcpLinkOut::quiesce() {
  fd_.reset();
  return true;
}

}  // namespace fabric::tcp
