// The JSONL file: one object a line, each written whole. Keys: docs/reference/fabric-perf.md.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "perf/options.h"
#include "perf/plugin.h"
#include "perf/statsreader.h"

namespace fabric::perf {

class RowWriter {
 public:
  // An empty path: rows go nowhere. Throws UsageError when the file cannot be written.
  explicit RowWriter(const std::string& path);
  ~RowWriter();
  RowWriter(const RowWriter&) = delete;
  RowWriter& operator=(const RowWriter&) = delete;
  bool enabled() const { return fd_ >= 0; }
  void write(const nlohmann::json& row);  // from any thread

 private:
  int fd_ = -1;
  std::mutex mutex_;
};

// Written by the rank's thread, read by the sampler.
struct Progress {
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> iterations{0};
};

struct EndFigures {
  std::uint64_t iterations = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // user and system, all threads, while it moved data
  double bus_factor = 1;
  std::uint64_t errors = 0;
  std::uint64_t corrupt_bytes = 0;
  bool interrupted = false;
  std::size_t rss_bytes = 0;     // of the process while all comms are open; 0: not known
  std::size_t buffer_bytes = 0;  // of it our own: what is sent and received
  double algbw_gbps() const {    // Gbit/s
    return seconds > 0 ? static_cast<double>(bytes) * 8e-9 / seconds : 0.0;
  }
  double busbw_gbps() const { return algbw_gbps() * bus_factor; }
};

nlohmann::json start_row(const Options& options, const Plugin& plugin,
                         const std::vector<Device>& devices, int channels, std::int64_t t_ns,
                         std::int64_t wall_ns);
// Once every comm is connected: `seconds` since the first listen, `rss_before` from just then.
nlohmann::json connected_row(std::int64_t t_ns, std::size_t comms, double seconds,
                             std::size_t rss_before, std::size_t rss);
nlohmann::json sample_row(std::int64_t t_ns, std::uint64_t bytes, std::uint64_t iterations,
                          const Rails& delta, const char* source);
nlohmann::json iteration_row(std::int64_t t_ns, std::uint64_t iteration, double seconds,
                             std::uint64_t corrupt_bytes);
nlohmann::json error_row(std::int64_t t_ns, const TransportError& error);
// The last iteration is over, the comms will be closed.
nlohmann::json closing_row(std::int64_t t_ns, std::int64_t wall_ns);
nlohmann::json end_row(std::int64_t t_ns, const EndFigures& figures);

// Writes a sample row each interval from a thread of its own, so that a stalled collective is seen
// as such. stop() writes the last one.
class Sampler {
 public:
  Sampler(RowWriter& rows, const Progress& progress, std::vector<std::string> devices,
          std::int64_t since_ns, int interval_ms);
  ~Sampler() { stop(); }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  // Nothing more will be sent; the connections are still open. What the devices have yet to count
  // is waited for, where they are what is read.
  void all_sent();
  void stop();

 private:
  void run(std::int64_t interval_ns);
  void sample(bool settled);

  RowWriter& rows_;
  const Progress& progress_;
  StatsReader stats_;
  Rails before_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fabric::perf
