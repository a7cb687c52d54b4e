#include "host/device_choice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <tuple>

namespace fabric::host {

namespace {

namespace fs = std::filesystem;

// Containers' and hypervisors' own names: of Docker networks, libvirt, CNI plugins, VPNs.
constexpr std::array<std::string_view, 22> kForeignNames{
    "br-",  "cali",  "cilium",       "cni",   "docker", "flannel",   "kube-", "lxc",
    "lxd",  "nerd",  "nodelocaldns", "ovs-",  "podman", "tailscale", "tap",   "tun",
    "veth", "virbr", "vnet",         "weave", "wg",     "zt"};
// Kinds of IFLA_INFO_KIND that carry what their lower device carries, or the other end of a cable.
constexpr std::array<std::string_view, 12> kStandins{"bond",    "ipoib",   "ipvlan",    "ipvtap",
                                                     "macvlan", "macvtap", "netdevsim", "netkit",
                                                     "rmnet",   "team",    "veth",      "vlan"};

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// A device list of NCCL: "^" and "=" stand before all of it.
struct List {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> items;  // without blanks around them

  explicit List(const std::string& text) {
    std::size_t at = text.find_first_not_of(" \t\r\n");
    if (at == std::string::npos) {
      return;
    }
    if (text.compare(at, 1, "^") == 0) {
      exclude = true;
      ++at;
    }
    if (text.compare(at, 1, "=") == 0) {
      exact = true;
      ++at;
    }
    std::stringstream parts(text.substr(at));
    for (std::string part; std::getline(parts, part, ',');) {
      if (const std::string item = trimmed(part); !item.empty()) {
        items.push_back(item);
      }
    }
  }
  [[nodiscard]] bool fits(const std::string& item, const std::string& name) const {
    return exact ? name == item : name.starts_with(item);
  }
  // By the kernel's name, or an altname in full.
  [[nodiscard]] bool names(const std::string& item, const Candidate& candidate) const {
    return fits(item, candidate.name) ||
           std::find(candidate.altnames.begin(), candidate.altnames.end(), item) !=
               candidate.altnames.end();
  }
  [[nodiscard]] bool includes() const { return !exclude && !items.empty(); }
};

// NCCL reads a port after the colon, and ip-address(8) writes a label: both are of the device.
std::string without_port(const std::string& item) { return item.substr(0, item.find(':')); }

std::vector<std::string> entries(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  return names;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int number(const std::string& text, int otherwise) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : otherwise;
}

// What an item of a list names: devices that can be rails, and why others cannot.
struct Named {
  std::set<std::string> usable;
  std::string faults;

  void add(const Candidate& candidate) {
    if (candidate.fault.empty()) {
      usable.insert(candidate.name);
    } else {
      faults += (faults.empty() ? "" : ", ") + candidate.name + " " + candidate.fault;
    }
  }
  // For the log, of an item that names nothing usable.
  [[nodiscard]] std::string complaint(const std::string& variable, const std::string& item) const {
    return variable + ": " +
           (faults.empty() ? "nothing here is " + item : item + " is no rail: " + faults) + "; ";
  }
};

// What one item of NCCL_IB_HCA names.
Named named_by(const List& list, const std::string& item, const std::vector<HcaPort>& hcas,
               const std::vector<Candidate>& candidates) {
  const std::size_t colon = item.find(':');
  const std::string name = item.substr(0, colon);
  const int port = colon == std::string::npos ? -1 : number(item.substr(colon + 1), 0);
  std::set<std::string> netdevs;
  for (const HcaPort& hca : hcas) {
    if (list.fits(name, hca.hca) && (port == -1 || port == hca.port)) {
      netdevs.insert(hca.netdevs.begin(), hca.netdevs.end());
    }
  }
  Named named;
  for (const Candidate& candidate : candidates) {
    if (netdevs.contains(candidate.name) ||
        (colon == std::string::npos && list.names(name, candidate))) {
      named.add(candidate);
    }
  }
  return named;
}

template <typename Names>
std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "none" : text;
}

std::set<std::string> names_of(const std::vector<HcaPort>& hcas) {
  std::set<std::string> names;
  for (const HcaPort& hca : hcas) {
    names.insert(hca.hca + ":" + std::to_string(hca.port));
  }
  return names;
}

}  // namespace

