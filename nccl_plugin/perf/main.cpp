// fabric-perf: drives any NCCL net plugin over host memory. See docs/reference/fabric-perf.md.
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "perf/clock.h"
#include "perf/job.h"
#include "perf/mesh.h"
#include "perf/options.h"
#include "perf/pattern.h"
#include "perf/pingpong.h"
#include "perf/plugin.h"
#include "perf/rendezvous.h"
#include "perf/rows.h"
#include "perf/runner.h"
#include "perf/token.h"

namespace fabric::perf {
namespace {

enum Exit : int { kClean = 0, kTransportError = 1, kUsage = 2, kCorrupt = 3 };

// What all ranks must agree on; rank 0 also says how many channels there are.
std::string settings(const Options& o) {
  std::ostringstream text;
  text << "mode=" << mode_name(o.mode) << " world=" << o.world << " size=" << o.size
       << " iters=" << o.iterations.value_or(0) << " slice=" << o.slice
       << " type=" << (o.element == Element::float32 ? "float32" : "int32")
       << " pingpong=" << o.pingpong << " batch=" << o.batch << " memory=" << o.memory
       << " channels=" << o.channels << " group=" << o.group;
  return text.str();
}

// What this process has in memory, by proc(5); 0 where that cannot be read.
std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  if (!(statm >> total >> resident)) return 0;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

int agree(Rendezvous& rendezvous, const Options& o, std::size_t devices) {
  const std::string mine = settings(o);
  const auto all = rendezvous.all_gather("settings", mine + "\n" + std::to_string(devices));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string theirs = all[rank].substr(0, all[rank].find('\n'));
    if (theirs != mine) {
      throw UsageError("rank " + std::to_string(rank) + " was started with '" + theirs +
                       "', this one with '" + mine + "'");
    }
  }
  if (o.channels > 0) return o.channels;
  return std::stoi(all[0].substr(all[0].find('\n') + 1));
}

void check_limits(const Options& o) {
  if (o.mode == Mode::ring && o.element == Element::float32 && o.world > kMaxExactWorld) {
    throw UsageError("float32 sums are exact up to --world " + std::to_string(kMaxExactWorld) +
                     "; use --type int32");
  }
}

void print_summary(const Options& o, const Plugin& plugin, int channels, const EndFigures& f,
                   const Latency& latency) {
  std::printf("rank %d of %d: %s, plugin %s (v%d), %d channels, %zu bytes\n", o.rank, o.world,
              mode_name(o.mode), plugin.name().c_str(), plugin.version(), channels, o.size);
  std::printf("  %" PRIu64 " iterations, %" PRIu64 " bytes in %.3f s%s\n", f.iterations, f.bytes,
              f.seconds, f.interrupted ? " (interrupted)" : "");
  std::printf("  algbw %.3f GB/s (%.3f Gbit/s), busbw %.3f GB/s (%.3f Gbit/s)\n",
              f.algbw_gbps() / 8, f.algbw_gbps(), f.busbw_gbps() / 8, f.busbw_gbps());
  if (latency.count > 0) {
    std::printf("  latency (half round trip, %zu): min %.1f us, p50 %.1f us, p99 %.1f us\n",
                latency.count, latency.min, latency.p50, latency.p99);
  }
  std::printf("  %" PRIu64 " errors, %" PRIu64 " corrupt bytes%s\n", f.errors, f.corrupt_bytes,
              o.verify ? "" : " (not verified)");
  std::fflush(stdout);
}

// After a transport error nothing is closed: the plugin may not come back from it. The kernel
// closes the connections, which is how peers learn of it.
[[noreturn]] void leave(int status) {
  std::fflush(stdout);
  std::fflush(stderr);
  ::_exit(status);
}

class Session {
 public:
  Session(const Options& options, std::int64_t since_ns)
      : options_(options), since_ns_(since_ns), rows_(options.jsonl) {}

  int run() {
    check_limits(options_);
    plugin_ = Plugin::load(options_.plugin, options_.abi, options_.verbose);
    try {
      return connected();
    } catch (const TransportError& error) {
      // Told to stop, as the other ranks probably were: those that left first are no fault.
      if (stop_signals() > 0) return interrupted(error.what());
      rows_.write(error_row(monotonic_ns(), error));
      std::fprintf(stderr, "fabric-perf: rank %d: transport error in %s: %s\n", options_.rank,
                   error.where.c_str(), error.what());
      figures_.errors = 1;
      finish();
      leave(figures_.corrupt_bytes > 0 ? kCorrupt : kTransportError);
    } catch (const Interrupted&) {
      return interrupted("nothing moves");
    }
  }

 private:
  int interrupted(const char* why) {
    std::fprintf(stderr, "fabric-perf: rank %d: interrupted (%s)\n", options_.rank, why);
    figures_.interrupted = true;
    finish();
    leave(figures_.corrupt_bytes > 0 ? kCorrupt : kClean);
  }

