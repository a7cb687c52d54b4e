#include "host/rails.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "core/types.h"
#include "host/address_choice.h"
#include "host/net_devices.h"

namespace fabric::host {

namespace {

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  return request;
}

// ETHTOOL_GSET is enough for what NCCL wants to know, and needs no privilege.
int mtu_of(int fd, const std::string& name) {
  ifreq request = request_for(name);
  return ::ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

// Mbit/s; 0: the driver says none.
int speed_of(int fd, const std::string& name) {
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0) {
    return 0;
  }
  const std::uint32_t speed = ethtool_cmd_speed(&command);
  return speed > 10'000'000 ? 0 : static_cast<int>(speed);
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

AddressFamily family_of(const Params& params) {
  return params.family == "AF_INET"    ? AddressFamily::v4
         : params.family == "AF_INET6" ? AddressFamily::v6
                                       : AddressFamily::any;
}

Candidate candidate_of(const NetDevice& device, DeviceRank rank, AddressFamily family) {
  Candidate candidate{device.name, device.loopback, rank, device.altnames, "", false};
  const AddressChoice global = choose_address(device.addresses, family, false);
  const AddressChoice any = choose_address(device.addresses, family, true);
  candidate.link_local = !global.address.present() && any.address.present();
  if (!device.up) {
    candidate.fault = "is down";
  } else if (!any.address.present()) {
    candidate.fault = any.note;
  }
  return candidate;
}

std::vector<Address> addresses_of(const std::vector<NetDevice>& devices) {
  std::vector<Address> own;
  for (const NetDevice& device : devices) {
    for (const DeviceAddress& each : device.addresses) {
      own.push_back(each.address);
    }
  }
  return own;
}

}  // namespace

std::uint64_t guid_of(const NetDevice& device) {
  const auto& bytes = device.hardware_address;
  std::uint64_t guid = 0;
  const std::size_t size = std::min(bytes.size(), sizeof guid);
  if (size > 0) {
    std::memcpy(&guid, bytes.data() + (bytes.size() - size), size);
  }
  return guid != 0 ? guid : static_cast<std::uint64_t>(device.ifindex);
}

bool RailList::is_own(const Address& address) const {
  const auto same = [&](const Address& own) { return own.ip == address.ip; };
  return std::any_of(own_.begin(), own_.end(), same) ||
         std::any_of(begin(), end(), [&](const Rail& rail) { return same(rail.address); });
}

void RailList::assign(const std::vector<Rail>& rails) {
  assert(rails.size() <= core::kMaxRails);
  std::copy(rails.begin(), rails.end(), rails_.begin());
  count_.store(rails.size(), std::memory_order_release);
}

std::optional<RailsNow> rails_now(const Params& params, std::span<const Rail> rails) {
  const auto devices = list_devices();
  if (!devices) {
    return std::nullopt;
  }
  RailsNow found{std::vector<RailNow>(rails.size()), addresses_of(*devices)};
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (std::size_t i = 0; i < rails.size(); ++i) {
    const Rail& rail = rails[i];
    RailNow& now = found.rails[i];
    const auto device = std::find_if(devices->begin(), devices->end(),
                                     [&](const NetDevice& is) { return is.name == rail.name; });
    if (device == devices->end()) {
      continue;
    }
    now.ifindex = device->ifindex;
    now.mtu = mtu_of(fd, rail.name);
    // Peers know it by an address of that family, and theirs are.
    const AddressFamily family = rail.address.v4() ? AddressFamily::v4 : AddressFamily::v6;
    if (device->up && (family_of(params) == AddressFamily::any || family_of(params) == family)) {
      now.address =
          choose_address(device->addresses, family, rail.address.link_local(), rail.address)
              .address;
      now.present = now.address.present();
    }
  }
  ::close(fd);
  return found;
}

DeviceChoice choose_rails(const std::vector<NetDevice>& devices, const std::vector<HcaPort>& hcas,
                          const Params& params) {
  const std::vector<DeviceRank> ranks = rank_devices(devices, hcas);
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    candidates.push_back(candidate_of(devices[i], ranks[i], family_of(params)));
  }
  return choose_devices(params.ifname, params.ib_hca, hcas, candidates, core::kMaxRails);
}

