#include "tcp/dialer.h"

#include <sys/socket.h>

#include <cerrno>

#include "host/monotonic.h"
#include "tcp/connection.h"
#include "tcp/socket.h"

namespace fabric::tcp {

using host::DialOutcome;
using host::DialResult;
using host::kMs;

namespace {

constexpr std::int64_t kConnectNs = 300 * kMs;  // a lost SYN: start anew before TCP's own second
constexpr std::int64_t kWelcomeNs = 700 * kMs;  // for each answer

// Whether all of so few bytes went out; nothing: the connection is not there yet.
std::optional<bool> sent(int fd, std::span<const std::byte> bytes) {
  const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count < 0 && (errno == EAGAIN || errno == ENOTCONN)) {
    return std::nullopt;
  }
  return count == static_cast<ssize_t>(bytes.size());
}

}  // namespace

void Dialer::dial(std::size_t local_rail, const host::Address& to, const host::Hello& hello,
                  const host::Secret& secret, Done done) {
  const std::uint64_t id = next_++;
  Attempt& attempt = attempts_.try_emplace(id, hello, secret, std::move(done)).first->second;
  attempt.fd = start_connect(context_.rails[local_rail], to, context_.params);
  if (!attempt.fd.open() && (errno == EMFILE || errno == ENFILE) && make_room_()) {
    attempt.fd = start_connect(context_.rails[local_rail], to, context_.params);
  }
  const int error = attempt.fd.open() ? 0 : errno;
  if (context_.shortage.note(error, host::monotonic_ns())) {
    context_.say(LogLevel::warn, "cannot connect now, and will try again until FABRIC_DEADLINE: " +
                                     context_.shortage.text());
  }
  if (error != 0) {
    attempt.refused = error == ECONNREFUSED;
    attempt.until = 0;  // tick() reports it
    return;
  }
  attempt.until = host::monotonic_ns() + kConnectNs;
  tune(attempt.fd.get(), hello.kind == host::HelloKind::data ? Purpose::data : Purpose::control,
       context_.params);
  poller_.add(attempt.fd.get(), EPOLLIN | EPOLLOUT | EPOLLET,
              [this, id](std::uint32_t) { on_event(id); });
}

void Dialer::on_event(std::uint64_t id) {
  const auto found = attempts_.find(id);
  if (found == attempts_.end()) {
    return;
  }
  Attempt& attempt = found->second;
  const int fd = attempt.fd.get();
  if (!attempt.connected) {
    const int error = connect_error(fd);
    if (error != 0) {
      finish(id, {error == ECONNREFUSED ? DialOutcome::refused : DialOutcome::failed, {}, {}});
      return;
    }
    const auto went = sent(fd, attempt.handshake.hello());
    if (!went) {
      return;
    }
    if (!*went) {
      finish(id, {});
      return;
    }
    attempt.connected = true;
    attempt.until = host::monotonic_ns() + kWelcomeNs;
  }
  using Next = host::DialerHandshake::Next;
  Next next = Next::more;
  while (next != Next::done) {
    const std::span<std::byte> room = attempt.handshake.room();
    const ssize_t got = ::recv(fd, room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == EAGAIN) {
      return;
    }
    // Hung up on: by a reset on the way, or by a stranger. That proves nobody's death.
    next = got <= 0 ? Next::failed : attempt.handshake.received(static_cast<std::size_t>(got));
    if (next == Next::prove) {
      attempt.until = host::monotonic_ns() + kWelcomeNs;
      if (!sent(fd, attempt.handshake.proof()).value_or(false)) {
        next = Next::failed;
      }
    }
    if (next == Next::failed) {
      finish(id, {});
      return;
    }
  }
  const host::Welcome welcome = attempt.handshake.welcome();
  poller_.remove(fd);
  finish(id,
         {DialOutcome::welcome, std::make_unique<TcpConnection>(std::move(attempt.fd)), welcome});
}

void Dialer::finish(std::uint64_t id, DialResult result) {
  const auto found = attempts_.find(id);
  if (found == attempts_.end()) {
    return;
  }
  Attempt attempt = std::move(found->second);
  attempts_.erase(found);
  if (attempt.fd.open()) {
    poller_.remove(attempt.fd.get());
  }
  attempt.done(std::move(result));
}

void Dialer::drop() {
  for (const auto& [id, attempt] : attempts_) {
    poller_.remove(attempt.fd.get());
    reset_on_close(attempt.fd.get());
  }
  attempts_.clear();
}

void Dialer::tick(std::int64_t now) {
  std::vector<std::uint64_t> over;
  for (const auto& [id, attempt] : attempts_) {
    if (now >= attempt.until) {
      over.push_back(id);
    }
  }
  for (const std::uint64_t id : over) {
    const auto found = attempts_.find(id);
    if (found != attempts_.end()) {
      const bool refused = found->second.refused;
      finish(id, {refused ? DialOutcome::refused : DialOutcome::failed, {}, {}});
    }
  }
}

}  // namespace fabric::tcp