std::vector<HcaPort> read_hcas(const std::string& sysfs) {
  std::vector<HcaPort> hcas;
  const fs::path root = fs::path(sysfs) / "infiniband";
  for (const std::string& hca : entries(root)) {
    for (const std::string& port : entries(root / hca / "ports")) {
      HcaPort made{hca, number(port, 1), {}};
      const fs::path attributes = root / hca / "ports" / port / "gid_attrs" / "ndevs";
      for (const std::string& gid : entries(attributes)) {
        const std::string netdev = first_line(attributes / gid);
        if (!netdev.empty()) {
          made.netdevs.insert(netdev);
        }
      }
      const auto of_function = entries(root / hca / "device" / "net");
      for (const std::string& netdev : of_function) {
        // Counted from 0; the same for all where a function has one port.
        const int dev_port = number(first_line(fs::path(sysfs) / "net" / netdev / "dev_port"), 0);
        if (of_function.size() == 1 || dev_port + 1 == made.port) {
          made.netdevs.insert(netdev);
        }
      }
      hcas.push_back(std::move(made));
    }
  }
  return hcas;
}

bool natural_less(const std::string& a, const std::string& b) {
  const auto split = [](const std::string& name) {
    std::size_t digits = name.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1])) != 0) {
      --digits;
    }
    const std::size_t first = std::min(name.find_first_not_of('0', digits), name.size());
    return std::tuple(name.substr(0, digits), name.size() - first, name.substr(first), name);
  };
  return split(a) < split(b);
}

std::vector<DeviceRank> rank_devices(std::span<const NetDevice> devices,
                                     const std::vector<HcaPort>& hcas) {
  const auto among = [](std::span<const std::string_view> list, const std::string& kind) {
    return std::find(list.begin(), list.end(), kind) != list.end();
  };
  const auto may_stand_on = [&](const NetDevice& device) {
    return device.kind == "bridge" || among(kStandins, device.kind);
  };
  std::set<int> nics;  // ifindex
  for (const NetDevice& device : devices) {
    const bool rdma = std::any_of(hcas.begin(), hcas.end(), [&](const HcaPort& hca) {
      return hca.netdevs.contains(device.name);
    });
    if (!device.loopback && (device.hardware || device.kind.empty() || rdma)) {
      nics.insert(device.ifindex);
    }
  }
  // A VLAN on a bond of NICs: once more for each level.
  for (std::size_t before = 0; before != nics.size();) {
    before = nics.size();
    for (const NetDevice& device : devices) {
      const bool below = may_stand_on(device) && nics.contains(device.lower);
      if (below) {
        nics.insert(device.ifindex);
      }
      const auto master = std::find_if(devices.begin(), devices.end(), [&](const auto& other) {
        return other.ifindex == device.master;
      });
      if (master != devices.end() && nics.contains(device.ifindex) && may_stand_on(*master)) {
        nics.insert(master->ifindex);
      }
    }
  }
  std::vector<DeviceRank> ranks;
  ranks.reserve(devices.size());
  for (const NetDevice& device : devices) {
    const bool foreign =
        device.loopback || std::any_of(kForeignNames.begin(), kForeignNames.end(),
                                       [&](auto name) { return device.name.starts_with(name); });
    ranks.push_back(nics.contains(device.ifindex)   ? DeviceRank::nic
                    : foreign                       ? DeviceRank::foreign
                    : among(kStandins, device.kind) ? DeviceRank::standin
                                                    : DeviceRank::bridge);
  }
  return ranks;
}

bool name_wanted(const std::string& filter, const std::string& name) {
  const List list(filter);
  if (list.items.empty()) {
    return !name.starts_with("lo") && !name.starts_with("docker");
  }
  const bool named =
      std::any_of(list.items.begin(), list.items.end(),
                  [&](const std::string& item) { return list.fits(without_port(item), name); });
  return named != list.exclude;
}

