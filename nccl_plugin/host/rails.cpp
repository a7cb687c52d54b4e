#include "host/rails.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include "core/types.h"

namespace fabric::host {

namespace {

// "rail10" after "rail9".
std::tuple<std::string, unsigned long> natural(const std::string& name) {
  std::size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') {
    --digits;
  }
  return {name.substr(0, digits), std::strtoul(name.c_str() + digits, nullptr, 10)};
}

bool link_local(const Address& address) {
  return address.v4() ? address.ip[12] == 169 && address.ip[13] == 254
                      : address.ip[0] == 0xfe && (address.ip[1] & 0xc0U) == 0x80;
}

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  return request;
}

std::uint64_t guid_of(int fd, const std::string& name, int ifindex) {
  ifreq request = request_for(name);
  std::uint64_t guid = 0;
  if (::ioctl(fd, SIOCGIFHWADDR, &request) == 0) {
    std::memcpy(&guid, request.ifr_hwaddr.sa_data, 6);
  }
  return guid != 0 ? guid : static_cast<std::uint64_t>(ifindex);
}

// ETHTOOL_GSET is enough for what NCCL wants to know, and needs no privilege.
int mtu_of(int fd, const std::string& name) {
  ifreq request = request_for(name);
  return ::ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

int speed_of(int fd, const std::string& name) {
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0) {
    return 10'000;
  }
  const std::uint32_t speed = ethtool_cmd_speed(&command);
  return speed == 0 || speed > 10'000'000 ? 10'000 : static_cast<int>(speed);
}

std::string pci_path_of(const std::string& name, int ifindex) {
  const std::string device = "/sys/class/net/" + name;
  std::ifstream file(device + "/ifindex");
  int shown = 0;
  if (!(file >> shown) || shown != ifindex) {
    return "";  // /sys belongs to another network namespace
  }
  std::array<char, PATH_MAX> resolved{};
  if (::realpath((device + "/device").c_str(), resolved.data()) == nullptr ||
      ::access((device + "/device/vendor").c_str(), F_OK) != 0) {
    return "";
  }
  return resolved.data();
}

// Calls `visit(name, address, loopback)` for each address that a rail may have. False: not known.
template <typename Visit>
bool each_address(const Params& params, Visit visit) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return false;
  }
  const bool v6_only = params.family == "AF_INET6";
  const bool v4_only = params.family == "AF_INET";
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if ((family != AF_INET || v6_only) && (family != AF_INET6 || v4_only)) {
      continue;
    }
    const Address address = Address::from(entry->ifa_addr);
    if (link_local(address)) {
      continue;
    }
    visit(entry->ifa_name, address, (entry->ifa_flags & IFF_LOOPBACK) != 0);
  }
  ::freeifaddrs(list);
  return true;
}

}  // namespace

void RailList::assign(const std::vector<Rail>& rails) {
  assert(rails.size() <= core::kMaxRails);
  std::copy(rails.begin(), rails.end(), rails_.begin());
  count_.store(rails.size(), std::memory_order_release);
}

std::optional<std::vector<RailNow>> rails_now(const Params& params, std::span<const Rail> rails) {
  std::vector<RailNow> found(rails.size());
  const auto visit = [&](const char* name, const Address& address, bool /*loopback*/) {
    for (std::size_t i = 0; i < rails.size(); ++i) {
      RailNow& now = found[i];
      if (rails[i].name != name) {
        continue;
      }
      if (address.v4() != rails[i].address.v4()) {
        continue;  // peers know it by an address of that family, and theirs are
      }
      if (!now.present || address.ip == rails[i].address.ip) {
        now.address = address;
      }
      now.present = true;
    }
  };
  if (!each_address(params, visit)) {
    return std::nullopt;
  }
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (std::size_t i = 0; i < rails.size(); ++i) {
    found[i].ifindex = static_cast<int>(::if_nametoindex(rails[i].name.c_str()));
    found[i].mtu = mtu_of(fd, rails[i].name);
  }
  ::close(fd);
  return found;
}

