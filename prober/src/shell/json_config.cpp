#include "shell/json_config.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "fabric/ring.h"
#include "shell/address.h"

namespace fabric::prober {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what); }

std::uint64_t number(const json& object, const std::string& where, const char* key,
                     std::uint64_t least, std::uint64_t most) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer() ||
      (!found->is_number_unsigned() && found->get<std::int64_t>() < 0)) {
    refuse(where + key + ": an integer from " + std::to_string(least) + " to " +
           std::to_string(most) + " is needed");
  }
  const auto value = found->get<std::uint64_t>();
  if (value < least || value > most) {
    refuse(where + key + ": " + std::to_string(value) + " is not within " + std::to_string(least) +
           ".." + std::to_string(most));
  }
  return value;
}

std::uint64_t number_or(const json& object, const std::string& where, const char* key,
                        std::uint64_t least, std::uint64_t most, std::uint64_t otherwise) {
  return object.contains(key) ? number(object, where, key, least, most) : otherwise;
}

std::string text(const json& object, const std::string& where, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) refuse(where + key + ": a string is needed");
  return found->get<std::string>();
}

bool flag(const json& object, const std::string& where, const char* key, bool otherwise = false) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  if (!found->is_boolean()) refuse(where + key + ": true or false is needed");
  return found->get<bool>();
}

Address address(const json& object, const std::string& where, const std::string& netdev) {
  const std::string written = text(object, where, "address");
  const auto port = static_cast<std::uint16_t>(number(object, where, "port", 1, 65535));
  const auto parsed = parse_address(written, port, netdev);
  if (!parsed) {
    refuse(where + "address: '" + written + "' is neither IPv4 nor IPv6, or its zone is not " +
           netdev);
  }
  return *parsed;
}

const json& list(const json& request, const char* key, std::size_t most) {
  const auto found = request.find(key);
  if (found == request.end() || !found->is_array() || found->size() > most) {
    refuse(std::string(key) + ": a list of at most " + std::to_string(most) + " is needed");
  }
  for (const json& item : *found) {
    if (!item.is_object()) refuse(std::string(key) + ": its elements are objects");
  }
  return *found;
}

LinkConfig parse_link(const json& item, const std::string& where, std::size_t count) {
  LinkConfig link;
  link.index = static_cast<std::uint16_t>(number(item, where, "index", 0, count - 1));
  link.netdev = text(item, where, "netdev");
  if (!is_netdev_name(link.netdev)) {
    refuse(where + "netdev: 1 to 15 bytes without space, slash and colon, not . or ..");
  }
  link.address = address(item, where, link.netdev);
  Address unknown;  // 0.0.0.0: it has none yet, and only its carrier is watched
  unknown.ip[10] = unknown.ip[11] = 0xff;
  if (!is_one_host(link.address) && link.address.ip != unknown.ip) {
    refuse(where + "address: " + format_address(link.address) + " is not one of a host");
  }
  if (item.contains("rail")) link.rail = static_cast<int>(number(item, where, "rail", 0, 63));
  link.hw_stamps = flag(item, where, "hw_stamps");
  return link;
}

PathConfig parse_path(const json& item, const std::string& where, std::size_t count,
                      const std::vector<LinkConfig>& links) {
  if (links.empty()) refuse("paths: there is no link for them");
  PathConfig path;
  path.index = static_cast<std::uint16_t>(number(item, where, "index", 0, count - 1));
  path.link = static_cast<std::uint16_t>(number(item, where, "link", 0, links.size() - 1));
  path.peer = address(item, where, links[path.link].netdev);
  const bool on_loopback = std::any_of(
      links.begin(), links.end(), [](const LinkConfig& link) { return is_loopback(link.address); });
  if (!is_one_host(path.peer) || (is_loopback(path.peer) && !on_loopback)) {
    refuse(where + "address: " + format_address(path.peer) + " is not one of another host");
  }
  path.host_id = static_cast<std::uint32_t>(number_or(item, where, "host_id", 0, 0xffffffffU, 0));
  if (item.contains("peer_rail")) {
    path.peer_rail = static_cast<int>(number(item, where, "peer_rail", 0, 63));
  }
  path.clock = flag(item, where, "clock");
  path.extra = flag(item, where, "extra");
  if (path.peer.is_v4() != links[path.link].address.is_v4()) {
    refuse(where + "address: not of the same family as its link's");
  }
  return path;
}

