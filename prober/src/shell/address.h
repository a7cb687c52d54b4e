// Addresses between text, the core's form and the kernel's.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "core/wire.h"

namespace fabric::prober {

// A link-local IPv6 address may carry the zone `netdev` ("fe80::1%rail0"); no other one may, and an
// IPv4-mapped address is none.
std::optional<Address> parse_address(const std::string& text, std::uint16_t port,
                                     const std::string& netdev = {});
// Packets can be sent to it, and one host gets them: as fabricd/config/addresses.py has it.
bool is_one_host(const Address& address);
bool is_loopback(const Address& address);
// A device may have that name: as fabricd/config/netdev_names.py has it.
bool is_netdev_name(const std::string& name);
std::string format_address(const Address& address);

// Fills `out` and returns its length. IPv4-mapped becomes AF_INET; `scope` is the interface of a
// link-local IPv6 address.
socklen_t to_sockaddr(const Address& address, unsigned scope, sockaddr_storage& out);
Address from_sockaddr(const sockaddr_storage& in);

}  // namespace fabric::prober
