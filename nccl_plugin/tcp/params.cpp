#include "tcp/params.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

namespace fabric::tcp {

namespace {

const char* text_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Nothing is written to `out` when the variable is absent or not a number within [low, high].
template <typename T>
void number(const char* name, double low, double high, double scale, T& out,
            std::string& complaints) {
  const std::string text = text_of(name);
  if (text.empty()) {
    return;
  }
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(value) || value < low || value > high) {
    complaints += std::string(name) + "=" + text + " is not a number from " + std::to_string(low) +
                  " to " + std::to_string(high) + "; ";
    return;
  }
  out = static_cast<T>(value * scale);
}

std::string process_name() {
  std::ifstream file("/proc/self/comm");
  std::string name;
  std::getline(file, name);
  return name.empty() ? "unknown" : name;
}

}  // namespace

Params read_params() {
  Params params;
  std::string& complaints = params.complaints;
  params.run_dir = text_of("FABRIC_RUN_DIR");
  if (params.run_dir.empty()) {
    params.run_dir = "/run/fabricd";
  }
  int failover = 1;
  number("FABRIC_FAILOVER", 0, 1, 1, failover, complaints);
  params.failover = failover != 0;
  number("FABRIC_DEADLINE", 0.1, 86400, 1e9, params.deadline_ns, complaints);
  number("FABRIC_CHUNK", 4096, 4194304, 1, params.chunk_size, complaints);
  number("FABRIC_SOCKET_BUFFER", 0, 1 << 30, 1, params.socket_buffer, complaints);
  number("FABRIC_HOLD", 0, 60, 1e9, params.hold_ns, complaints);
  number("FABRIC_USER_TIMEOUT", 0.1, 600, 1e3, params.user_timeout_ms, complaints);
  params.job = text_of("FABRIC_JOB");
  if (params.job.empty()) {
    params.job = process_name();
  }
  params.ifname = text_of("NCCL_SOCKET_IFNAME");
  params.family = text_of("NCCL_SOCKET_FAMILY");
  return params;
}

std::string describe(const Params& params) {
  return "FABRIC_RUN_DIR=" + params.run_dir +
         " FABRIC_FAILOVER=" + std::to_string(params.failover ? 1 : 0) +
         " FABRIC_DEADLINE=" + std::to_string(params.deadline_ns / 1'000'000'000) + "s" +
         " FABRIC_CHUNK=" + std::to_string(params.chunk_size) +
         " FABRIC_SOCKET_BUFFER=" + std::to_string(params.socket_buffer) +
         " FABRIC_HOLD=" + std::to_string(params.hold_ns / 1'000'000) + "ms" +
         " FABRIC_JOB=" + params.job + " NCCL_SOCKET_IFNAME=" + params.ifname;
}

}  // namespace fabric::tcp
