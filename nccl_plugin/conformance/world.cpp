#include "conformance/world.h"

#include <algorithm>

#include "perf/clock.h"

namespace fabric::conformance {

World::World(perf::Plugin& plugin, perf::Rendezvous& rendezvous, const WorldConfig& config)
    : plugin_(plugin),
      rendezvous_(rendezvous),
      config_(config),
      idle_(plugin, perf::Wait::block),
      deadline_ns_(perf::monotonic_ns() + static_cast<std::int64_t>(config.timeout_s * 1e9)),
      common_random_(config.seed) {
  options_.rank = config.rank;
  options_.world = config.world;
  options_.timeout_s = config.timeout_s;
  const std::vector<perf::Device> devices = plugin.devices();
  if (devices.empty()) throw Violation("devices() names no device");
  if (config.device >= static_cast<int>(devices.size())) {
    throw perf::UsageError("--device " + std::to_string(config.device) + ": the plugin has " +
                           std::to_string(devices.size()) + " devices");
  }
  const int offered = devices[static_cast<std::size_t>(config.device)].max_receives;
  if (offered < 1) throw Violation("maxRecvs is " + std::to_string(offered));
  max_group_ = std::min(static_cast<std::size_t>(offered), perf::kMaxGroup);
}

std::vector<std::string> World::gather(const std::string& mine) {
  return rendezvous_.all_gather("case", mine);
}

perf::Mesh World::connect(const std::vector<perf::Link>& links) {
  int channels = 1;
  for (const perf::Link& link : links) channels = std::max(channels, link.channel + 1);
  const std::vector<int> devices(static_cast<std::size_t>(channels), config_.device);
  return {plugin_, rendezvous_, options_, links, devices};
}

std::vector<perf::Link> World::ring(int channels) const {
  std::vector<perf::Link> links;
  for (int source = 0; source < size(); ++source) {
    for (int channel = 0; channel < channels; ++channel) {
      links.push_back({source, (source + 1) % size(), channel});
    }
  }
  return links;
}

bool World::late() const { return perf::monotonic_ns() > deadline_ns_; }

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = tag_cases();
    for (auto more : {request_cases(), comm_cases()}) {
      std::move(more.begin(), more.end(), std::back_inserter(all));
    }
    return all;
  }();
  return cases;
}

}  // namespace fabric::conformance
