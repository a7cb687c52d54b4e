// The engine's RDMA paths: UD probes of core/wire.h beside the UDP probes of the same path.
#include <algorithm>

#include "core/engine.h"

namespace fabric::prober {

std::size_t Config::udp_links() const {
  const auto rdma =
      std::find_if(links.begin(), links.end(), [](const LinkConfig& link) { return link.rdma(); });
  return static_cast<std::size_t>(rdma - links.begin());
}

std::size_t Config::udp_paths() const {
  const std::size_t udp = udp_links();
  const auto rdma = std::find_if(paths.begin(), paths.end(),
                                 [&](const PathConfig& path) { return path.link >= udp; });
  return static_cast<std::size_t>(rdma - paths.begin());
}

void add_rdma_link(Config& config, std::uint16_t udp_link, std::string device,
                   std::uint8_t device_port) {
  const std::size_t paths = config.udp_paths();
  LinkConfig link = config.links[udp_link];
  link.index = static_cast<std::uint16_t>(config.links.size());
  link.address.port = kRocePort;
  link.hw_stamps = false;
  link.udp_link = udp_link;
  link.device = std::move(device);
  link.device_port = device_port;
  config.links.push_back(std::move(link));
  for (std::size_t i = 0; i < paths; ++i) {
    if (config.paths[i].link != udp_link) continue;
    PathConfig path = config.paths[i];
    path.index = static_cast<std::uint16_t>(config.paths.size());
    path.link = static_cast<std::uint16_t>(config.links.size() - 1);
    path.peer.port = kRocePort;
    config.paths.push_back(path);
  }
}

void Engine::pair_rdma_paths() {
  for (std::size_t i = udp_paths_; i < paths_.size(); ++i) {
    const PathConfig& rdma = paths_[i].path->config();
    for (std::size_t j = 0; j < udp_paths_; ++j) {
      const PathConfig& udp = paths_[j].path->config();
      if (udp.link == config_.links[rdma.link].udp_link && udp.peer.ip == rdma.peer.ip &&
          udp.host_id == rdma.host_id) {
        paths_[j].beside = i;
        paths_[i].beside = j;
      }
    }
  }
}

bool Engine::is_lost(const Entry& entry, Nanos now) const {
  if (!entry.rdma || entry.beside >= paths_.size()) return false;
  const auto silent = [&](const Path& path) {
    const Reachability heard = path.heard(config_.misses);
    if (heard == Reachability::kWell || heard == Reachability::kDoubt) return false;
    return now - path.last_heard() >= kSearch;
  };
  return silent(*entry.path) && silent(*paths_[entry.beside].path);
}

void Engine::turn_trains(Nanos now) {
  for (std::size_t i = udp_paths_; i < paths_.size(); ++i) {
    const Entry& entry = paths_[i];
    if (entry.train_period == 0 || entry.beside >= udp_paths_) continue;
    const bool broken = paths_[entry.beside].path->broken(config_.misses);
    entry.path->set_carries_trains(broken && has_peer(entry) && !is_lost(entry, now));
  }
}

std::uint64_t Engine::next_report(Entry& entry, std::uint64_t seq) {
  if (!entry.rdma && entry.beside < paths_.size()) {
    const Path& rdma = *paths_[entry.beside].path;
    const bool well = rdma.heard(config_.misses) == Reachability::kWell;
    const UdTerms& own = ud_terms_[rdma.config().link];
    if (seq % (well ? kUdTermsTurn : 2) == 0) return pack(own);
  }
  return next_report(listeners_[entry.listener]);
}

bool Engine::hears(std::uint16_t link, const Address& peer) const {
  const auto found = by_peer_[link].find(peer);
  return found != by_peer_[link].end() &&
         paths_[found->second].path->heard(config_.misses) == Reachability::kWell;
}

std::optional<Address> Engine::find_peer(std::uint16_t link, const UdTerms& terms) const {
  for (std::size_t i = udp_paths_; i < paths_.size(); ++i) {
    const Path& path = *paths_[i].path;
    if (path.config().link == link && path.ud_terms() == terms) return path.config().peer;
  }
  return std::nullopt;
}

}  // namespace fabric::prober
