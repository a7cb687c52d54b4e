// What goes back to the sender: CTS messages, acknowledgements, states.
#include <sys/socket.h>

#include <cerrno>

#include "tcp/link_in.h"
#include "tcp/socket.h"

namespace fabric::tcp {

using host::FrameType;

void TcpLinkIn::answer(core::ReceiveCore& core, host::ReceiveProgress& progress) {
  if (const auto below = core.next_done_below()) {
    host::append_state(out_, comm_, {std::nullopt, {*below, {}}});
  }
  while (const auto acknowledged = core.next_acknowledgement()) {
    host::append_acknowledge(out_, comm_, acknowledged->group, acknowledged->slot);
  }
  while (const auto cts = core.next_cts()) {
    host::append_cts(out_, comm_, *cts);
  }
  flush(progress);
}

bool TcpLinkIn::send_state(const core::ReceiverState& state, host::ReceiveProgress& progress) {
  host::append_state(out_, comm_, {std::nullopt, state});
  flush(progress);
  return true;
}

void TcpLinkIn::flush(host::ReceiveProgress& progress) {
  while (out_at_ < out_.size()) {
    const ssize_t count = ::send(fd_.get(), out_.data() + out_at_, out_.size() - out_at_,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) {
      return;
    }
    if (count < 0) {
      progress.dead = pages::PathDownReason::socket_error;
      return;
    }
    progress.wrote = true;
    out_at_ += static_cast<std::size_t>(count);
  }
  out_.clear();
  out_at_ = 0;
}

void TcpLinkIn::acknowledge() { tcp::acknowledge(fd_.get()); }

std::optional<core::PathSample> TcpLinkIn::sample() { return tcp::sample(fd_.get()); }

std::size_t TcpLinkIn::backlog() const { return waiting_bytes(fd_.get()); }

void TcpLinkIn::close(const core::ReceiverState& last) {
  host::append_state(out_, comm_, {std::nullopt, last});
  host::append_frame(out_, FrameType::close, comm_);
  [[maybe_unused]] const auto sent =
      ::send(fd_.get(), out_.data() + out_at_, out_.size() - out_at_, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void TcpLinkIn::discard() { reset_on_close(fd_.get()); }

}  // namespace fabric::tcp
