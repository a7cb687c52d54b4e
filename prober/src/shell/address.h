// Addresses between text, the core's form and the kernel's.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "core/wire.h"

namespace fabric::prober {

std::optional<Address> parse_address(const std::string& text, std::uint16_t port);
std::string format_address(const Address& address);

// Fills `out` and returns its length. IPv4-mapped becomes AF_INET; `scope` is the interface of a
// link-local IPv6 address.
socklen_t to_sockaddr(const Address& address, unsigned scope, sockaddr_storage& out);
Address from_sockaddr(const sockaddr_storage& in);

}  // namespace fabric::prober
