// Incoming connections: one listener per rail; a connection becomes ours once its hello is whole
// and signed with a secret that we gave out. Strangers are counted and dropped, and never hold up
// anybody: each has its own buffer and time limit, and there is a limit to their number.
// Control thread only.
#pragma once

#include <map>

#include "host/context.h"
#include "host/fd.h"
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

 private:
  struct Pending {
    host::Fd fd;
    std::size_t rail = 0;
    host::HelloBytes hello{};
    std::size_t got = 0;
    std::int64_t until = 0;
  };
  void accept(std::size_t rail);
  void watch(std::size_t rail);
  // There is no descriptor for another connection: the listener would be readable for ever.
  void rest(std::size_t rail, int error);
  // Somebody has connected there, and was not accepted yet.
  [[nodiscard]] bool waits(std::size_t rail) const;
  void on_event(std::uint64_t id);
  void drop(std::uint64_t id, bool count);

  host::Context& context_;
  host::Poller& poller_;
  SecretOf secret_of_;
  OnHello on_hello_;
  std::vector<host::Fd> listeners_;
  std::uint64_t resting_ = 0;  // bits of rails; until
  std::int64_t rest_until_ = 0;
  std::map<std::uint64_t, Pending> pending_;  // oldest first
  std::uint64_t next_ = 1;
};

}  // namespace fabric::tcp
