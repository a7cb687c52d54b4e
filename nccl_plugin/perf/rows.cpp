#include "perf/rows.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "perf/clock.h"

namespace fabric::perf {

using nlohmann::json;

RowWriter::RowWriter(const std::string& path) {
  if (path.empty()) return;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw UsageError("--jsonl " + path + ": " + std::strerror(errno));
}

RowWriter::~RowWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void RowWriter::write(const json& row) {
  if (fd_ < 0) return;
  const std::string line = row.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  const std::lock_guard<std::mutex> guard(mutex_);
  // A full disk must not end the job; the reader sees the missing rows.
  [[maybe_unused]] const ssize_t ignored = ::write(fd_, line.data(), line.size());
}

json start_row(const Options& o, const Plugin& plugin, const std::vector<Device>& devices,
               int channels, std::int64_t t_ns, std::int64_t wall_ns) {
  json list = json::array();
  for (const Device& d : devices) list.push_back({{"name", d.name}, {"speed_mbps", d.speed_mbps}});
  return {{"type", "start"},
          {"t_ns", t_ns},
          {"wall_ns", wall_ns},
          {"pid", ::getpid()},
          {"mode", mode_name(o.mode)},
          {"rank", o.rank},
          {"world", o.world},
          {"size", o.size},
          {"channels", channels},
          {"plugin", plugin.name()},
          {"abi", "v" + std::to_string(plugin.version())},
          {"wait", o.wait == Wait::block ? "block" : "spin"},
          {"verify", o.verify ? "full" : "none"},
          {"devices", list}};
}

json connected_row(std::int64_t t_ns, std::size_t comms, double seconds, std::size_t rss_before,
                   std::size_t rss) {
  return {{"type", "connected"}, {"t_ns", t_ns},     {"comms", comms},
          {"seconds", seconds},  {"rss_bytes", rss}, {"rss_before_bytes", rss_before}};
}

json sample_row(std::int64_t t_ns, std::uint64_t bytes, std::uint64_t iterations,
                const Rails& delta, const char* source) {
  json rails = json::object();
  for (const auto& [name, moved] : delta) rails[name] = {{"tx", moved.tx}, {"rx", moved.rx}};
  return {{"type", "sample"},         {"t_ns", t_ns},   {"bytes", bytes},
          {"iterations", iterations}, {"rails", rails}, {"rails_from", source}};
}

json iteration_row(std::int64_t t_ns, std::uint64_t iteration, double seconds,
                   std::uint64_t corrupt_bytes) {
  return {{"type", "iteration"},
          {"t_ns", t_ns},
          {"iteration", iteration},
          {"seconds", seconds},
          {"corrupt_bytes", corrupt_bytes}};
}

json error_row(std::int64_t t_ns, const TransportError& error) {
  return {{"type", "error"},
          {"t_ns", t_ns},
          {"where", error.where},
          {"code", error.code},
          {"text", error.what()}};
}

json closing_row(std::int64_t t_ns, std::int64_t wall_ns) {
  return {{"type", "closing"}, {"t_ns", t_ns}, {"wall_ns", wall_ns}};
}

json end_row(std::int64_t t_ns, const EndFigures& f) {
  return {{"type", "end"},
          {"t_ns", t_ns},
          {"iterations", f.iterations},
          {"bytes", f.bytes},
          {"seconds", f.seconds},
          {"cpu_seconds", f.cpu_seconds},
          {"algbw_gbps", f.algbw_gbps()},
          {"busbw_gbps", f.busbw_gbps()},
          {"errors", f.errors},
          {"corrupt_bytes", f.corrupt_bytes},
          {"interrupted", f.interrupted},
          {"rss_bytes", f.rss_bytes},
          {"buffer_bytes", f.buffer_bytes}};
}

Sampler::Sampler(RowWriter& rows, const Progress& progress, std::vector<std::string> devices,
                 std::int64_t since_ns, int interval_ms)
    : rows_(rows), progress_(progress), stats_(std::move(devices), since_ns) {
  if (!rows_.enabled()) return;
  before_ = stats_.read();
  thread_ = std::thread([this, interval_ms] { run(std::int64_t{interval_ms} * 1'000'000); });
}

void Sampler::all_sent() {
  if (!thread_.joinable()) return;
  const std::string source = [this] {
    const std::lock_guard<std::mutex> guard(mutex_);
    return std::string(stats_.source());
  }();
  if (source == kFromDevices) wait_acknowledged();
}

void Sampler::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  sample(true);
}

void Sampler::run(std::int64_t interval_ns) {
  const auto interval = std::chrono::nanoseconds(interval_ns);
  auto due = std::chrono::steady_clock::now() + interval;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_until(lock, due, [this] { return stopping_; })) {
    sample(false);
    // Late (the machine was busy): no burst of rows to catch up.
    const auto now = std::chrono::steady_clock::now();
    do {
      due += interval;
    } while (due <= now);
  }
}

void Sampler::sample(bool settled) {
  const Rails rails = settled ? stats_.read_settled() : stats_.read();
  const std::int64_t now = monotonic_ns();
  rows_.write(sample_row(now, progress_.bytes.load(std::memory_order_relaxed),
                         progress_.iterations.load(std::memory_order_relaxed),
                         difference(rails, before_), stats_.source()));
  before_ = rails;
}

}  // namespace fabric::perf
