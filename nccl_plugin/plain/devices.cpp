#include "plain/devices.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

namespace fabric::plain {

namespace {

// NCCL's rule: comma list of prefixes; "=" exact names; "^" everything but.
bool wanted(const std::string& name) {
  const char* text = std::getenv("NCCL_SOCKET_IFNAME");
  if (text == nullptr || *text == '\0') return name != "lo";
  std::string list = text;
  const bool exclude = list.front() == '^';
  if (exclude) list.erase(0, 1);
  const bool exact = !list.empty() && list.front() == '=';
  if (exact) list.erase(0, 1);
  bool hit = false;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string item = list.substr(at, comma - at);
    hit |= !item.empty() && (exact ? name == item : name.starts_with(item));
    at = comma + 1;
  }
  return hit != exclude;
}

}  // namespace

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::vector<Device> find_devices() {
  std::vector<Device> found;
  const char* family_text = std::getenv("NCCL_SOCKET_FAMILY");
  const int family =
      family_text != nullptr && std::string(family_text) == "AF_INET6" ? AF_INET6 : AF_INET;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family ||
        (i->ifa_flags & IFF_UP) == 0 || !wanted(i->ifa_name)) {
      continue;
    }
    Device d;
    d.name = i->ifa_name;
    std::memcpy(&d.address, i->ifa_addr,
                family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&d.address);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
    if (!found.empty() && found.back().name == d.name) continue;
    std::ifstream speed("/sys/class/net/" + d.name + "/speed");
    int mbps = 0;
    if (speed >> mbps && mbps > 0) d.speed_mbps = mbps;
    found.push_back(d);
  }
  return found;
}

}  // namespace fabric::plain
