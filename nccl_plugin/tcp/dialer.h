// Outgoing connections: connect, hello, proof, welcome, each within a time limit. Control thread
// only.
#pragma once

#include <functional>
#include <map>

#include "host/context.h"
#include "host/fd.h"
#include "host/handshake.h"
#include "host/network.h"
#include "host/poller.h"

namespace fabric::tcp {

class Dialer {
 public:
  using Done = host::Network::Done;

  // Whether a descriptor could be freed for one that is needed.
  using MakeRoom = std::function<bool()>;

  Dialer(host::Context& context, host::Poller& poller, MakeRoom make_room)
      : context_(context), poller_(poller), make_room_(std::move(make_room)) {}
  // `done` is called exactly once, from tick() or an event, never from within dial().
  void dial(std::size_t local_rail, const host::Address& to, const host::Hello& hello,
            const host::Secret& secret, Done done);
  void tick(std::int64_t now);
  // Gives up what is under way, and tells nobody: the one case in which `done` is not called.
  void drop();

 private:
  struct Attempt {
    Attempt(const host::Hello& hello, const host::Secret& secret, Done when_done)
        : handshake(hello, secret), done(std::move(when_done)) {}
    host::Fd fd;
    host::DialerHandshake handshake;
    bool connected = false;
    bool refused = false;
    std::int64_t until = 0;
    Done done;
  };
  void on_event(std::uint64_t id);
  void finish(std::uint64_t id, host::DialResult result);

  host::Context& context_;
  host::Poller& poller_;
  MakeRoom make_room_;
  std::map<std::uint64_t, Attempt> attempts_;
  std::uint64_t next_ = 1;
};

}  // namespace fabric::tcp