FoundRails find_rails(const Params& params) {
  FoundRails found;
  if (!params.family.empty() && params.family != "AF_INET" && params.family != "AF_INET6") {
    found.notes += "NCCL_SOCKET_FAMILY=" + params.family + " is neither AF_INET nor AF_INET6; ";
  }
  const auto devices = list_devices();
  if (!devices) {
    found.notes += "rtnetlink lists no devices: " + std::string(std::strerror(errno)) + "; ";
    return found;
  }
  const DeviceChoice choice = choose_rails(*devices, read_hcas(), params);
  found.notes += choice.notes;
  found.remarks = choice.remarks;
  found.own_addresses = addresses_of(*devices);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (const std::string& name : choice.names) {
    const auto device = std::find_if(devices->begin(), devices->end(),
                                     [&](const NetDevice& is) { return is.name == name; });
    const AddressChoice address = choose_address(device->addresses, family_of(params), true);
    Rail rail;
    rail.name = name;
    rail.ifindex = device->ifindex;
    rail.address = address.address;
    rail.guid = guid_of(*device);
    if (const int speed = speed_of(fd, rail.name); speed != 0) {
      rail.speed_mbps = speed;
    } else {
      found.remarks += name + " says no speed and is taken for one of " +
                       std::to_string(rail.speed_mbps / 1000) + " Gbit/s; ";
    }
    rail.mtu = mtu_of(fd, rail.name);
    rail.pci_path = pci_path_of(rail.name, rail.ifindex);
    if (!address.note.empty()) {
      found.remarks += name + " " + address.note + "; ";
    }
    found.rails.push_back(rail);
  }
  ::close(fd);
  return found;
}

std::vector<Rail> rails_come(const Params& params, std::span<const Rail> rails) {
  const auto names_some = [](const std::string& list) {
    return !list.empty() && !list.starts_with("^");
  };
  if (rails.size() == core::kMaxRails ||
      (!names_some(params.ifname) && !names_some(params.ib_hca))) {
    return {};
  }
  const auto all = [&](auto holds) {
    return std::all_of(rails.begin(), rails.end(),
                       [&](const Rail& rail) { return holds(rail.address); });
  };
  const auto v4 = [](const Address& address) { return address.v4(); };
  Params wanted = params;
  if (!rails.empty() && params.family.empty() && (all(v4) || all(std::not_fn(v4)))) {
    wanted.family = rails.front().address.v4() ? "AF_INET" : "AF_INET6";
  }
  // A device that is just made has a link-local address before it has another one.
  const bool global =
      !rails.empty() && all([](const Address& address) { return !address.link_local(); });
  std::vector<Rail> found = find_rails(wanted).rails;
  std::erase_if(found, [&](const Rail& rail) {
    return (global && rail.address.link_local()) ||
           std::any_of(rails.begin(), rails.end(),
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

CarrierReader::CarrierReader()
    : fd_(Fd::opened([] { return ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); })) {}

bool CarrierReader::up(const Rail& rail) {
  // The interface flags follow the operational state, which the kernel updates as seldom as once a
  // second; ETHTOOL_GLINK asks the device.
  ethtool_value value{};
  value.cmd = ETHTOOL_GLINK;
  ifreq request = request_for(rail.name);
  request.ifr_data = reinterpret_cast<char*>(&value);
  if (::ioctl(fd_.get(), SIOCETHTOOL, &request) == 0) {
    if (value.data == 0) {
      return false;
    }
  }
  request = request_for(rail.name);
  return ::ioctl(fd_.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0;
}

}  // namespace fabric::host
