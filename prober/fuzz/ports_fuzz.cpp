// libFuzzer target for the page of source ports: any record, and what the engine makes of it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/engine.h"
#include "core/ports.h"

using namespace fabric;
using namespace fabric::prober;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  clock_ports::Record record{};
  std::memcpy(&record, data, std::min(size, sizeof record));
  const std::vector<PortWish> wishes = parse_ports(record);
  if (wishes.size() > clock_ports::kEntries) std::abort();
  for (const PortWish& wish : wishes) {
    if (wish.port < clock_ports::kLeastPort || wish.host_id == 0) std::abort();
  }
  Engine engine(1, [] { return std::uint64_t{5}; });
  Key key{};
  engine.set_keys(Keyring(std::span(&key, 1)));
  Config config;
  config.host_id = 1;
  Address own;
  own.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  own.port = 9200;
  Address peer = own;
  peer.ip[15] = 2;
  config.links.push_back({0, "rail0", own, false});
  config.paths.push_back({0, 0, peer, 7, true});
  engine.configure(config, 1, 0);
  engine.set_ports(wishes);
  std::vector<Outgoing> out;
  engine.take_due(1'000'000'000, 0, out);
  for (const Outgoing& packet : out) {
    if (packet.port != 0 && !engine.uses_port(0, packet.port)) std::abort();
  }
  return 0;
}