std::vector<Rail> find_rails(const Params& params, std::string& notes) {
  if (!params.family.empty() && params.family != "AF_INET" && params.family != "AF_INET6") {
    notes += "NCCL_SOCKET_FAMILY=" + params.family + " is neither AF_INET nor AF_INET6; ";
  }
  std::map<std::tuple<std::string, unsigned long>, Rail> found;
  std::map<std::string, bool> loopback;
  each_address(params, [&](const char* name, const Address& address, bool is_loopback) {
    loopback[name] = is_loopback;
    Rail& rail = found[natural(name)];
    if (!rail.address.present() || (address.v4() && !rail.address.v4())) {
      rail.name = name;
      rail.address = address;
    }
  });
  std::vector<Candidate> candidates;
  candidates.reserve(loopback.size());
  for (const auto& [name, is_loopback] : loopback) {
    candidates.push_back({name, is_loopback});
  }
  const DeviceChoice choice =
      choose_devices(params.ifname, params.ib_hca,
                     params.ib_hca.empty() ? std::vector<HcaPort>{} : read_hcas(), candidates);
  notes += choice.notes;
  std::erase_if(found, [&](const auto& item) { return !choice.names.contains(item.second.name); });
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  std::vector<Rail> rails;
  for (auto& [key, rail] : found) {
    if (rails.size() == core::kMaxRails) {
      break;
    }
    rail.ifindex = static_cast<int>(::if_nametoindex(rail.name.c_str()));
    rail.guid = guid_of(fd, rail.name, rail.ifindex);
    rail.speed_mbps = speed_of(fd, rail.name);
    rail.mtu = mtu_of(fd, rail.name);
    rail.pci_path = pci_path_of(rail.name, rail.ifindex);
    rails.push_back(rail);
  }
  ::close(fd);
  return rails;
}

std::vector<Rail> rails_come(const Params& params, std::span<const Rail> rails) {
  const auto names_some = [](const std::string& list) {
    return !list.empty() && !list.starts_with("^");
  };
  if (rails.size() == core::kMaxRails ||
      (!names_some(params.ifname) && !names_some(params.ib_hca))) {
    return {};
  }
  std::string notes;
  std::vector<Rail> found = find_rails(params, notes);
  std::erase_if(found, [&](const Rail& rail) {
    return std::any_of(rails.begin(), rails.end(),
                       [&](const Rail& known) { return known.name == rail.name; });
  });
  found.resize(std::min(found.size(), core::kMaxRails - rails.size()));
  return found;
}

std::string set_standby(const std::string& standby, std::vector<Rail>& rails,
                        std::array<std::uint8_t, core::kMaxRails>& backup_of, std::size_t& shown) {
  backup_of.fill(core::kBackupOfNone);
  std::map<std::string, std::string> active_of;
  std::string complaints;
  const auto known = [&](const std::string& name) {
    return std::any_of(rails.begin(), rails.end(),
                       [&](const Rail& rail) { return rail.name == name; });
  };
  std::stringstream items(standby);
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t slash = item.find('/');
    const std::string active = item.substr(0, slash);
    const std::string second = slash == std::string::npos ? "" : item.substr(slash + 1);
    if (!known(active) || !known(second) || active == second || active_of.count(second) != 0 ||
        active_of.count(active) != 0 ||
        std::any_of(active_of.begin(), active_of.end(),
                    [&](const auto& pair) { return pair.second == second; })) {
      complaints += "FABRIC_STANDBY: " + item + " is no pair active/standby of two rails; ";
      continue;
    }
    active_of[second] = active;
  }
  std::stable_partition(rails.begin(), rails.end(),
                        [&](const Rail& rail) { return active_of.count(rail.name) == 0; });
  shown = rails.size() - active_of.size();
  for (std::size_t i = shown; i < rails.size(); ++i) {
    for (std::size_t active = 0; active < shown; ++active) {
      if (rails[active].name == active_of[rails[i].name]) {
        backup_of[i] = static_cast<std::uint8_t>(active);
      }
    }
  }
  return complaints;
}

CarrierReader::CarrierReader() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}

CarrierReader::~CarrierReader() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool CarrierReader::up(const Rail& rail) {
  // The interface flags follow the operational state, which the kernel updates as seldom as once a
  // second; ETHTOOL_GLINK asks the device.
  ethtool_value value{};
  value.cmd = ETHTOOL_GLINK;
  ifreq request = request_for(rail.name);
  request.ifr_data = reinterpret_cast<char*>(&value);
  if (::ioctl(fd_, SIOCETHTOOL, &request) == 0) {
    if (value.data == 0) {
      return false;
    }
  }
  request = request_for(rail.name);
  return ::ioctl(fd_, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0;
}

}  // namespace fabric::host
