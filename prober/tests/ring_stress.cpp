// usage: fabric_ring_stress PATH EVENTS [BURST PAUSE_US]
// Writes EVENTS stall records whose fields all follow from their number, and as many rewrites of
// the first path row; a reader can tell a torn copy from a whole one.
#include <cstdlib>
#include <ctime>

#include "shell/ring_file.h"

int main(int argc, char** argv) {
  using namespace fabric;
  if (argc != 3 && argc != 5) return 2;
  const std::uint64_t count = std::strtoull(argv[2], nullptr, 10);
  const std::uint64_t burst = argc == 5 ? std::strtoull(argv[3], nullptr, 10) : 0;
  const long pause_us = argc == 5 ? std::strtol(argv[4], nullptr, 10) : 0;
  prober::RingFile file(argv[1], 1, 1);
  file.begin_config();
  ring::PathRow row{};
  file.write_path(0, row);
  file.publish_config({.links = 0, .paths = 1, .rdma_links = 0, .rdma_paths = 0}, 1, 3, 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    ring::EventRecord event{};
    event.mono_ns = i;
    event.kind = static_cast<std::uint16_t>(ring::EventKind::kStall);
    event.link = event.path = ring::kNone;
    event.value[0] = i * 3;
    event.value[1] = i * 7;
    file.event(event);
    ring::SampleRecord sample{};
    sample.mono_ns = i;
    sample.t1 = sample.t2 = sample.t3 = sample.t4 = static_cast<std::int64_t>(i);
    file.sample(sample);
    row.sent = row.received = row.rx_bitmap = row.tx_bitmap = i;
    file.write_path(0, row);
    if (burst != 0 && i % burst == 0) {
      const timespec pause{0, pause_us * 1000};
      ::nanosleep(&pause, nullptr);
    }
  }
  return 0;
}
