// Incoming connections: one listener per rail; a connection becomes ours once it has proved its
// hello (host/handshake.h). Strangers are counted and dropped, and never hold up anybody: each has
// its own buffer and time limit. There is a limit to their number, which follows that of
// descriptors, and one that is needed is taken from the oldest of them. Control thread only.
#pragma once

#include <map>
#include <set>

#include "host/context.h"
#include "host/fd.h"
#include "host/handshake.h"
#include "host/network.h"
#include "host/poller.h"

namespace fabric::tcp {

class Acceptor {
 public:
  using SecretOf = host::Network::SecretOf;
  using OnHello = host::Network::OnHello;

  Acceptor(host::Context& context, host::Poller& poller, SecretOf secret_of, OnHello on_hello)
      : context_(context),
        poller_(poller),
        secret_of_(std::move(secret_of)),
        on_hello_(std::move(on_hello)) {}
  // Opens the listeners and writes their ports into the context's rails; "" or what went wrong.
  std::string open();
  // The rail has another address or device: listens there, on its port if that is free, and writes
  // the port. "" or what went wrong.
  std::string reopen(std::size_t index, host::Rail& rail);
  // For a rail that was not there before: the next one. "" or what went wrong, and nothing changed.
  std::string add_rail(host::Rail& rail);
  // Whoever comes is refused by the kernel from now on.
  void close();
  [[nodiscard]] bool listening(std::size_t rail) const { return listeners_[rail].open(); }
  void tick(std::int64_t now);
  // No descriptor is free: gives up the oldest stranger, or whoever does not answer a challenge.
  // False: there is nobody of that kind.
  bool make_room();

 private:
  struct Pending {
    host::Fd fd;
    std::size_t rail = 0;
    host::AcceptorHandshake handshake;
    // It showed a hello of ours, and has not proved it yet. Until then it is a stranger.
    bool challenged = false;
    std::int64_t since = 0;  // ns, it is that
    std::int64_t until = 0;
  };
  using Entry = std::map<std::uint64_t, Pending>::iterator;
  void accept(std::size_t rail);
  void admit(host::Fd fd, std::size_t rail);
  void watch(std::size_t rail);
  // There is no descriptor for another connection: the listener would be readable for ever.
  void rest(std::size_t rail, int error);
  // Somebody has connected there, and was not accepted yet.
  [[nodiscard]] bool waits(std::size_t rail) const;
  void on_event(std::uint64_t id);
  // False: it is not pending any more.
  bool on_bytes(Entry pending, std::size_t count);
  bool challenge(Entry pending);
  void hand_over(Entry pending);
  void drop(Entry pending, bool count);
  bool drop_oldest_stranger();
  void say_recorded(const host::Address& from, std::int64_t now);

  host::Context& context_;
  host::Poller& poller_;
  SecretOf secret_of_;
  OnHello on_hello_;
  std::vector<host::Fd> listeners_;
  std::uint64_t resting_ = 0;  // bits of rails; until
  std::int64_t rest_until_ = 0;
  std::map<std::uint64_t, Pending> pending_;  // oldest first
  std::size_t strangers_ = 0;                 // of them
  std::set<std::uint64_t> challenged_;        // nonces of the others' hellos
  std::int64_t next_line_ = 0;                // of say_recorded()
  std::uint64_t next_ = 1;
};

}  // namespace fabric::tcp
