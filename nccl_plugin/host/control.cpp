// What callers ask of the control thread: its start and end, listeners, comms.
#include "host/control.h"
#include "core/schedule.h"
#include "host/monotonic.h"

#include <array>
#include <cstring>
#include <utility>

namespace fabric::host {

namespace {

Secret random_secret() {
  Secret secret{};
  random_bytes(secret);
  return secret;
}

}  // namespace

Control::Control(Context& context, const Parts& parts, const Transports& transports)
    : context_(context),
      listen_key_(random_secret()),
      transports_(transports),
      network_(parts.network(
          context, poller_, [this](const HelloClaim& claim) { return secret_of(claim); },
          [this](const Hello& hello, const Secret& secret, std::size_t rail,
                 std::unique_ptr<Connection> connection) {
            on_hello(hello, secret, rail, std::move(connection));
          })),
      hints_(context, poller_),
      addresses_(poller_) {}

Control::~Control() { stop(); }

std::string Control::open() {
  if (!poller_.usable()) {
    return "no control thread: " + context_.shortage.text();
  }
  return network_->open();
}

void Control::start() {
  thread_ = std::thread([this] { run(); });
}

void Control::stop() {
  if (thread_.joinable()) {
    stopping_.store(true);
    wake();
    thread_.join();
  }
}

// Known without the listener, which need not be kept: whoever comes late is told that it is closed.
Secret Control::secret_for(std::uint32_t listen_id) const {
  Secret secret{};
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::array<std::uint32_t, 2> text{listen_id, half};
    const std::uint64_t word = siphash(listen_key_, std::as_bytes(std::span(text)));
    std::memcpy(secret.data() + half * sizeof word, &word, sizeof word);
  }
  return secret;
}

std::shared_ptr<Listener> Control::listen(std::size_t rail, Handle& handle) {
  auto listener = std::make_shared<Listener>();
  listener->rail = static_cast<std::uint8_t>(rail);
  const std::scoped_lock lock(registry_);
  listener->id = next_listen_++;
  listener->secret = secret_for(listener->id);
  listeners_.emplace(listener->id, listener);
  handle.listen_id = listener->id;
  handle.incarnation = context_.incarnation;
  handle.run_incarnation = context_.run_incarnation;
  handle.secret = listener->secret;
  handle.primary_rail = listener->rail;
  handle.rails = static_cast<std::uint8_t>(context_.rails.size());
  handle.wire_min = lowest_accepted();
  handle.wire_max = static_cast<std::uint8_t>(context_.params.wire_max);
  for (std::size_t i = 0; i < context_.rails.size(); ++i) {
    const Address& address = context_.rails[i].address;
    if (address.reachable() || i == rail) {  // a handle has to name its primary
      handle.listeners[i] = address;
    }
  }
  return listener;
}

void Control::close(const std::shared_ptr<Listener>& listener) {
  std::deque<std::shared_ptr<Receiver>> unaccepted;
  {
    const std::scoped_lock lock(registry_);
    listeners_.erase(listener->id);
    unaccepted.swap(listener->ready);
  }
  for (const auto& receiver : unaccepted) {
    receiver->close();
  }
}

Result Control::accept(const std::shared_ptr<Listener>& listener, std::shared_ptr<Receiver>& out) {
  if (self_fenced()) {
    return Result::remote_error;
  }
  const std::scoped_lock lock(registry_);
  if (listener->ready.empty()) {
    if (starves(*listener)) {
      return Result::system_error;
    }
    return listener->unfit ? Result::remote_error : Result::success;
  }
  out = std::move(listener->ready.front());
  listener->ready.pop_front();
  return Result::success;
}

// Nobody came for as long as one waits for a peer, and no descriptor is free for one who does.
bool Control::starves(Listener& listener) const {
  const std::int64_t now = monotonic_ns();
  if (listener.awaited_since == 0) {
    listener.awaited_since = now;
  }
  const std::int64_t waited = now - listener.awaited_since;
  if (waited < context_.params.deadline_ns || !context_.shortage.lasts(now)) {
    return false;
  }
  if (!std::exchange(listener.starved, true)) {
    context_.say(LogLevel::warn, "accept: nobody for " + std::to_string(waited / 1'000 / kMs) +
                                     " s (FABRIC_DEADLINE): " + context_.shortage.text());
  }
  return true;
}

std::shared_ptr<Sender> Control::connect(std::size_t rail, const Handle& handle, std::string& why) {
  const std::string name = "peer " + handle.listeners[handle.primary_rail].text();
  if (self_fenced() || context_.fenced_runs.hold(handle.run_incarnation)) {
    add(context_.stats.refused_fenced, 1);
    why = self_fenced() ? "this process is fenced" : name + " is fenced";
    return nullptr;
  }
  if (common_version(handle.wire_min, handle.wire_max,
                     static_cast<std::uint8_t>(context_.params.wire_max)) == 0) {
    why = unfit_text(name, handle.wire_min, handle.wire_max, kWireVersionMin);
    return nullptr;
  }
  {
    const std::scoped_lock lock(registry_);
    if (const auto refused = unfit_.find(handle.incarnation); refused != unfit_.end()) {
      why = refused->second;
      return nullptr;
    }
  }
  const core::PathIndex primary = core::path_index(rail, handle.primary_rail);
  auto sender =
      std::make_shared<Sender>(context_, random_number() | 1U, primary, name, handle.incarnation);
  {
    const std::scoped_lock lock(registry_);
    pending_connects_.push_back({sender, handle});
  }
  wake();
  return sender;
}

}  // namespace fabric::host
