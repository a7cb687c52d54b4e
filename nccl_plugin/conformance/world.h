// What one rank of a case works with: the plugin, the other ranks, comms, and time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "perf/idle.h"
#include "perf/mesh.h"
#include "perf/plugin.h"
#include "perf/rendezvous.h"

namespace fabric::conformance {

// The plugin broke the contract: what it did, and what the contract says.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The plugin does not offer what the case needs (grouped receives): no verdict.
struct NotOffered : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Makes each name unique, so that ranks may gather under one name several times in a case.
class NumberedRendezvous final : public perf::Rendezvous {
 public:
  explicit NumberedRendezvous(std::unique_ptr<perf::Rendezvous> inner) : inner_(std::move(inner)) {}
  std::vector<std::string> all_gather(const std::string& name, const std::string& mine) override {
    return inner_->all_gather(name + "-" + std::to_string(next_++), mine);
  }

 private:
  std::unique_ptr<perf::Rendezvous> inner_;
  int next_ = 0;
};

// How much of the contract is asked for.
enum class Level {
  // What NCCL relies on, and its own transports keep: of each comm the oldest request is tested
  // first, 32 requests are open at most, tags tell sends apart only where maxRecvs is above 1, and
  // host memory is not flushed.
  nccl,
  // What our plugin promises beyond that: requests are tested in any order, more than may be open
  // are "not yet", a tag finds its receive also where maxRecvs is 1, iflush takes host memory.
  strict,
};

struct WorldConfig {
  int rank = 0;
  int world = 2;
  int device = 0;
  std::uint64_t seed = 1;
  double timeout_s = 60;  // of the case
  Level level = Level::strict;
};

class World {
 public:
  World(perf::Plugin& plugin, perf::Rendezvous& rendezvous, const WorldConfig& config);

  perf::Plugin& plugin() { return plugin_; }
  int rank() const { return config_.rank; }
  int size() const { return config_.world; }
  int next() const { return (config_.rank + 1) % config_.world; }
  int previous() const { return (config_.rank + config_.world - 1) % config_.world; }
  int device() const { return config_.device; }
  Level level() const { return config_.level; }
  // Slots of one receive that the plugin takes, at most perf::kMaxGroup.
  std::size_t max_group() const { return max_group_; }
  // The same sequence on all ranks.
  std::mt19937_64& common_random() { return common_random_; }

  // Blocks until all ranks are here. Polls nothing meanwhile.
  void barrier() { gather(""); }
  std::vector<std::string> gather(const std::string& mine);

  // Comms of these links, `channel` telling apart those of the same two ranks. All ranks pass the
  // same list.
  perf::Mesh connect(const std::vector<perf::Link>& links);
  // Every rank sends to the next one, on `channels` comms.
  std::vector<perf::Link> ring(int channels = 1) const;

  // Calls `step` until it is true, and sleeps where nothing moved. Throws Violation, with `waiting`
  // in its text, when the time of the case is over.
  template <typename Step, typename Waiting>
  void until(Step step, Waiting waiting) {
    while (!step()) {
      if (late()) throw Violation("does not end: " + std::string(waiting()));
      idle_.wait();
    }
  }
  bool late() const;

 private:
  perf::Plugin& plugin_;
  perf::Rendezvous& rendezvous_;
  WorldConfig config_;
  perf::Options options_;
  perf::Idle idle_;
  std::size_t max_group_ = 1;
  std::int64_t deadline_ns_;
  std::mt19937_64 common_random_;
};

struct Case {
  std::string name;
  std::string what;  // the rule of the contract, one line
  std::function<void(World&)> run;
};

// All cases, in the order in which they run.
const std::vector<Case>& all_cases();
std::vector<Case> tag_cases();
std::vector<Case> request_cases();
std::vector<Case> comm_cases();

}  // namespace fabric::conformance
