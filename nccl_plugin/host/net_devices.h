// Network devices of the process's network namespace and their addresses, as rtnetlink lists them
// (RTM_GETLINK, RTM_GETADDR of rtnetlink(7)). No privilege is needed.
//
// A device is its ifindex. Its name is the kernel's; altnames and address labels ("rail0:1") name
// the same device and never another one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/address.h"

namespace fabric::host {

struct DeviceAddress {
  Address address;          // without a port
  std::uint32_t flags = 0;  // IFA_F_* of linux/if_addr.h
  std::uint8_t scope = 0;   // RT_SCOPE_* of linux/rtnetlink.h
};

struct NetDevice {
  std::string name;
  int ifindex = 0;
  std::vector<std::string> altnames;
  bool up = false;  // administratively
  bool loopback = false;
  std::string kind;       // IFLA_INFO_KIND: "veth", "bridge"; empty: a driver of hardware
  bool hardware = false;  // a device of some bus is below it (IFLA_PARENT_DEV_NAME, Linux 5.14)
  int lower = 0;          // ifindex of the device it stands on (IFLA_LINK) in this namespace; 0
  int master = 0;         // ifindex of the bridge or bond that it is a port of; 0: none
  std::vector<std::uint8_t> hardware_address;  // 6 bytes, or IPoIB's 20, which end with the GUID
  std::vector<DeviceAddress> addresses;        // in the kernel's order
};

// In the kernel's order. Nothing when the kernel gave no answer.
std::optional<std::vector<NetDevice>> list_devices();

}  // namespace fabric::host
