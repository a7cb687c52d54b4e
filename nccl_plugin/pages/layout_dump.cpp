// Prints the page layouts as JSON, for tests/unit/fabricd/steer/test_page_layouts.py:
// {"structs": {NAME: {"size": N, "fields": {NAME: OFFSET}}}, "constants": {NAME: N}}.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "pages/stats_page.h"
#include "pages/steer_page.h"

namespace {

using namespace fabric::pages;

class Json {
 public:
  void open(const char* key) {
    comma();
    text_ += key == nullptr ? std::string("{") : "\"" + std::string(key) + "\": {";
    first_ = true;
  }
  void close() {
    text_ += "}";
    first_ = false;
  }
  void number(const char* key, unsigned long long value) {
    comma();
    text_ += "\"" + std::string(key) + "\": " + std::to_string(value);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void comma() {
    if (!first_) {
      text_ += ", ";
    }
    first_ = false;
  }
  std::string text_;
  bool first_ = true;
};

#define FIELD(type, name) json.number(#name, offsetof(type, name))

void steer_structs(Json& json) {
  json.open("SteerHeader");
  json.number("size", sizeof(SteerHeader));
  json.open("fields");
  FIELD(SteerHeader, magic);
  FIELD(SteerHeader, version);
  FIELD(SteerHeader, header_size);
  FIELD(SteerHeader, seq);
  FIELD(SteerHeader, page_size);
  FIELD(SteerHeader, crc);
  FIELD(SteerHeader, heartbeat_ns);
  FIELD(SteerHeader, incarnation);
  FIELD(SteerHeader, generation);
  FIELD(SteerHeader, rail_count);
  FIELD(SteerHeader, path_count);
  FIELD(SteerHeader, mode);
  FIELD(SteerHeader, fence_count);
  FIELD(SteerHeader, fence_crc);
  FIELD(SteerHeader, reserved);
  json.close();
  json.close();
  json.open("SteerRail");
  json.number("size", sizeof(SteerRail));
  json.open("fields");
  FIELD(SteerRail, netdev);
  FIELD(SteerRail, epoch);
  FIELD(SteerRail, weight);
  FIELD(SteerRail, state);
  FIELD(SteerRail, reserved0);
  FIELD(SteerRail, since_ns);
  FIELD(SteerRail, rdma_weight);
  FIELD(SteerRail, rdma_state);
  FIELD(SteerRail, rdma_given);
  FIELD(SteerRail, reserved);
  json.close();
  json.close();
  json.open("SteerPath");
  json.number("size", sizeof(SteerPath));
  json.open("fields");
  FIELD(SteerPath, netdev);
  FIELD(SteerPath, remote);
  FIELD(SteerPath, epoch);
  FIELD(SteerPath, weight);
  FIELD(SteerPath, state);
  FIELD(SteerPath, reserved0);
  FIELD(SteerPath, since_ns);
  FIELD(SteerPath, rdma_weight);
  FIELD(SteerPath, rdma_state);
  FIELD(SteerPath, rdma_given);
  FIELD(SteerPath, reserved);
  json.close();
  json.close();
}

void stats_structs(Json& json) {
  json.open("StatsHeader");
  json.number("size", sizeof(StatsHeader));
  json.open("fields");
  FIELD(StatsHeader, magic);
  FIELD(StatsHeader, version);
  FIELD(StatsHeader, header_size);
  FIELD(StatsHeader, seq);
  FIELD(StatsHeader, page_size);
  FIELD(StatsHeader, pid);
  FIELD(StatsHeader, start_ns);
  FIELD(StatsHeader, heartbeat_ns);
  FIELD(StatsHeader, rail_count);
  FIELD(StatsHeader, send_comms);
  FIELD(StatsHeader, recv_comms);
  FIELD(StatsHeader, reserved0);
  FIELD(StatsHeader, errors);
  FIELD(StatsHeader, refused_peers);
  FIELD(StatsHeader, steer_rejected);
  FIELD(StatsHeader, event_count);
  FIELD(StatsHeader, steer_present);
  FIELD(StatsHeader, failover);
  FIELD(StatsHeader, job);
  FIELD(StatsHeader, group_count);
  FIELD(StatsHeader, pid_namespace);
  FIELD(StatsHeader, refused_fenced);
  FIELD(StatsHeader, reserved);
  json.close();
  json.close();
  json.open("StatsRail");
  json.number("size", sizeof(StatsRail));
  json.open("fields");
  FIELD(StatsRail, netdev);
  FIELD(StatsRail, tx_bytes);
  FIELD(StatsRail, rx_bytes);
  FIELD(StatsRail, tx_chunks);
  FIELD(StatsRail, rx_chunks);
  FIELD(StatsRail, retransmit_bytes);
  FIELD(StatsRail, retransmit_chunks);
  FIELD(StatsRail, duplicate_bytes);
  FIELD(StatsRail, failovers);
  FIELD(StatsRail, rejoins);
  FIELD(StatsRail, stalls);
  FIELD(StatsRail, stall_ns);
  FIELD(StatsRail, in_flight_bytes);
  FIELD(StatsRail, live_paths);
  FIELD(StatsRail, dead_paths);
  FIELD(StatsRail, tx_messages);
  FIELD(StatsRail, rx_messages);
  FIELD(StatsRail, reserved);
  json.close();
  json.close();
  json.open("StatsLatency");
  json.number("size", sizeof(StatsLatency));
  json.open("fields");
  FIELD(StatsLatency, sum_ns);
  FIELD(StatsLatency, bucket);
  json.close();
  json.close();
  json.open("StatsGroup");
  json.number("size", sizeof(StatsGroup));
  json.open("fields");
  FIELD(StatsGroup, address);
  FIELD(StatsGroup, incarnation);
  FIELD(StatsGroup, direction);
  FIELD(StatsGroup, reserved0);
  FIELD(StatsGroup, comms);
  FIELD(StatsGroup, bytes);
  FIELD(StatsGroup, messages);
  FIELD(StatsGroup, retransmit_bytes);
  FIELD(StatsGroup, retransmit_chunks);
  FIELD(StatsGroup, failovers);
  FIELD(StatsGroup, stalls);
  FIELD(StatsGroup, stall_ns);
  FIELD(StatsGroup, in_flight_bytes);
  FIELD(StatsGroup, latency);
  FIELD(StatsGroup, reserved);
  json.close();
  json.close();
  json.open("StatsEvent");
  json.number("size", sizeof(StatsEvent));
  json.open("fields");
  FIELD(StatsEvent, index);
  FIELD(StatsEvent, time_ns);
  FIELD(StatsEvent, comm);
  FIELD(StatsEvent, kind);
  FIELD(StatsEvent, local_rail);
  FIELD(StatsEvent, remote_rail);
  FIELD(StatsEvent, detail);
  json.close();
  json.close();
}

#undef FIELD
#define CONSTANT(name) json.number(#name, static_cast<unsigned long long>(name))

void constants(Json& json) {
  CONSTANT(kSteerMagic);
  CONSTANT(kSteerVersion);
  CONSTANT(kSteerPageSize);
  CONSTANT(kSteerMaxRails);
  CONSTANT(kSteerMaxPaths);
  CONSTANT(kSteerMaxFences);
  CONSTANT(kSteerStaleNs);
  CONSTANT(kSteerCrcFrom);
  CONSTANT(kSteerRailsAt);
  CONSTANT(kSteerPathsAt);
  CONSTANT(kWeightFull);
  CONSTANT(kStatsMagic);
  CONSTANT(kStatsVersion);
  CONSTANT(kStatsPageSize);
  CONSTANT(kStatsMaxRails);
  CONSTANT(kStatsOldestVersion);
  CONSTANT(kStatsMaxEvents);
  CONSTANT(kStatsMaxGroups);
  CONSTANT(kStatsLatencyBuckets);
  CONSTANT(kStatsRailsAt);
  CONSTANT(kStatsEventsAt);
  CONSTANT(kStatsLatencyAt);
  CONSTANT(kStatsGroupsAt);
}

#undef CONSTANT

}  // namespace

int main() {
  Json json;
  json.open(nullptr);
  json.open("structs");
  steer_structs(json);
  stats_structs(json);
  json.close();
  json.open("constants");
  constants(json);
  json.close();
  json.close();
  return std::puts(json.text().c_str()) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
