#include <nlohmann/json.hpp>

#include "examples.h"

namespace fabric::prober::fuzz {

namespace {

using nlohmann::json;

// Links of both families with two paths each, as the daemon asks for them.
json configure() {
  json links = json::array();
  json paths = json::array();
  for (unsigned i = 0; i < 2; ++i) {
    const std::string net = i == 0 ? "10.0.0." : "fd00::";
    links.push_back({{"index", i},
                     {"netdev", "rail" + std::to_string(i)},
                     {"port", 9200},
                     {"address", net + "1"},
                     {"hw_stamps", i == 1}});
    for (unsigned peer = 0; peer < 2; ++peer) {
      paths.push_back({{"index", 2 * i + peer},
                       {"link", i},
                       {"port", 9200},
                       {"address", net + std::to_string(2 + peer)},
                       {"host_id", 7 + peer},
                       {"clock", peer == 0},
                       {"extra", peer == 1}});
    }
  }
  return {{"op", "configure"},          {"host_id", 4294967295U},
          {"link_interval_us", 10'000}, {"misses", 3},
          {"clock_train_hz", 100},      {"dscp", 46},
          {"links", std::move(links)},  {"paths", std::move(paths)}};
}

}  // namespace

std::vector<std::string> examples() {
  json short_one = configure();
  short_one["paths"] = json::array();
  json odd = configure();
  odd["misses"] = -1;
  odd["links"][0]["netdev"] = "../x";
  return {configure().dump(),   short_one.dump(),        odd.dump(),
          R"({"op":"status"})", R"({"op":"subscribe"})", "[1e400,[[[[]]]],\"\\ud800\"]"};
}

}  // namespace fabric::prober::fuzz