  int connected() {
    plugin_->init();
    const std::vector<Device> devices = plugin_->devices();
    if (devices.empty()) throw TransportError("devices", 0, "the plugin found no device");
    if (options_.device && static_cast<std::size_t>(*options_.device) >= devices.size()) {
      throw UsageError("--device " + std::to_string(*options_.device) + ": the plugin has " +
                       std::to_string(devices.size()) + " devices");
    }
    std::vector<std::string> names;
    names.reserve(devices.size());
    for (const Device& d : devices) names.push_back(d.name);
    const auto rendezvous = make_rendezvous(
        parse_rendezvous(options_.rendezvous),
        {options_.rank, options_.world,
         std::chrono::milliseconds(static_cast<std::int64_t>(options_.timeout_s * 1000)),
         [] { return stop_signals() > 0; }});
    channels_ = agree(*rendezvous, options_, options_.device ? 1 : devices.size());
    rows_.write(start_row(options_, *plugin_, devices, channels_, monotonic_ns(),
                          clock_ns(CLOCK_REALTIME)));
    sampler_.emplace(rows_, progress_, names, since_ns_, options_.interval_ms);

    check_groups(devices);
    std::vector<int> device_of;
    device_of.reserve(static_cast<std::size_t>(channels_));
    for (int c = 0; c < channels_; ++c) {
      device_of.push_back(options_.device.value_or(c % static_cast<int>(devices.size())));
    }
    const std::size_t rss_before = resident_bytes();
    const std::int64_t connecting_ns = monotonic_ns();
    Mesh mesh(*plugin_, *rendezvous, options_,
              links_of(options_.mode, options_.world, channels_, options_.pingpong != 0),
              std::move(device_of));
    const std::int64_t now = monotonic_ns();
    rows_.write(connected_row(now, mesh.comms(), static_cast<double>(now - connecting_ns) * 1e-9,
                              rss_before, resident_bytes()));
    Idle idle(*plugin_, options_.wait);
    TokenRing token(*plugin_, mesh, options_.rank, options_.world);
    if (options_.mode == Mode::p2p) measure_latency(mesh);
    Job job(*plugin_, mesh, options_, channels_);
    Runner runner(job, token, idle, options_, rows_, progress_);
    try {
      runner.run();
    } catch (...) {
      take(runner.figures());
      throw;
    }
    take(runner.figures());
    figures_.rss_bytes = resident_bytes();
    figures_.buffer_bytes = job.buffer_bytes();
    rendezvous->forget();
    linger();
    sampler_->all_sent();
    mesh.close();
    finish();
    plugin_->finalize();
    return figures_.corrupt_bytes > 0 ? kCorrupt : kClean;
  }

  void check_groups(const std::vector<Device>& devices) const {
    for (const Device& d : devices) {
      if (options_.group > d.max_receives) {
        throw UsageError("--group " + std::to_string(options_.group) + ": device " + d.name +
                         " takes " + std::to_string(d.max_receives) + " messages per receive");
      }
    }
  }

  void measure_latency(Mesh& mesh) {
    const int trips =
        options_.pingpong >= 0 ? options_.pingpong : default_round_trips(options_.size);
    if (trips == 0) return;
    const PingPongResult result = ping_pong(*plugin_, mesh, options_, channels_, trips);
    latency_ = result.latency;
    early_corrupt_ = result.corrupt_bytes;
  }

  // The last word of the collective is said, the comms are still there.
  void linger() {
    rows_.write(closing_row(monotonic_ns(), clock_ns(CLOCK_REALTIME)));
    const auto ns = static_cast<std::int64_t>(options_.linger_s * 1e9);
    timespec left{ns / 1'000'000'000, ns % 1'000'000'000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
  }

  void take(EndFigures figures) {
    figures_ = figures;
    figures_.corrupt_bytes += early_corrupt_;
    figures_.interrupted = stop_signals() > 0;
  }

  // The last rows and the summary, however it ended. Before finalize: the stats page goes with it.
  void finish() {
    if (sampler_) sampler_->stop();
    nlohmann::json row = end_row(monotonic_ns(), figures_);
    if (latency_.count > 0) {
      row["latency_us"] = {{"min", latency_.min},
                           {"p50", latency_.p50},
                           {"p99", latency_.p99},
                           {"count", latency_.count}};
    }
    rows_.write(row);
    print_summary(options_, *plugin_, channels_, figures_, latency_);
  }

  const Options& options_;
  std::int64_t since_ns_;
  RowWriter rows_;
  std::unique_ptr<Plugin> plugin_;
  Progress progress_;
  std::optional<Sampler> sampler_;
  int channels_ = 0;
  EndFigures figures_;
  Latency latency_;
  std::uint64_t early_corrupt_ = 0;
};

int run(int argc, const char* const* argv) {
  const std::int64_t since_ns = monotonic_ns();
  const ParseResult parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.status;
  catch_stop_signals();
  try {
    return Session(*parsed.options, since_ns).run();
  } catch (const UsageError& error) {
    std::fprintf(stderr, "fabric-perf: %s\n", error.what());
    leave(kUsage);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "fabric-perf: not enough memory for --size %zu\n", parsed.options->size);
    leave(kUsage);
  }
}

}  // namespace
}  // namespace fabric::perf

int main(int argc, char** argv) { return fabric::perf::run(argc, argv); }
