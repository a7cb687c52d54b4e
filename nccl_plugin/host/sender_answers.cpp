// What comes back to a Sender on its connections: grants, acknowledgements, states, a close.
#include <sys/socket.h>

#include <cerrno>

#include "core/schedule.h"
#include "host/sender.h"

namespace fabric::host {

namespace {

constexpr std::size_t kReadBack = std::size_t{16} * 1024;

}  // namespace

// After everything that may have brought acknowledgements.
void Sender::count_delivered() {
  if (core_.delivered().empty()) {
    return;
  }
  const std::uint64_t now = context_.clock.now();
  for (const core::Delivered& message : core_.delivered()) {
    const std::size_t rail = core::sender_rail(message.path);
    if (message.timed) {
      tally_.delivered(context_.clock, rail, TickClock::span(message.stamp, now));
    } else {
      tally_.messages[rail].add(1);
    }
  }
  core_.clear_delivered();
}

void Sender::read_back(core::PathIndex index) {
  Path& path = paths_[index];
  while (path.life.live()) {
    std::array<std::byte, kReadBack> buffer;
    const ssize_t count = ::recv(path.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (count <= 0) {
      if (!peer_closed_) {
        fail(index, pages::PathDownReason::socket_error);
      }
      return;
    }
    answering_ |= core::bit(index);
    heard_ = true;
    path.in.insert(path.in.end(), buffer.begin(), buffer.begin() + count);
    const bool ours = parse(index);
    count_delivered();
    if (!ours) {
      fail(index, pages::PathDownReason::socket_error);
      return;
    }
    if (static_cast<std::size_t>(count) < buffer.size()) {
      return;
    }
  }
}

// False: the bytes are not ours.
bool Sender::parse(core::PathIndex index) {
  Bytes& in = paths_[index].in;
  std::size_t at = 0;
  while (in.size() - at >= kFrameHeaderSize) {
    const std::span<const std::byte> rest(in.data() + at, in.size() - at);
    const auto header = decode_frame_header(rest);
    if (!header || carries_payload(header->type) || header->comm != id_ ||
        !speaks(facts_.version, header->type)) {
      return false;
    }
    if (rest.size() < kFrameHeaderSize + header->length) {
      break;
    }
    if (!handle(index, *header, rest.subspan(kFrameHeaderSize, header->length))) {
      return false;
    }
    at += kFrameHeaderSize + header->length;
    if (!paths_[index].life.live()) {
      break;  // a close, with sends pending
    }
  }
  in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

bool Sender::handle(core::PathIndex index, const FrameHeader& header,
                    std::span<const std::byte> body) {
  switch (header.type) {
    case FrameType::grant: {
      const auto grant = decode_grant(body);
      if (grant) {
        core_.on_grant(*grant);
      }
      return grant.has_value();
    }
    case FrameType::acknowledge: {
      const auto acknowledged = decode_acknowledge(body);
      if (acknowledged) {
        core_.on_acknowledge(acknowledged->first, acknowledged->second);
        moved_ = true;
      }
      return acknowledged.has_value();
    }
    case FrameType::state: {
      const auto frame = decode_state(body);
      if (frame) {
        core_.on_state(frame->state);
      }
      return frame.has_value();
    }
    case FrameType::trial_done:
      if (!paths_[index].tried) {
        paths_[index].tried = true;
        validations_.push_back({index, paths_[index].up_since, true});
        add(context_.stats.rails[core::sender_rail(index)].trials, 1);
      }
      return true;
    case FrameType::close:
      peer_closed_ = true;
      if (core_.unacknowledged()) {
        abort_inside(Result::remote_error, "the peer closed the communicator with sends pending");
      }
      return true;
    default:
      return false;
  }
}

}  // namespace fabric::host