namespace {

// What NCCL_SOCKET_IFNAME alone chooses.
std::set<std::string> by_socket_list(const std::string& ifname,
                                     const std::vector<Candidate>& candidates,
                                     DeviceChoice& choice) {
  const List list(ifname);
  std::set<std::string> chosen;
  if (list.includes()) {
    for (const std::string& item : list.items) {
      const std::string name = without_port(item);
      if (name != item) {
        choice.remarks += "NCCL_SOCKET_IFNAME: " + item + " is read as " + name + "; ";
      }
      Named named;
      for (const Candidate& candidate : candidates) {
        if (list.names(name, candidate)) {
          named.add(candidate);
        }
      }
      if (named.usable.empty()) {
        choice.notes += named.complaint("NCCL_SOCKET_IFNAME", item);
      } else if (!named.faults.empty()) {
        choice.remarks += "NCCL_SOCKET_IFNAME: no rails: " + named.faults + "; ";
      }
      chosen.insert(named.usable.begin(), named.usable.end());
    }
    return chosen;
  }
  std::set<std::string> nics;  // or what stands for one
  std::string left_out;
  const auto wanted = [&](const Candidate& candidate) {
    return list.items.empty()
               ? name_wanted("", candidate.name) && !candidate.loopback
               : std::none_of(list.items.begin(), list.items.end(), [&](const auto& item) {
                   return list.names(without_port(item), candidate);
                 });
  };
  for (const Candidate& candidate : candidates) {
    if (!wanted(candidate) || !candidate.fault.empty() || candidate.link_local) {
      continue;
    }
    chosen.insert(candidate.name);
    if (candidate.rank <= DeviceRank::standin) {
      nics.insert(candidate.name);
    } else {
      left_out += (left_out.empty() ? "" : ", ") + candidate.name;
    }
  }
  if (list.items.empty() && !nics.empty() && !left_out.empty()) {
    choice.remarks +=
        "no NICs, so no rails while NCCL_SOCKET_IFNAME does not name them: " + left_out + "; ";
    return nics;
  }
  // Excluding something does not ask for loopback; tests may have nothing else.
  std::set<std::string> others = chosen;
  for (const Candidate& candidate : candidates) {
    if (candidate.loopback) {
      others.erase(candidate.name);
    }
  }
  return others.empty() ? chosen : others;
}

// The rails' order, and what there is no room for.
void arrange(const std::set<std::string>& names, const std::vector<Candidate>& candidates,
             std::size_t limit, DeviceChoice& choice) {
  std::vector<const Candidate*> sorted;
  for (const Candidate& candidate : candidates) {
    if (names.contains(candidate.name)) {
      sorted.push_back(&candidate);
    }
  }
  std::sort(sorted.begin(), sorted.end(), [](const Candidate* a, const Candidate* b) {
    return a->rank != b->rank ? a->rank < b->rank : natural_less(a->name, b->name);
  });
  std::string left_out;
  for (const Candidate* candidate : sorted) {
    if (choice.names.size() < limit) {
      choice.names.push_back(candidate->name);
    } else {
      left_out += (left_out.empty() ? "" : ", ") + candidate->name;
    }
  }
  if (!left_out.empty()) {
    choice.notes += "there is room for " + std::to_string(limit) + " rails, which leaves out " +
                    left_out + " (NCCL_SOCKET_IFNAME or NCCL_IB_HCA choose); ";
  }
}

}  // namespace

DeviceChoice choose_devices(const std::string& ifname, const std::string& ib_hca,
                            const std::vector<HcaPort>& hcas,
                            const std::vector<Candidate>& candidates, std::size_t limit) {
  DeviceChoice choice;
  const List list(ib_hca);
  std::set<std::string> named;
  std::string unknown;
  for (const std::string& item : list.items) {
    const Named found = named_by(list, item, hcas, candidates);
    if (found.usable.empty() && !list.exclude) {
      unknown += found.complaint("NCCL_IB_HCA", item);
    }
    named.insert(found.usable.begin(), found.usable.end());
  }
  if (!list.exclude && !named.empty()) {
    choice.notes = unknown;
    arrange(named, candidates, limit, choice);
    return choice;
  }
  std::vector<std::string> present;
  for (const Candidate& candidate : candidates) {
    if (candidate.fault.empty()) {
      present.push_back(candidate.name);
    }
  }
  std::set<std::string> chosen = by_socket_list(ifname, candidates, choice);
  choice.notes = unknown + choice.notes;
  if (chosen.empty() && !ifname.empty()) {
    choice.notes += "NCCL_SOCKET_IFNAME=" + ifname +
                    " leaves no device (up and with an address: " + joined(present) + "); ";
  }
  if (chosen.empty() && ifname.empty()) {
    std::string faults;
    for (const Candidate& candidate : candidates) {
      if (!candidate.loopback && (candidate.link_local || !candidate.fault.empty())) {
        faults += (faults.empty() ? "" : ", ") + candidate.name + " " +
                  (candidate.link_local ? "has a link-local address alone" : candidate.fault);
      }
    }
    choice.notes += faults.empty() ? "" : "no device can be a rail: " + faults + "; ";
  }
  const bool had = !chosen.empty();
  if (list.exclude) {
    for (const std::string& name : named) {
      chosen.erase(name);
    }
    if (had && chosen.empty()) {
      choice.notes += "NCCL_IB_HCA=" + ib_hca + " leaves no device of " + joined(present) + "; ";
    }
  } else if (!list.items.empty()) {
    choice.notes += "NCCL_IB_HCA=" + ib_hca +
                    " is not followed (RDMA ports here: " + joined(names_of(hcas)) + "); ";
  }
  arrange(chosen, candidates, limit, choice);
  return choice;
}

}  // namespace fabric::host
