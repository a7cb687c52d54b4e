// Which of a device's addresses a rail uses. Pure. The rules are those of the daemon
// (fabricd/links/address_choice.py); tests/unit/shared/rail_cases.json has the cases.
//
// 1. The address in use stays for as long as the device has it, deprecated or not; an IPv6 one
//    until there is an IPv4 one.
// 2. Usable is what is neither tentative, nor failed duplicate address detection (DAD), nor
//    deprecated, nor temporary (RFC 8981).
// 3. IPv4 before IPv6. Of several IPv4 addresses the kernel's first that is not secondary; of
//    several IPv6 addresses the lowest, and that is said.
// 4. A link-local address counts only where it is asked for, and after all others.
#pragma once

#include <span>
#include <string>

#include "host/address.h"
#include "host/net_devices.h"

namespace fabric::host {

enum class AddressFamily { any, v4, v6 };

struct AddressChoice {
  Address address;  // absent: none is usable
  std::string
      note;  // why there is none ("has no address"), or which others there are; may be empty
};

// `asked`: link-local ones count, too. `current`: the address in use; absent: none yet.
AddressChoice choose_address(std::span<const DeviceAddress> addresses, AddressFamily family,
                             bool asked, const Address& current = {});

}  // namespace fabric::host
