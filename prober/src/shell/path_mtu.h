// How large a UDP payload one packet may have, as the kernel knows.
#pragma once

#include <cstdint>

#include "core/engine.h"

namespace fabric::prober {

// By the MTU of the link's device; 0: there is none. `query` is any socket.
std::uint32_t device_limit(int query, const LinkConfig& link);
// By the route to the peer, with what routers on it said (ICMP) or a route's own mtu; 0: no route.
std::uint32_t route_limit(const LinkConfig& link, const Address& peer);

}  // namespace fabric::prober
