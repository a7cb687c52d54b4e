// What the command line asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace fabric::perf {

enum class Mode { p2p, ring, alltoall };
enum class Wait { block, spin };
enum class Element { float32, int32 };

inline constexpr std::size_t kBatchMemory = std::size_t{32} << 20U;

struct Options {
  Mode mode = Mode::ring;
  std::string plugin;
  int rank = 0;
  int world = 0;
  std::string rendezvous;                     // file:DIR or tcp:HOST:PORT
  std::size_t size = std::size_t{64} << 20U;  // bytes per iteration (p2p: per message)
  double duration_s = 10.0;                   // used when `iterations` is not given
  std::optional<std::uint64_t> iterations;
  int channels = 0;  // 0: one per device of rank 0
  Wait wait = Wait::block;
  std::optional<int> abi;  // 8 to 12; none: the highest the plugin has
  bool verify = true;
  std::string jsonl;  // empty: no rows
  int interval_ms = 100;
  std::optional<int> device;  // all channels on this one
  Element element = Element::float32;
  std::size_t slice = std::size_t{512} << 10U;
  int in_flight = 8;  // messages per comm at a time
  int group = 1;      // messages per receive
  int batch = 0;      // p2p: messages between two words of rank 0; 0: what fits `memory`
  std::size_t memory = kBatchMemory;  // p2p: messages beyond that take turns in it
  double linger_s = 0;                // between the last iteration and the close
  int pingpong = -1;                  // round trips before p2p's stream; -1: chosen from the size
  double timeout_s = 60.0;            // rendezvous and connection set-up
  bool verbose = false;
};

// Either options, or an exit status with everything already said (--help: 0, bad arguments: 2).
struct ParseResult {
  std::optional<Options> options;
  int status = 0;
};

ParseResult parse_options(int argc, const char* const* argv);

const char* mode_name(Mode mode);

}  // namespace fabric::perf
