#include "perf/options.h"

#include <CLI/CLI.hpp>

#include "perf/plan.h"
#include "perf/plugin.h"
#include "perf/rendezvous.h"

namespace fabric::perf {
namespace {

constexpr char kExamples[] = R"(examples:
  two ranks on one machine, over the devices that the plugin finds:
    fabric-perf ring --plugin ./libnccl-net-fabric.so --rank 0 --world 2 --rendezvous file:/tmp/r &
    fabric-perf ring --plugin ./libnccl-net-fabric.so --rank 1 --world 2 --rendezvous file:/tmp/r
  one rank per host, 64 MiB all-reduce for a minute on 4 channels, throughput every 100 ms:
    fabric-perf ring --plugin /opt/libnccl-net-fabric.so --rank $RANK --world 4 \
      --rendezvous tcp:10.0.0.1:29400 --size 64M --duration 60 --channels 4 --jsonl rank$RANK.jsonl
  latency and bandwidth of 8-byte messages with the v8 table:
    fabric-perf p2p --plugin ./libnccl-net-fabric.so --rank $RANK --world 2 \
      --rendezvous file:/tmp/r --size 8 --iters 10000 --abi v8 --wait spin
exit status: 0 done and clean, 1 transport error, 2 usage, 3 corrupt bytes)";

}  // namespace

const char* mode_name(Mode mode) {
  switch (mode) {
    case Mode::p2p:
      return "p2p";
    case Mode::ring:
      return "ring";
    case Mode::alltoall:
      return "alltoall";
  }
  return "?";
}

ParseResult parse_options(int argc, const char* const* argv) {
  Options o;
  CLI::App app{
      "Drives any NCCL net plugin (libnccl-net*.so) over host memory and checks every byte.",
      "fabric-perf"};
  app.footer(kExamples);
  std::string mode;
  std::string wait = "block";
  std::string element = "float32";
  std::string abi;
  std::string verify = "full";
  std::uint64_t iterations = 0;
  int device = 0;
  app.add_option("mode", mode, "p2p: even ranks stream to odd ones; ring: all-reduce; alltoall")
      ->required()
      ->check(CLI::IsMember({"p2p", "ring", "alltoall"}));
  app.add_option("--plugin", o.plugin, "path of the plugin")->required();
  app.add_option("--rank", o.rank, "this process's rank")
      ->required()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--world", o.world, "number of ranks")->required()->check(CLI::Range(2, 4096));
  app.add_option("--rendezvous", o.rendezvous,
                 "file:DIR (a directory all ranks see) or tcp:HOST:PORT (rank 0 listens)")
      ->required();
  app.add_option("--size", o.size, "bytes per iteration (p2p: per message), e.g. 64M")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  auto* duration =
      app.add_option("--duration", o.duration_s, "seconds; rank 0 decides when it ends")
          ->check(CLI::Range(0.0, 1e7))
          ->capture_default_str();
  auto* iters = app.add_option("--iters", iterations, "iterations (p2p: messages)")
                    ->check(CLI::Range(1ULL, 1'000'000'000'000'000ULL))
                    ->excludes(duration);
  app.add_option("--channels", o.channels, "channel c uses device c mod devices (default: devices)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--wait", wait, "block sleeps until something may have moved; spin polls")
      ->check(CLI::IsMember({"block", "spin"}))
      ->capture_default_str();
  app.add_option("--abi", abi, "table to use (default: the highest that the plugin has)")
      ->check(CLI::IsMember({"v8", "v9", "v10", "v11", "v12"}));
  app.add_option("--verify", verify, "full or none")
      ->check(CLI::IsMember({"full", "none"}))
      ->capture_default_str();
  app.add_option("--jsonl", o.jsonl, "write rows to this file");
  app.add_option("--interval-ms", o.interval_ms, "time between sample rows")
      ->check(CLI::Range(1, 60000))
      ->capture_default_str();
  auto* device_option = app.add_option("--device", device, "all channels on this device")
                            ->check(CLI::NonNegativeNumber);
  app.add_option("--type", element, "ring: float32 or int32 sums")
      ->check(CLI::IsMember({"float32", "int32"}))
      ->capture_default_str();
  app.add_option("--slice", o.slice, "bytes per message of ring and alltoall")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--in-flight", o.in_flight, "messages per connection at a time")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--group", o.group, "messages per receive (NCCL's grouped receives)")
      ->check(CLI::Range(1, static_cast<int>(kMaxGroup)))
      ->capture_default_str();
  app.add_option("--linger", o.linger_s, "seconds between the last iteration and the close")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option("--pingpong", o.pingpong, "p2p: round trips before the stream; 0: none")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--batch", o.batch,
         "p2p: messages per iteration (default: what fits --memory; more needs --verify none)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--memory", o.memory, "p2p: bytes that an iteration's messages take turns in")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--timeout", o.timeout_s, "seconds for rendezvous and connection set-up")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_flag("--verbose", o.verbose, "show the plugin's log");
  try {
    app.parse(argc, argv);
    o.mode = mode == "p2p" ? Mode::p2p : mode == "ring" ? Mode::ring : Mode::alltoall;
    o.wait = wait == "block" ? Wait::block : Wait::spin;
    o.element = element == "float32" ? Element::float32 : Element::int32;
    if (!abi.empty()) o.abi = std::stoi(abi.substr(1));
    if (*iters) o.iterations = iterations;
    if (*device_option) o.device = device;
    o.verify = verify == "full";
    const auto refuse = [](const std::string& text) { throw CLI::ValidationError(text); };
    if (o.rank >= o.world) {
      refuse("--rank " + std::to_string(o.rank) + " must be below --world " +
             std::to_string(o.world));
    }
    if (o.mode == Mode::p2p && o.world % 2 != 0) refuse("p2p needs an even --world");
    if (o.verify && static_cast<std::size_t>(o.batch) >
                        messages_per_batch(o.size, static_cast<std::size_t>(o.group), o.memory)) {
      refuse("--batch " + std::to_string(o.batch) +
             " is more than 256, or than fit --memory: use --verify none");
    }
    if (o.group > o.in_flight) refuse("--group must not be above --in-flight");
    if (o.slice < 64 || o.slice > (std::size_t{1} << 30U)) refuse("--slice must be 64 to 1G");
    if (o.size > (std::size_t{1} << 40U)) refuse("--size must be at most 1T");
    if (o.memory > (std::size_t{1} << 40U)) refuse("--memory must be at most 1T");
    parse_rendezvous(o.rendezvous);
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : 2};
  } catch (const UsageError& error) {
    std::cerr << error.what() << "\nRun with --help for more information.\n";
    return {std::nullopt, 2};
  }
  return {o, 0};
}

}  // namespace fabric::perf
