// Rails whose address is gone, back, or another one; and rails that were not there before.
#include "host/control.h"

namespace fabric::host {

namespace {

constexpr std::int64_t kLookNs = 20 * kMs;        // notifications come in bursts
constexpr std::int64_t kBlindLookNs = 500 * kMs;  // without notifications
constexpr std::int64_t kLookAgainNs = 200 * kMs;  // no answer, or a listener could not be opened
constexpr std::int64_t kMovedNs = 100 * kMs;

}  // namespace

void Control::renew_rails(std::int64_t now) {
  if (context_.fixed) {
    return;
  }
  if (addresses_.changed() && (next_look_ == 0 || next_look_ > looked_ + kLookNs)) {
    next_look_ = looked_ + kLookNs;
  } else if (addresses_.blind() && next_look_ == 0) {
    next_look_ = looked_ + kBlindLookNs;
  }
  if (next_look_ != 0 && now >= next_look_) {
    next_look_ = 0;
    looked_ = now;
    look_at_rails(now);
  }
}

void Control::look_at_rails(std::int64_t now) {
  auto found = rails_now(context_.params, context_.rails.all());
  if (!found) {
    next_look_ = now + kLookAgainNs;
    return;
  }
  context_.rails.set_own_addresses(std::move(found->own_addresses));
  bool moved = false;
  for (std::size_t i = 0; i < found->rails.size(); ++i) {
    const RailNow& is = found->rails[i];
    const Rail& was = context_.rails[i];
    note_mtu(i, is.mtu);
    const bool same = is.address.ip == was.address.ip && is.ifindex == was.ifindex;
    if (!is.present || (same && network_->listening(i))) {
      hints_.lost(i, !is.present);
    } else {
      moved = move_rail(i, is, now) || moved;
    }
  }
  moved = take_rails_come(now) || moved;
  if (!moved) {
    return;
  }
  ++moves_;
  for (auto* peers : {&outbound_, &inbound_}) {
    for (auto& [id, peer] : *peers) {
      if (speaks(peer->facts.version, FrameType::addresses)) {
        peer->broadcast([this](Bytes& out) { append_addresses(out, addresses()); });
      }
    }
  }
}

// A path that lost large packets may carry them now.
void Control::note_mtu(std::size_t index, int mtu) {
  Rail& rail = context_.rails[index];
  if (mtu == 0 || mtu == rail.mtu) {
    return;
  }
  {
    const std::scoped_lock lock(registry_);
    rail.mtu = mtu;
  }
  for (auto& [id, peer] : outbound_) {
    peer->rail_changed(index);
  }
}

// They join at the end, so that indices stay. NCCL's list of devices is fixed: no comm has its
// primary there. They carry for comms that lost theirs, and for all with FABRIC_STRIPE.
bool Control::take_rails_come(std::int64_t now) {
  if (!context_.params.failover) {
    return false;
  }
  bool any = false;
  for (Rail& rail : rails_come(context_.params, context_.rails.all())) {
    const std::string error = network_->add_rail(rail);
    if (!error.empty()) {
      next_look_ = now + kLookAgainNs;
      continue;
    }
    {
      const std::scoped_lock lock(registry_);  // handles are made of these
      context_.rails.push_back(rail);
    }
    context_.stats.add_rail(rail.name);
    context_.say(LogLevel::info, rail.name + " " + rail.address.text() + " joins");
    any = true;
  }
  if (any) {
    for (auto* peers : {&outbound_, &inbound_}) {
      for (auto& [id, peer] : *peers) {
        peer->rail_came();
      }
    }
  }
  return any;
}

// The old address stays until somebody listens at the new one: no peer is told of another.
bool Control::move_rail(std::size_t index, const RailNow& found, std::int64_t now) {
  Rail& rail = context_.rails[index];
  Rail next = rail;
  next.ifindex = found.ifindex;
  next.address.ip = found.address.ip;
  const std::string error = network_->reopen(index, next);
  if (!error.empty()) {
    hints_.lost(index, true);
    next_look_ = now + kLookAgainNs;
    return false;
  }
  const std::string before = rail.address.text();
  {
    const std::scoped_lock lock(registry_);  // handles are made of these
    rail.ifindex = next.ifindex;
    rail.address = next.address;
  }
  hints_.lost(index, false);
  hints_.moved(index, now + kMovedNs);  // connections of the old address: gone on both ends
  for (auto* peers : {&outbound_, &inbound_}) {
    for (auto& [id, peer] : *peers) {
      peer->rail_moved(index, now);
    }
  }
  context_.say(LogLevel::info, rail.name + " moved from " + before + " to " + rail.address.text());
  return true;
}

AddressReport Control::addresses() const {
  AddressReport report;
  report.number = moves_;
  report.rails = static_cast<std::uint8_t>(context_.rails.size());
  for (std::size_t i = 0; i < context_.rails.size(); ++i) {
    if (context_.rails[i].address.reachable()) {
      report.listeners[i] = context_.rails[i].address;
    }
  }
  return report;
}

}  // namespace fabric::host
