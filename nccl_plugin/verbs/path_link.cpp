#include "verbs/path_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace fabric::verbs {

using host::FrameType;
using pages::PathDownReason;

AnyOf::AnyOf() : epoll_(host::Fd::opened([] { return ::epoll_create1(EPOLL_CLOEXEC); })) {}

void AnyOf::add(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  if (fd >= 0 && epoll_.open()) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
}

PathLinkOut::PathLinkOut(std::unique_ptr<verbs::LinkOut> link,
                         std::unique_ptr<host::Connection> connection, std::uint64_t comm,
                         std::shared_ptr<PathHistory> history, std::function<std::int64_t()> now)
    : link_(std::move(link)),
      side_(std::move(connection), comm),
      history_(std::move(history)),
      now_(std::move(now)),
      made_at_(now_()) {
  any_.add(side_.descriptor());
  any_.add(link_->descriptor());
  host::append_terms(side_.out(), comm, encode(link_->terms()));
  side_.flush();  // one that failed is over: poll() says so
}

PathLinkOut::~PathLinkOut() {
  note_end();
  if (link_->memory_fault()) {
    history_->memory_unknown(now_());
  }
}

// What its port says of itself is no fault of the path over verbs. A life is what it could carry:
// one beside a stream that did not pass its validation had none, however long that took.
void PathLinkOut::note_end() {
  if (std::exchange(ended_, true)) {
    return;
  }
  const std::int64_t now = now_();
  if (!link_->proved()) {
    history_->never_connected(now);
  } else if (closed_ || link_->port_down()) {
    return;
  } else if (in_service_since_ == 0) {
    history_->not_validated(now);
  } else {
    const std::int64_t since = std::max(proved_at_, in_service_since_);
    history_->lost_after(proved_at_ == 0 ? 0 : now - since, now);
  }
}

bool PathLinkOut::take(const host::FrameHeader& header, std::span<const std::byte> body,
                       core::SendCore& core, host::SendProgress& progress) {
  progress.answered = true;
  switch (header.type) {
    case FrameType::terms: {
      const auto terms = decode_path_terms(body);
      Error error;
      if (!terms || connected_ || !link_->connect(*terms, core, error)) {
        why_ = terms ? error.text : "the peer's terms make no sense";
        return false;
      }
      connected_ = true;
      return true;
    }
    case FrameType::state:
      if (const auto frame = host::decode_state(body)) {
        core.on_state(frame->state);
        return true;
      }
      return false;
    case FrameType::close:
      progress.peer_closed = true;
      return true;
    default:
      return false;
  }
}

// Whose peer is slow to answer, or does not.
constexpr std::int64_t kConnectNs = 2'000'000'000;

void PathLinkOut::poll(core::SendCore& core, host::SendProgress& progress) {
  if (!link_->proved() && now_() - made_at_ > kConnectNs) {
    why_ = "no queue pair of the peer's answered";
    progress.dead = PathDownReason::connect_failed;
    return;
  }
  // First what landed: the peer's last words come after it.
  if (connected_) {
    link_->poll(core, progress);
    proved_at_ = link_->proved() && proved_at_ == 0 ? now_() : proved_at_;
    if (!glance_.due(now_())) {
      return;
    }
  }
  const bool open =
      side_.read([&](const host::FrameHeader& header, std::span<const std::byte> body) {
        return take(header, body, core, progress);
      });
  if ((!open || !side_.flush()) && !progress.dead) {
    progress.dead = PathDownReason::socket_error;
  }
}

void PathLinkOut::advance(host::SendProgress& progress) {
  if (connected_) {
    link_->advance(progress);
  }
}

std::optional<core::PathSample> PathLinkOut::sample() {
  return connected_ ? link_->sample() : core::PathSample();
}

void PathLinkOut::close() {
  closed_ = true;
  host::append_frame(side_.out(), FrameType::close, side_.comm());
  side_.flush();
}

void PathLinkOut::discard() {
  side_.discard();
  link_->discard();
}

bool PathLinkOut::quiesce() {
  note_end();
  return link_->quiesce();
}

PathLinkIn::PathLinkIn(std::unique_ptr<verbs::LinkIn> link,
                       std::unique_ptr<host::Connection> connection, std::uint64_t comm,
                       std::shared_ptr<PathHistory> history, std::function<std::int64_t()> now)
    : link_(std::move(link)),
      side_(std::move(connection), comm),
      history_(std::move(history)),
      now_(std::move(now)) {
  any_.add(side_.descriptor());
  any_.add(link_->descriptor());
}

bool PathLinkIn::take(const host::FrameHeader& header, std::span<const std::byte> body,
                      host::ReceiveProgress& progress) {
  switch (header.type) {
    case FrameType::terms: {
      const auto terms = decode_path_terms(body);
      Error error;
      if (!terms || connected_ || !link_->connect(*terms, error)) {
        why_ = terms ? error.text : "the peer's terms make no sense";
        return false;
      }
      connected_ = true;
      connected_at_ = now_();
      host::append_terms(side_.out(), side_.comm(), encode(link_->terms()));
      progress.wrote = true;
      return true;
    }
    case FrameType::close:
      closed_ = true;
      progress.peer_closed = true;
      return true;
    default:
      return false;
  }
}

void PathLinkIn::prepare(host::ReceiveProgress& progress) {
  const auto on_frame = [&](const host::FrameHeader& header, std::span<const std::byte> body) {
    return take(header, body, progress);
  };
  if ((!connected_ && !side_.read(on_frame)) || !side_.flush()) {
    progress.dead = PathDownReason::socket_error;
  }
}

void PathLinkIn::poll(core::ReceiveCore& core, const host::ReceiveHints& hints,
                      host::ReceiveProgress& progress) {
  const bool look = !connected_ || glance_.due(now_());
  const bool open =
      !look || (side_.read([&](const host::FrameHeader& header, std::span<const std::byte> body) {
        return take(header, body, progress);
      }) && side_.flush());
  // Whatever the sender wrote before it said close has landed, for it waited for that.
  if (connected_) {
    link_->poll(core, hints, progress);
  }
  if (!open && !progress.dead) {
    progress.dead = PathDownReason::socket_error;
  }
}

void PathLinkIn::answer(core::ReceiveCore& core, host::ReceiveProgress& progress) {
  if (connected_) {
    link_->answer(core, progress);
  }
}

bool PathLinkIn::send_state(const core::ReceiverState& state, host::ReceiveProgress& progress) {
  host::append_state(side_.out(), side_.comm(), {std::nullopt, state});
  flush(progress);
  return true;
}

void PathLinkIn::flush(host::ReceiveProgress& progress) {
  if (!side_.flush()) {
    progress.dead = PathDownReason::socket_error;
  }
}

std::optional<core::PathSample> PathLinkIn::sample() {
  return connected_ ? link_->sample() : side_.sample();
}

bool PathLinkIn::quiesce() {
  if (!std::exchange(ended_, true) && connected_ && !closed_ && !link_->port_down()) {
    history_->lost_after(now_() - connected_at_, now_());
  }
  return link_->quiesce();
}

void PathLinkIn::close(const core::ReceiverState& last) {
  closed_ = true;
  host::append_state(side_.out(), side_.comm(), {std::nullopt, last});
  host::append_frame(side_.out(), FrameType::close, side_.comm());
  side_.flush();
}

void PathLinkIn::discard() {
  side_.discard();
  link_->discard();
}

}  // namespace fabric::verbs
