// Of which kind the paths of this process are: streams, or one-sided.
#include <algorithm>

#include "host/control.h"

namespace fabric::host {

// In the transports' order of preference; TCP is the last, and always can.
Control::HalfOut Control::dial_half(const LinkSetup& setup, std::uint8_t version, bool rdma,
                                    HelloKind& kind) const {
  for (const auto& transport : transports_) {
    const bool stream = transport->kind() == TransportKind::tcp;
    if (!stream && (!rdma || !speaks(version, FrameType::terms))) {
      continue;
    }
    if (HalfOut half = transport->dial(setup)) {
      kind = stream ? HelloKind::data : HelloKind::one_sided;
      return half;
    }
  }
  return nullptr;
}

LinkSetup Control::setup_of(const Sending& sending, core::PathIndex path, core::Epoch epoch) const {
  const Peer& peer = *sending.peer;
  return {sending.comm->id(),
          path,
          epoch,
          peer.local_rail(path),
          context_.params.chunk_size,
          peer.incarnation,
          peer.remote_rail(path)};
}

std::uint8_t Control::version_of(const Peer& peer) const {
  return common_version(kWireVersionMin, peer.wire_max,
                        static_cast<std::uint8_t>(context_.params.wire_max));
}

// Queue pairs take milliseconds to make, and all comms of a rail want theirs at the same time.
constexpr int kBesideAtOnce = 4;

// Paths that are streams because a better kind failed, or was not there, go back to it: each by a
// second connection beside its stream, so that nothing waits meanwhile. The comms take turns. Those
// that are streams because RDMA had no weight are opened again at once: the page says when.
void Control::improve_streams(std::int64_t now) {
  int left = kBesideAtOnce;
  auto next = senders_.upper_bound(improved_);
  for (std::size_t i = 0; i < senders_.size() && left > 0; ++i, ++next) {
    next = next == senders_.end() ? senders_.begin() : next;
    Sending& sending = next->second;
    improved_ = next->first;
    if (!speaks(version_of(*sending.peer), FrameType::terms)) {
      continue;
    }
    core::PathSet given_back = 0;
    core::each(sending.comm->streams(), [&](core::PathIndex path) {
      LinkSetup setup = setup_of(sending, path, 0);
      setup.needed = sending.comm->needs_rdma();
      if (sending.peer->facts.rdma.weight[path] == 0 && !setup.needed) {
        return;
      }
      const bool wanted =
          std::any_of(transports_.begin(), transports_.end(),
                      [&setup](const auto& transport) { return transport->wants_back(setup); });
      if (wanted && (sending.kept_streams & core::bit(path)) != 0) {
        given_back |= core::bit(path);
      } else if (wanted && left > 0 && dial_beside(sending, path, now)) {
        --left;
      }
    });
    if (given_back != 0) {
      sending.comm->give_back(given_back);
    }
  }
}

// False: not now. An attempt that fails at once counts: it may have taken as long.
bool Control::dial_beside(const Sending& sending, core::PathIndex path, std::int64_t now) {
  const core::Epoch epoch = sending.comm->dial_beside(path, now);
  if (epoch == 0) {
    return false;
  }
  LinkSetup setup = setup_of(sending, path, epoch);
  setup.beside = true;
  setup.needed = sending.comm->needs_rdma();
  for (const auto& transport : transports_) {
    if (transport->kind() == TransportKind::tcp) {
      continue;
    }
    if (const HalfOut half = transport->dial(setup)) {
      dial_data(sending, setup, HelloKind::one_sided, half);
      return true;
    }
  }
  sending.comm->dial_failed(path, epoch, now);
  return true;
}

// The transport of that kind, as far as this host has it; else TCP's.
Transport& Control::transport_for(HelloKind kind) const {
  const bool stream = kind == HelloKind::data;
  for (const auto& transport : transports_) {
    if ((transport->kind() == TransportKind::tcp) == stream) {
      return *transport;
    }
  }
  return *transports_.back();
}

}  // namespace fabric::host
