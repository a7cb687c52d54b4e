// host::Transport over TCP: a link is the connection on which hello and welcome passed.
#pragma once

#include "host/transport.h"

namespace fabric::tcp {

class TcpTransport final : public host::Transport {
 public:
  [[nodiscard]] host::TransportKind kind() const override { return host::TransportKind::tcp; }
  std::unique_ptr<host::HalfLink<host::LinkOut>> dial(const host::LinkSetup& setup) override;
  std::unique_ptr<host::HalfLink<host::LinkIn>> accept(const host::LinkSetup& setup,
                                                       std::span<const std::byte> terms,
                                                       std::string& why) override;
};

}  // namespace fabric::tcp
