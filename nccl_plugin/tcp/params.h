// Every parameter of the plugin, read once from the environment. docs/plugin.md has the same table.
#pragma once

#include <cstdint>
#include <string>

namespace fabric::tcp {

struct Params {
  std::string run_dir;   // FABRIC_RUN_DIR: steer page and stats pages; default /run/fabricd
  bool failover = true;  // FABRIC_FAILOVER=0: one path, an error when it dies
  std::int64_t deadline_ns = 120'000'000'000;  // FABRIC_DEADLINE (s): all paths dead for so long
  std::string job;     // FABRIC_JOB: name in the stats page; default: the process's name
  std::string ifname;  // NCCL_SOCKET_IFNAME: prefixes; ^ excludes, = means exactly
  std::string family;  // NCCL_SOCKET_FAMILY: AF_INET or AF_INET6
  std::uint32_t chunk_size = 128 * 1024;  // FABRIC_CHUNK (bytes, 4096..4194304)
  int socket_buffer = 0;                  // FABRIC_SOCKET_BUFFER (bytes); 0: the kernel tunes it
  std::int64_t hold_ns = 500'000'000;     // FABRIC_HOLD (s): own hold-down after a failure
  int user_timeout_ms = 3000;             // FABRIC_USER_TIMEOUT (s): with FABRIC_FAILOVER=0
  std::string complaints;                 // what was malformed; init() logs it
};

// Malformed values keep the default and are named in `complaints`.
Params read_params();
std::string describe(const Params& params);

}  // namespace fabric::tcp
