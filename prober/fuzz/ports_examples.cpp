#include <cstring>

#include "examples.h"
#include "fabric/clock_ports.h"

namespace fabric::prober::fuzz {

std::vector<std::string> examples() {
  clock_ports::Record record{};
  const auto text = [&] {
    std::string out(sizeof record, '\0');
    std::memcpy(out.data(), &record, sizeof record);
    return out;
  };
  std::vector<std::string> out{text()};
  clock_ports::Entry& entry = record.entry[0];
  const std::uint8_t address[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  std::memcpy(entry.own, address, sizeof address);
  std::memcpy(entry.peer, address, sizeof address);
  entry.peer[15] = 2;
  entry.host_id = 7;
  entry.peer_port = 9200;
  entry.port = 61'000;
  out.push_back(text());
  record.entry[clock_ports::kEntries - 1] = entry;
  entry.port = 22;
  out.push_back(text());
  return out;
}

}  // namespace fabric::prober::fuzz
