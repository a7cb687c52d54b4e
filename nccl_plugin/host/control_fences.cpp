// What the control thread does about fences (host/fenced_runs.h): nothing of a fenced incarnation
// is ever talked to again, and a process that is fenced itself talks to nobody.
#include <cinttypes>
#include <cstdio>

#include "host/control.h"

namespace fabric::host {

namespace {

std::string fence_text(std::uint64_t incarnation) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, incarnation);
  return std::string("fenced: FABRIC_INCARNATION ") + text.data() + " may not take part any more";
}

}  // namespace

bool Control::self_fenced() const { return context_.fenced_runs.hold(context_.run_incarnation); }

void Control::apply_fences(bool page_changed) {
  const SteerView* view = hints_.page();
  if (page_changed && view != nullptr) {
    context_.fenced_runs.learn(view->fences);
  }
  if (!context_.fenced_runs.any()) {
    return;
  }
  const bool self = self_fenced();
  if (self && !std::exchange(silenced_, true)) {
    context_.say(LogLevel::warn, "this process is " + fence_text(context_.run_incarnation));
    network_->close();
    context_.waits.signal();
  }
  for (auto* peers : {&outbound_, &inbound_}) {
    for (auto& [id, peer] : *peers) {
      if (!peer->fenced && (self || context_.fenced_runs.hold(peer->run_incarnation))) {
        peer->fenced = true;
        fence_off(*peer, self ? "this process is " + fence_text(context_.run_incarnation)
                              : peer->name() + " is " + fence_text(peer->run_incarnation));
      }
    }
  }
}

// What is under way is cut off on both sides: no byte of it reaches the peer, or a buffer here.
void Control::fence_off(Peer& peer, const std::string& text) {
  peer.gone = true;
  peer.gone_text = text;
  peer.cut();
  each_comm_of(peer, [&](auto& comm) { comm.cut(text); });
}

// The answer is what a process that lives no more would get, and ends its comms within a second.
bool Control::refuse_fenced(const Hello& hello) {
  if (!context_.fenced_runs.hold(hello.run_incarnation)) {
    return false;
  }
  add(context_.stats.refused_fenced, 1);
  return true;
}

}  // namespace fabric::host
