#include "host/device_choice.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fabric::host {

namespace {

namespace fs = std::filesystem;

// A device list of NCCL: "^" and "=" stand before all of it.
struct List {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> items;

  explicit List(const std::string& text) {
    std::size_t at = 0;
    if (text.starts_with("^")) {
      exclude = true;
      ++at;
    }
    if (text.compare(at, 1, "=") == 0) {
      exact = true;
      ++at;
    }
    std::stringstream parts(text.substr(at));
    for (std::string item; std::getline(parts, item, ',');) {
      if (!item.empty()) {
        items.push_back(item);
      }
    }
  }
  [[nodiscard]] bool fits(const std::string& item, const std::string& name) const {
    return exact ? name == item : name.starts_with(item);
  }
};

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

// What one item of NCCL_IB_HCA names.
std::set<std::string> named_by(const List& list, const std::string& item,
                               const std::vector<HcaPort>& hcas,
                               const std::vector<Candidate>& candidates) {
  const std::size_t colon = item.find(':');
  const std::string name = item.substr(0, colon);
  const int port = colon == std::string::npos ? -1 : number(item.substr(colon + 1), 0);
  std::set<std::string> found;
  for (const HcaPort& hca : hcas) {
    if (list.fits(name, hca.hca) && (port == -1 || port == hca.port)) {
      found.insert(hca.netdevs.begin(), hca.netdevs.end());
    }
  }
  for (const Candidate& candidate : candidates) {
    if (colon == std::string::npos && list.fits(name, candidate.name)) {
      found.insert(candidate.name);
    }
  }
  std::set<std::string> here;
  for (const Candidate& candidate : candidates) {
    if (found.contains(candidate.name)) {
      here.insert(candidate.name);
    }
  }
  return here;
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

bool name_wanted(const std::string& filter, const std::string& name) {
  if (filter.empty()) {
    return !name.starts_with("lo") && !name.starts_with("docker");
  }
  const List list(filter);
  bool named = false;
  for (const std::string& item : list.items) {
    named = named || list.fits(item, name);
  }
  return named != list.exclude;
}

DeviceChoice choose_devices(const std::string& ifname, const std::string& ib_hca,
                            const std::vector<HcaPort>& hcas,
                            const std::vector<Candidate>& candidates) {
  DeviceChoice choice;
  std::vector<std::string> present;
  for (const Candidate& candidate : candidates) {
    present.push_back(candidate.name);
    // Loopback counts only when it is asked for by name: tests have no other device.
    if (name_wanted(ifname, candidate.name) && !(candidate.loopback && ifname.empty())) {
      choice.names.insert(candidate.name);
    }
  }
  const std::string no_socket =
      choice.names.empty() && !ifname.empty()
          ? "NCCL_SOCKET_IFNAME=" + ifname +
                " leaves no device (up and with an address: " + joined(present) + "); "
          : "";
  const List list(ib_hca);
  std::set<std::string> named;
  for (const std::string& item : list.items) {
    const auto found = named_by(list, item, hcas, candidates);
    if (found.empty() && !list.exclude) {
      choice.notes += "NCCL_IB_HCA: nothing here is " + item + "; ";
    }
    named.insert(found.begin(), found.end());
  }
  if (!list.exclude && !named.empty()) {
    choice.names = std::move(named);
    return choice;
  }
  choice.notes += no_socket;
  if (list.items.empty()) {
    return choice;
  }
  if (list.exclude) {
    const bool had = !choice.names.empty();
    for (const std::string& name : named) {
      choice.names.erase(name);
    }
    if (had && choice.names.empty()) {
      choice.notes += "NCCL_IB_HCA=" + ib_hca + " leaves no device of " + joined(present) + "; ";
    }
  } else {
    choice.notes += "NCCL_IB_HCA=" + ib_hca +
                    " is not followed (RDMA ports here: " + joined(names_of(hcas)) + "); ";
  }
  return choice;
}

}  // namespace fabric::host
