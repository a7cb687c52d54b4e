// Outgoing connections: connect, hello, welcome, within a time limit. Control thread only.
#pragma once

#include <map>

#include "host/context.h"
#include "host/fd.h"
#include "host/network.h"
#include "host/poller.h"

namespace fabric::tcp {

class Dialer {
 public:
  using Done = host::Network::Done;

  Dialer(host::Context& context, host::Poller& poller) : context_(context), poller_(poller) {}
  // `done` is called exactly once, from tick() or an event, never from within dial().
  void dial(std::size_t local_rail, const host::Address& to, const host::Hello& hello,
            const host::Secret& secret, Done done);
  void tick(std::int64_t now);
  // Gives up what is under way, and tells nobody: the one case in which `done` is not called.
  void drop();

 private:
  struct Attempt {
    host::Fd fd;
    host::HelloBytes hello{};
    std::uint64_t nonce = 0;
    host::Secret secret{};
    host::WelcomeBytes welcome{};
    std::size_t got = 0;
    bool connected = false;
    bool refused = false;
    std::int64_t until = 0;
    Done done;
  };
  void on_event(std::uint64_t id);
  void finish(std::uint64_t id, host::DialResult result);

  host::Context& context_;
  host::Poller& poller_;
  std::map<std::uint64_t, Attempt> attempts_;
  std::uint64_t next_ = 1;
};

}  // namespace fabric::tcp
