#include "host/address_choice.h"

#include <linux/if_addr.h>
#include <linux/rtnetlink.h>

#include <algorithm>
#include <vector>

namespace fabric::host {

namespace {

std::string joined(const std::vector<Address>& addresses) {
  std::string text;
  for (const Address& address : addresses) {
    text += (text.empty() ? "" : ", ") + address.host_text();
  }
  return text;
}

bool lower(const Address& a, const Address& b) { return a.ip < b.ip; }

// The kernel does not take packets for it (yet).
bool unproved(const DeviceAddress& address) {
  const bool tentative = (address.flags & IFA_F_TENTATIVE) != 0;
  const bool optimistic = (address.flags & IFA_F_OPTIMISTIC) != 0;
  const bool failed = (address.flags & IFA_F_DADFAILED) != 0;
  return !address.address.v4() && (failed || (tentative && !optimistic));
}

// Why an address is not chosen; "" when it may be.
std::string fault_of(const DeviceAddress& address) {
  if (address.address.v4()) {
    return "";  // IFA_F_TEMPORARY is IFA_F_SECONDARY there
  }
  if ((address.flags & IFA_F_DADFAILED) != 0) {
    return "is a duplicate (DAD failed)";
  }
  if (unproved(address)) {
    return "is tentative";
  }
  if ((address.flags & IFA_F_DEPRECATED) != 0) {
    return "is deprecated";
  }
  if ((address.flags & IFA_F_TEMPORARY) != 0) {
    return "is temporary";
  }
  return "";
}

AddressChoice of_several(const Address& chosen, std::vector<Address> usable) {
  std::sort(usable.begin(), usable.end(), lower);
  return {chosen, usable.size() < 2
                      ? ""
                      : "has " + joined(usable) + ": " + chosen.host_text() + " is used"};
}

}  // namespace

AddressChoice choose_address(std::span<const DeviceAddress> addresses, AddressFamily family,
                             bool asked, const Address& current) {
  std::vector<Address> v4;
  std::vector<Address> v6;
  std::vector<Address> local;
  Address secondary;
  bool kept = false;
  std::string reason;
  const auto add_reason = [&](const std::string& text) {
    reason += (reason.empty() ? "" : ", ") + text;
  };
  for (const DeviceAddress& each : addresses) {
    const Address& address = each.address;
    if (family == (address.v4() ? AddressFamily::v6 : AddressFamily::v4)) {
      continue;
    }
    if (current.present() && address.ip == current.ip && !unproved(each)) {
      kept = true;
    } else if (const std::string fault = fault_of(each); !fault.empty()) {
      add_reason(address.host_text() + " " + fault);
    } else if (address.link_local() || each.scope == RT_SCOPE_LINK) {
      local.push_back(address);
    } else if (!address.v4()) {
      v6.push_back(address);
    } else if ((each.flags & IFA_F_SECONDARY) == 0) {
      v4.push_back(address);
    } else if (!secondary.present()) {
      secondary = address;
    }
  }
  Address in_use = current;
  in_use.port = 0;
  if (kept && in_use.v4()) {
    return {in_use, ""};
  }
  if (kept && v4.empty() && !secondary.present()) {
    v6.push_back(in_use);
    return in_use.link_local() ? AddressChoice{in_use, ""} : of_several(in_use, v6);
  }
  if (!v4.empty() || secondary.present()) {
    return {v4.empty() ? secondary : v4.front(), ""};
  }
  if (!v6.empty()) {
    return of_several(*std::min_element(v6.begin(), v6.end(), lower), v6);
  }
  // IPv4 first, in the kernel's order.
  std::stable_sort(local.begin(), local.end(), [](const Address& a, const Address& b) {
    return a.v4() != b.v4() ? a.v4() : !a.v4() && lower(a, b);
  });
  if (!local.empty() && asked) {
    return {local.front(), ""};
  }
  if (!local.empty()) {
    add_reason(joined(local) + " is link-local");
  }
  if (reason.empty()) {
    reason = family == AddressFamily::any  ? "has no address"
             : family == AddressFamily::v4 ? "has no IPv4 address"
                                           : "has no IPv6 address";
  }
  return {{}, reason};
}

}  // namespace fabric::host
