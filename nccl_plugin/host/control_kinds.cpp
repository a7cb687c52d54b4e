// Of which kind the paths of this process are: streams, or one-sided.
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

// Paths that are streams because a better kind failed go back to it, and so do those that are
// streams because RDMA had no weight.
void Control::reopen_streams(std::int64_t now) {
  for (auto& [id, sending] : senders_) {
    core::PathSet wanted = 0;
    core::PathSet given_back = 0;
    core::each(sending.comm->streams(now), [&, comm = id](core::PathIndex path) {
      if (sending.peer->facts.rdma.weight[path] == 0) {
        return;
      }
      const bool kept = (sending.kept_streams & core::bit(path)) != 0;
      const LinkSetup setup{comm, path, 0, sending.peer->local_rail(path),
                            context_.params.chunk_size};
      for (const auto& transport : transports_) {
        wanted |= transport->wants_back(setup) ? core::bit(path) : 0;
        given_back |= kept && transport->can_dial(setup) ? core::bit(path) : 0;
      }
    });
    if (given_back != 0) {
      sending.comm->give_back(given_back);
    }
    if (wanted != 0) {
      sending.comm->reopen(wanted);
    }
  }
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
