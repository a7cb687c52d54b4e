#include "tcp/acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "host/monotonic.h"
#include "tcp/connection.h"
#include "tcp/socket.h"

namespace fabric::tcp {

using host::add;
using host::kHelloSize;
using host::kMs;
using host::monotonic_ns;

namespace {

constexpr std::int64_t kHelloNs = 2'000 * kMs;
constexpr std::size_t kMaxPending = 512;
constexpr std::int64_t kRestNs = 100 * kMs;

}  // namespace

std::string Acceptor::open() {
  std::string complaints;
  std::size_t opened = 0;
  for (std::size_t i = 0; i < context_.rails.size(); ++i) {
    std::string error;
    Fd fd = listen_on(context_.rails[i], error);
    if (!fd.open()) {
      complaints += error + "; ";
    } else {
      ++opened;
    }
    listeners_.push_back(std::move(fd));
    watch(i);
  }
  return opened != 0 ? std::string() : "no listener: " + complaints;
}

std::string Acceptor::reopen(std::size_t index, Rail& rail) {
  if (listeners_[index].open()) {
    poller_.remove(listeners_[index].get());
    listeners_[index].reset();
  }
  std::string error;
  listeners_[index] = listen_on(rail, error);
  resting_ &= ~(std::uint64_t{1} << index);
  watch(index);
  return error;
}

std::string Acceptor::add_rail(Rail& rail) {
  listeners_.emplace_back();
  const std::size_t index = listeners_.size() - 1;
  std::string error = reopen(index, rail);
  if (!error.empty()) {
    listeners_.pop_back();
  }
  return error;
}

void Acceptor::close() {
  for (Fd& listener : listeners_) {
    poller_.remove(listener.get());
    listener.reset();
  }
  for (const auto& [id, pending] : pending_) {
    poller_.remove(pending.fd.get());
  }
  pending_.clear();
}

void Acceptor::watch(std::size_t rail) {
  if (listeners_[rail].open()) {
    poller_.add(listeners_[rail].get(), EPOLLIN, [this, rail](std::uint32_t) { accept(rail); });
  }
}

void Acceptor::rest(std::size_t rail, int error) {
  const std::int64_t now = monotonic_ns();
  poller_.remove(listeners_[rail].get());
  resting_ |= std::uint64_t{1} << rail;
  rest_until_ = now + kRestNs;
  if (context_.shortage.note(error, now)) {
    context_.say(LogLevel::warn,
                 "cannot accept connections now, and will try again until "
                 "FABRIC_DEADLINE: " +
                     context_.shortage.text());
  }
}

bool Acceptor::waits(std::size_t rail) const {
  pollfd listener{listeners_[rail].get(), POLLIN, 0};
  // With a limit of 0 descriptors poll(2) fails, too: then it is not known that nobody waits.
  return ::poll(&listener, 1, 0) != 0;
}

void Acceptor::accept(std::size_t rail) {
  while (true) {
    Fd fd = Fd::opened([&] {
      return ::accept4(listeners_[rail].get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (!fd.open()) {
      const int error = errno;
      // The kernel wants a descriptor before it looks for a connection.
      if ((error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) &&
          waits(rail)) {
        rest(rail, error);
      }
      return;
    }
    if (pending_.size() >= kMaxPending) {
      drop(pending_.begin()->first, true);
    }
    const std::uint64_t id = next_++;
    Pending& pending = pending_[id];
    pending.fd = std::move(fd);
    pending.rail = rail;
    pending.until = monotonic_ns() + kHelloNs;
    poller_.add(pending.fd.get(), EPOLLIN | EPOLLRDHUP,
                [this, id](std::uint32_t) { on_event(id); });
    on_event(id);  // who has spoken already does not count among those that may be dropped
  }
}

void Acceptor::on_event(std::uint64_t id) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) {
    return;
  }
  Pending& pending = found->second;
  while (pending.got < kHelloSize) {
    const ssize_t got = ::recv(pending.fd.get(), pending.hello.data() + pending.got,
                               kHelloSize - pending.got, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == EAGAIN) {
      return;
    }
    if (got <= 0) {
      drop(id, pending.got != 0);  // whoever said nothing at all is no intruder
      return;
    }
    const bool first = pending.got < sizeof host::kHelloMagic;
    pending.got += static_cast<std::size_t>(got);
    if (first && pending.got >= sizeof host::kHelloMagic && !host::claim_of(pending.hello)) {
      drop(id, true);
      return;
    }
  }
  const auto claim = host::claim_of(pending.hello);
  const auto secret = claim ? secret_of_(*claim) : std::nullopt;
  const auto hello = secret ? host::decode_hello(pending.hello, *secret) : std::nullopt;
  if (!hello || hello->acceptor_rail != pending.rail) {
    drop(id, true);
    return;
  }
  std::byte probe{};
  if (::recv(pending.fd.get(), &probe, 1, MSG_DONTWAIT | MSG_PEEK) == 0) {
    drop(id, false);  // an attempt that the dialler gave up while we were away
    return;
  }
  Fd fd = std::move(pending.fd);
  const std::size_t rail = pending.rail;
  poller_.remove(fd.get());
  pending_.erase(found);
  tune(fd.get(), hello->kind == host::HelloKind::data ? Purpose::data : Purpose::control,
       context_.params);
  on_hello_(*hello, *secret, rail, std::make_unique<TcpConnection>(std::move(fd)));
}

void Acceptor::drop(std::uint64_t id, bool count) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) {
    return;
  }
  poller_.remove(found->second.fd.get());
  pending_.erase(found);
  if (count) {
    add(context_.stats.refused_peers, 1);
  }
}

void Acceptor::tick(std::int64_t now) {
  if (resting_ != 0 && now >= rest_until_) {
    const std::uint64_t rested = std::exchange(resting_, 0);
    for (std::size_t rail = 0; rail < listeners_.size(); ++rail) {
      if ((rested & std::uint64_t{1} << rail) != 0) {
        watch(rail);
      }
    }
  }
  while (!pending_.empty() && pending_.begin()->second.until <= now) {
    drop(pending_.begin()->first, true);
  }
}

}  // namespace fabric::tcp
