// What the control thread says in hellos and welcomes, which versions of the wire it takes, and
// what it says of those that it does not.
#include "host/control.h"

namespace fabric::host {

Hello Control::hello_to(const Peer& peer, HelloKind kind, core::PathIndex path) const {
  Hello hello;
  hello.kind = kind;
  // One that speaks kWireVersionUnsafe at most would choose that.
  const auto highest = static_cast<std::uint8_t>(context_.params.wire_max);
  const std::uint8_t common = common_version(kWireVersionMin, peer.wire_max, highest);
  hello.version_max = common != 0 ? common : highest;
  hello.rails = static_cast<std::uint8_t>(context_.rails.size());
  hello.initiator_rail = static_cast<std::uint8_t>(peer.local_rail(path));
  hello.acceptor_rail = static_cast<std::uint8_t>(peer.remote_rail(path));
  hello.listen_id = peer.listen_id;
  hello.chunk_size = context_.params.chunk_size;
  hello.initiator = context_.incarnation;
  hello.run_incarnation = context_.run_incarnation;
  hello.acceptor = peer.incarnation;
  hello.nonce = random_number();
  hello.comm = moves_;
  hello.listeners = addresses().listeners;
  return hello;
}

Welcome Control::welcome_for(const Hello& hello, WelcomeStatus status) const {
  Welcome welcome;
  welcome.version = version_with(hello);
  welcome.status = status;
  if (status == WelcomeStatus::version) {
    welcome.version = static_cast<std::uint8_t>(context_.params.wire_max);
    welcome.version_min = lowest_accepted();
  }
  welcome.rails = static_cast<std::uint8_t>(context_.rails.size());
  welcome.incarnation = context_.incarnation;
  welcome.nonce = hello.nonce;
  welcome.listeners = addresses().listeners;
  return welcome;
}

std::uint8_t Control::version_with(const Hello& hello) const {
  return common_version(hello.version_min, hello.version_max,
                        static_cast<std::uint8_t>(context_.params.wire_max));
}

std::string Control::unfit_text(const std::string& who, std::uint8_t min, std::uint8_t max,
                                std::uint8_t own_min) const {
  return who + " runs a plugin that speaks wire versions " + std::to_string(min) + " to " +
         std::to_string(max) + ", this one " + std::to_string(own_min) + " to " +
         std::to_string(context_.params.wire_max) + ": install the same release on all hosts";
}

void Control::say_unproven(const Hello& hello, const Connection& connection) {
  if (unproven_.insert(hello.initiator).second) {
    context_.say(LogLevel::warn, "a process at " + connection.far_end().text() +
                                     " answers no challenge (wire version " +
                                     std::to_string(version_with(hello)) +
                                     ") and is let in, for FABRIC_UNPROVEN=1");
  }
}

// Waiting would not make the peer another: an error now, and what has to be done. Its handle said
// otherwise, or the comm would not be.
void Control::refuse_version(Peer& peer, const Welcome& welcome) {
  if (peer.gone) {
    return;
  }
  const std::string text =
      unfit_text(peer.name(), welcome.version_min, welcome.version, kWireVersionMin);
  {
    const std::scoped_lock lock(registry_);
    unfit_[peer.incarnation] = text;
  }
  give_up(peer, text);
}

// Only who has a handle of ours can sign a hello: nobody else will come for it.
void Control::refuse_version(const Hello& hello) {
  add(context_.stats.refused_peers, 1);
  const bool older = version_with(hello) != 0;
  context_.say(
      LogLevel::warn,
      "refused: " + unfit_text("a peer", hello.version_min, hello.version_max, lowest_accepted()) +
          (older ? ". FABRIC_UNPROVEN=1 lets it in for the time of an "
                   "upgrade"
                 : ""));
  // A liveness probe is signed with the handle of its own listener.
  if (hello.kind != HelloKind::liveness_probe) {
    const std::scoped_lock lock(registry_);
    const auto listener = listeners_.find(hello.listen_id);
    if (listener != listeners_.end()) {
      listener->second->unfit = true;
    }
  }
  context_.waits.signal();
}

}  // namespace fabric::host
