// Outgoing connections: connect, hello, welcome, within a time limit. Control thread only.
#pragma once

#include <functional>
#include <map>

#include "host/context.h"
#include "host/poller.h"

namespace fabric::host {

enum class DialOutcome {
  welcome,  // answered; `welcome.status` says what
  refused,  // nobody listens there
  failed,   // no answer, no route, no carrier, or hung up on
};

struct DialResult {
  DialOutcome outcome = DialOutcome::failed;
  Fd fd;
  Welcome welcome;
};

class Dialer {
 public:
  using Done = std::function<void(DialResult)>;

  Dialer(Context& context, Poller& poller) : context_(context), poller_(poller) {}
  // `done` is called exactly once, from tick() or an event, never from within dial().
  void dial(std::size_t local_rail, const Address& to, const Hello& hello, const Secret& secret,
            Done done);
  void tick(std::int64_t now);
  // Gives up what is under way, and tells nobody: the one case in which `done` is not called.
  void drop();

 private:
  struct Attempt {
    Fd fd;
    HelloBytes hello{};
    std::uint64_t nonce = 0;
    Secret secret{};
    WelcomeBytes welcome{};
    std::size_t got = 0;
    bool connected = false;
    bool refused = false;
    std::int64_t until = 0;
    Done done;
  };
  void on_event(std::uint64_t id);
  void finish(std::uint64_t id, DialResult result);

  Context& context_;
  Poller& poller_;
  std::map<std::uint64_t, Attempt> attempts_;
  std::uint64_t next_ = 1;
};

}  // namespace fabric::host