// Verbs ports beside some of the links.
void parse_rdma(const json& request, Config& config) {
  if (!request.contains("rdma")) return;
  const json& list_of_ports = list(request, "rdma", ring::kMaxLinks);
  const std::size_t links = config.links.size();
  std::set<std::uint64_t> known;
  for (std::size_t i = 0; i < list_of_ports.size(); ++i) {
    const std::string where = "rdma[" + std::to_string(i) + "].";
    const json& item = list_of_ports[i];
    if (links == 0) refuse("rdma: there is no link beside which it stands");
    const std::uint64_t link = number(item, where, "link", 0, links - 1);
    if (!known.insert(link).second) refuse(where + "link: this link is there twice");
    const std::string device = text(item, where, "device");
    if (device.empty() || device.size() > 63) refuse(where + "device: 1 to 63 characters");
    const auto port = static_cast<std::uint8_t>(number(item, where, "port", 1, 254));
    add_rdma_link(config, static_cast<std::uint16_t>(link), device, port);
    if (config.links.size() > ring::kMaxLinks || config.paths.size() > ring::kMaxPaths) {
      refuse("rdma: with RDMA there are " + std::to_string(config.links.size()) + " links and " +
             std::to_string(config.paths.size()) + " paths; there is room for " +
             std::to_string(ring::kMaxLinks) + " and " + std::to_string(ring::kMaxPaths));
    }
  }
}

// Indices must be 0..n-1, each once: afterwards position and index are the same.
template <typename T>
void sort_by_index(std::vector<T>& items, const char* what) {
  std::sort(items.begin(), items.end(), [](const T& a, const T& b) { return a.index < b.index; });
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].index != i)
      refuse(std::string(what) + ": index " + std::to_string(i) + " is missing");
  }
}

}  // namespace

Config parse_config(const json& request) {
  Config config;
  config.host_id = static_cast<std::uint32_t>(number(request, "", "host_id", 0, 0xffffffffU));
  config.link_interval =
      static_cast<Nanos>(number(request, "", "link_interval_us", 500, 10'000'000)) * 1000;
  config.misses = static_cast<std::uint32_t>(number(request, "", "misses", 1, 1000));
  config.clock_train_hz =
      static_cast<std::uint32_t>(number_or(request, "", "clock_train_hz", 0, 1000, 0));
  config.dscp = static_cast<std::uint8_t>(number_or(request, "", "dscp", 0, 63, 0));
  config.synchronized = flag(request, "", "synchronized", true);

  const json& links = list(request, "links", ring::kMaxLinks);
  for (std::size_t i = 0; i < links.size(); ++i) {
    config.links.push_back(parse_link(links[i], "links[" + std::to_string(i) + "].", links.size()));
  }
  sort_by_index(config.links, "links");
  std::set<std::pair<std::string, std::string>> bound;
  for (const LinkConfig& link : config.links) {
    const std::string at = format_address(link.address) + "/" + std::to_string(link.address.port);
    if (!bound.emplace(link.netdev, at).second) {
      refuse("links: " + link.netdev + " with " + at + " is there twice");
    }
  }

  const json& paths = list(request, "paths", ring::kMaxPaths);
  std::set<std::pair<std::uint16_t, std::string>> known;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string where = "paths[" + std::to_string(i) + "].";
    config.paths.push_back(parse_path(paths[i], where, paths.size(), config.links));
    const PathConfig& path = config.paths.back();
    const std::string at = format_address(path.peer) + "/" + std::to_string(path.peer.port);
    if (!known.emplace(path.link, at).second) refuse(where + "address: this path is there twice");
  }
  sort_by_index(config.paths, "paths");
  parse_rdma(request, config);
  return config;
}

}  // namespace fabric::prober
