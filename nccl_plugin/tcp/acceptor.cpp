#include "tcp/acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "host/descriptor_budget.h"
#include "host/monotonic.h"
#include "host/random.h"
#include "tcp/connection.h"
#include "tcp/socket.h"

namespace fabric::tcp {

using host::add;
using host::DescriptorBudget;
using host::kMs;
using host::monotonic_ns;

namespace {

// Whoever dials has given up by then (tcp/dialer.cpp).
constexpr std::int64_t kHelloNs = 1'000 * kMs;
constexpr std::int64_t kProofNs = 1'000 * kMs;
constexpr std::int64_t kProofDueNs = 200 * kMs;  // later, whoever needs the descriptor comes first
constexpr std::int64_t kRestNs = 100 * kMs;
constexpr int kAtOnce = 64;  // then other events have their turn
constexpr std::int64_t kLineNs = 60'000 * kMs;

host::ChallengeNonce draw_nonce() { return {host::random_number(), host::random_number()}; }

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
  challenged_.clear();
  strangers_ = 0;
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
  for (int left = kAtOnce; left > 0; --left) {
    Fd fd = Fd::opened([&] {
      return ::accept4(listeners_[rail].get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (!fd.open()) {
      const int error = errno;
      // The kernel wants a descriptor before it looks for a connection.
      if ((error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) &&
          waits(rail)) {
        if (make_room()) {
          continue;
        }
        rest(rail, error);
      }
      return;
    }
    admit(std::move(fd), rail);
  }
}

void Acceptor::admit(Fd fd, std::size_t rail) {
  const DescriptorBudget budget = DescriptorBudget::now();
  if (strangers_ >= budget.strangers) {
    drop_oldest_stranger();
  }
  if (static_cast<std::size_t>(fd.get()) >= budget.reserved_from &&
      strangers_ >= DescriptorBudget::kLeast && drop_oldest_stranger()) {
    // To the number that is free now, so that the next one shows again how many are in use.
    Fd lower = Fd::opened([&] { return ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0); });
    if (lower.open()) {
      fd = std::move(lower);
    }
  }
  const std::uint64_t id = next_++;
  Pending& pending = pending_[id];
  ++strangers_;
  pending.fd = std::move(fd);
  pending.rail = rail;
  pending.since = monotonic_ns();
  pending.until = pending.since + kHelloNs;
  poller_.add(pending.fd.get(), EPOLLIN | EPOLLRDHUP, [this, id](std::uint32_t) { on_event(id); });
  on_event(id);  // who has spoken already does not count among those that may be dropped
}

void Acceptor::on_event(std::uint64_t id) {
  while (true) {
    const Entry found = pending_.find(id);
    if (found == pending_.end()) {
      return;
    }
    Pending& pending = found->second;
    const std::span<std::byte> room = pending.handshake.room();
    const ssize_t got = ::recv(pending.fd.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == EAGAIN) {
      return;
    }
    if (got <= 0) {
      // Whoever said nothing at all is no intruder, nor is one that gives an attempt up.
      drop(found, pending.handshake.begun() && !pending.challenged);
      return;
    }
    if (!on_bytes(found, static_cast<std::size_t>(got))) {
      return;
    }
  }
}

bool Acceptor::on_bytes(Entry entry, std::size_t count) {
  using Next = host::AcceptorHandshake::Next;
  Pending& pending = entry->second;
  const auto highest = static_cast<std::uint8_t>(context_.params.wire_max);
  const Next next = pending.handshake.received(count, highest, secret_of_, draw_nonce);
  if (next == Next::more) {
    return true;
  }
  if (next == Next::refuse && pending.challenged) {
    say_recorded(far_end(pending.fd.get()), monotonic_ns());
  }
  if (next == Next::refuse || pending.handshake.hello().acceptor_rail != pending.rail) {
    drop(entry, true);
    return false;
  }
  if (next == Next::challenge) {
    return challenge(entry);
  }
  hand_over(entry);
  return false;
}

bool Acceptor::challenge(Entry entry) {
  Pending& pending = entry->second;
  // No hello is said twice: the second is a recording, and one at a time is enough of them.
  if (!challenged_.insert(pending.handshake.hello().nonce).second) {
    drop(entry, true);
    return false;
  }
  --strangers_;
  pending.challenged = true;
  pending.since = monotonic_ns();
  pending.until = pending.since + kProofNs;
  const host::ChallengeBytes& bytes = pending.handshake.challenge();
  if (::send(pending.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(bytes.size())) {
    drop(entry, false);
    return false;
  }
  return true;
}

void Acceptor::hand_over(Entry entry) {
  Pending& pending = entry->second;
  std::byte probe{};
  if (::recv(pending.fd.get(), &probe, 1, MSG_DONTWAIT | MSG_PEEK) == 0) {
    drop(entry, false);  // an attempt that the dialler gave up while we were away
    return;
  }
  Fd fd = std::move(pending.fd);
  const std::size_t rail = pending.rail;
  const host::Hello hello = pending.handshake.hello();
  const host::Secret secret = pending.handshake.secret();
  poller_.remove(fd.get());
  drop(entry, false);
  tune(fd.get(), hello.kind == host::HelloKind::data ? Purpose::data : Purpose::control,
       context_.params);
  on_hello_(hello, secret, rail, std::make_unique<TcpConnection>(std::move(fd)));
}

void Acceptor::drop(Entry entry, bool count) {
  Pending& pending = entry->second;
  if (pending.challenged) {
    challenged_.erase(pending.handshake.hello().nonce);
  } else {
    --strangers_;
  }
  poller_.remove(pending.fd.get());
  pending_.erase(entry);
  if (count) {
    add(context_.stats.refused_peers, 1);
  }
}

bool Acceptor::drop_oldest_stranger() {
  for (Entry entry = pending_.begin(); entry != pending_.end(); ++entry) {
    if (!entry->second.challenged) {
      drop(entry, true);
      return true;
    }
  }
  return false;
}

bool Acceptor::make_room() {
  if (drop_oldest_stranger()) {
    return true;
  }
  // All others are challenged, and those not in the order in which they are.
  const std::int64_t now = monotonic_ns();
  for (Entry entry = pending_.begin(); entry != pending_.end(); ++entry) {
    if (now - entry->second.since >= kProofDueNs) {
      drop(entry, true);
      return true;
    }
  }
  return false;
}

void Acceptor::say_recorded(const host::Address& from, std::int64_t now) {
  if (now >= next_line_) {
    next_line_ = now + kLineNs;
    context_.say(LogLevel::warn, "refused: " + from.text() +
                                     " repeats a hello of this job and cannot prove it. "
                                     "Somebody has recorded connections of this job");
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
  for (Entry next = pending_.begin(); next != pending_.end();) {
    const Entry entry = next++;
    if (entry->second.until <= now) {
      drop(entry, true);
    }
  }
}

}  // namespace fabric::tcp
