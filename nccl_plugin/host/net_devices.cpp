#include "host/net_devices.h"

#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>

#include "host/fd.h"

namespace fabric::host {

namespace {

constexpr std::size_t kDatagram = std::size_t{64} * 1024;  // bytes
constexpr int kAttempts = 4;  // a dump that a change interrupted is asked for again
// Of linux/if_link.h since Linux 5.5 and 5.14; older headers lack them.
constexpr std::uint16_t kPropList = 52;
constexpr std::uint16_t kAltName = 53;
constexpr std::uint16_t kParentName = 56;
constexpr std::uint16_t kLinkNetns = 37;
constexpr std::uint16_t kAddressFlags = 8;
constexpr std::uint16_t kTypeMask = 0x3fff;  // without NLA_F_NESTED and NLA_F_NET_BYTEORDER

using Payload = std::span<const char>;
using Visit = std::function<void(std::uint16_t type, Payload payload)>;

template <typename T>
T read_as(Payload bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

std::string text_of(Payload bytes) { return {bytes.data(), ::strnlen(bytes.data(), bytes.size())}; }

// Calls `visit` for each attribute; stops at one whose length does not fit.
void each_attribute(Payload bytes, const Visit& visit) {
  while (bytes.size() >= sizeof(rtattr)) {
    const auto head = read_as<rtattr>(bytes);
    if (head.rta_len < sizeof head || head.rta_len > bytes.size()) {
      return;
    }
    visit(head.rta_type & kTypeMask, bytes.subspan(sizeof head, head.rta_len - sizeof head));
    bytes = bytes.subspan(std::min<std::size_t>(RTA_ALIGN(head.rta_len), bytes.size()));
  }
}

enum class Dump { whole, interrupted, failed };

// Calls `visit` for each message that the kernel answers with, with what follows its header.
Dump dump(int fd, std::uint16_t type, std::uint32_t sequence, const Visit& visit) {
  struct {
    nlmsghdr header;
    ifinfomsg body;  // as long as the kernel wants for both kinds
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.header.nlmsg_seq = sequence;
  if (::send(fd, &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) {
    return Dump::failed;
  }
  std::vector<char> buffer(kDatagram);
  bool interrupted = false;
  for (;;) {
    const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), MSG_TRUNC);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0 || static_cast<std::size_t>(count) > buffer.size()) {
      return Dump::failed;
    }
    Payload bytes(buffer.data(), static_cast<std::size_t>(count));
    while (bytes.size() >= sizeof(nlmsghdr)) {
      const auto head = read_as<nlmsghdr>(bytes);
      if (head.nlmsg_len < sizeof head || head.nlmsg_len > bytes.size()) {
        return Dump::failed;
      }
      interrupted = interrupted || (head.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
      if (head.nlmsg_seq == sequence) {
        if (head.nlmsg_type == NLMSG_DONE) {
          return interrupted ? Dump::interrupted : Dump::whole;
        }
        if (head.nlmsg_type == NLMSG_ERROR) {
          return Dump::failed;
        }
        visit(head.nlmsg_type, bytes.subspan(sizeof head, head.nlmsg_len - sizeof head));
      }
      bytes = bytes.subspan(std::min<std::size_t>(NLMSG_ALIGN(head.nlmsg_len), bytes.size()));
    }
  }
}

NetDevice device_of(const ifinfomsg& head, Payload attributes) {
  NetDevice device;
  device.ifindex = head.ifi_index;
  device.up = (head.ifi_flags & IFF_UP) != 0;
  device.loopback = (head.ifi_flags & IFF_LOOPBACK) != 0;
  bool elsewhere = false;  // the device below is in another network namespace
  each_attribute(attributes, [&](std::uint16_t type, Payload payload) {
    if (type == IFLA_IFNAME) {
      device.name = text_of(payload);
    } else if (type == IFLA_ADDRESS) {
      device.hardware_address.assign(payload.begin(), payload.end());
    } else if (type == IFLA_LINK) {
      device.lower = read_as<int>(payload);
    } else if (type == kLinkNetns) {
      elsewhere = true;
    } else if (type == IFLA_MASTER) {
      device.master = read_as<int>(payload);
    } else if (type == kParentName) {
      device.hardware = true;
    } else if (type == IFLA_LINKINFO) {
      each_attribute(payload, [&](std::uint16_t inner, Payload text) {
        if (inner == IFLA_INFO_KIND) {
          device.kind = text_of(text);
        }
      });
    } else if (type == kPropList) {
      each_attribute(payload, [&](std::uint16_t inner, Payload text) {
        if (inner == kAltName) {
          device.altnames.push_back(text_of(text));
        }
      });
    }
  });
  if (elsewhere || device.lower == device.ifindex) {
    device.lower = 0;
  }
  return device;
}

std::optional<DeviceAddress> address_of(const ifaddrmsg& head, Payload attributes) {
  DeviceAddress found;
  found.flags = head.ifa_flags;
  found.scope = head.ifa_scope;
  Payload address;
  Payload local;  // beside the far end's address on a point-to-point device
  each_attribute(attributes, [&](std::uint16_t type, Payload payload) {
    if (type == IFA_ADDRESS) {
      address = payload;
    } else if (type == IFA_LOCAL) {
      local = payload;
    } else if (type == kAddressFlags) {
      found.flags = read_as<std::uint32_t>(payload);
    }
  });
  const Payload own = local.empty() ? address : local;
  if (head.ifa_family == AF_INET && own.size() == 4) {
    found.address.ip[10] = found.address.ip[11] = 0xff;
    std::memcpy(found.address.ip.data() + 12, own.data(), 4);
  } else if (head.ifa_family == AF_INET6 && own.size() == 16) {
    std::memcpy(found.address.ip.data(), own.data(), 16);
  } else {
    return std::nullopt;
  }
  return found;
}

Dump list_once(int fd, std::uint32_t sequence, std::vector<NetDevice>& devices) {
  devices.clear();
  const Dump links = dump(fd, RTM_GETLINK, sequence, [&](std::uint16_t type, Payload payload) {
    if (type == RTM_NEWLINK && payload.size() >= sizeof(ifinfomsg)) {
      devices.push_back(device_of(read_as<ifinfomsg>(payload), payload.subspan(sizeof(ifinfomsg))));
    }
  });
  if (links == Dump::failed) {
    return links;
  }
  const Dump addresses =
      dump(fd, RTM_GETADDR, sequence + 1, [&](std::uint16_t type, Payload payload) {
        if (type != RTM_NEWADDR || payload.size() < sizeof(ifaddrmsg)) {
          return;
        }
        const auto head = read_as<ifaddrmsg>(payload);
        const auto found = address_of(head, payload.subspan(sizeof head));
        const auto device = std::find_if(devices.begin(), devices.end(), [&](const auto& known) {
          return known.ifindex == static_cast<int>(head.ifa_index);
        });
        if (found && device != devices.end()) {
          device->addresses.push_back(*found);
        }
      });
  return addresses == Dump::whole ? links : addresses;
}

}  // namespace

std::optional<std::vector<NetDevice>> list_devices() {
  const Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd.open()) {
    return std::nullopt;
  }
  std::vector<NetDevice> devices;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Dump result = list_once(fd.get(), static_cast<std::uint32_t>(2 * attempt + 1), devices);
    if (result == Dump::failed) {
      return std::nullopt;
    }
    if (result == Dump::whole) {
      break;
    }
  }
  // Interrupted each time: what was listed is true of some moment; the next notification corrects.
  return devices;
}

}  // namespace fabric::host
