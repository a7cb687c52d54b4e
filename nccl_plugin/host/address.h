// An IP address with a port, small enough to travel: IPv4 is kept mapped (::ffff:a.b.c.d).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>

namespace fabric::host {

struct Address {
  std::array<std::uint8_t, 16> ip{};  // all zero: none
  std::uint16_t port = 0;             // host order

  [[nodiscard]] bool present() const;
  [[nodiscard]] bool v4() const;
  [[nodiscard]] bool loopback() const;
  // Of one link: 169.254.0.0/16, fe80::/10.
  [[nodiscard]] bool link_local() const;
  // One host's, with a port: something to connect to.
  [[nodiscard]] bool reachable() const;
  [[nodiscard]] std::string text() const;       // "10.0.0.1:4711", "[fd00::1]:4711"
  [[nodiscard]] std::string host_text() const;  // "10.0.0.1", "fd00::1"
  // Fills `out`, returns its length. `scope`: ifindex of the link that a link-local IPv6 address is
  // of.
  socklen_t to(sockaddr_storage& out, int scope = 0) const;
  static Address from(const sockaddr* address);
  bool operator==(const Address&) const = default;
};

}  // namespace fabric::host
