// What tests of the engine share: the ranks of a group as threads of this process, over loopback.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/engine.h"
#include "perf/clock.h"

namespace fabric::collectives::kit {

inline constexpr double kTimeoutS = 60;  // of a machine that is slow

inline const std::shared_ptr<perf::Plugin>& plugin() {
  // Never destroyed, as in the library: its control thread may outlive the tests.
  static const auto* const one = [] {
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);  // NOLINT(concurrency-mt-unsafe): the first thing
    ::setenv("FABRIC_RUN_DIR", "/nonexistent/fabric", 1);  // NOLINT(concurrency-mt-unsafe)
    std::shared_ptr<perf::Plugin> made = perf::Plugin::load(FABRIC_PLUGIN_FILE, {}, false);
    made->init();
    return new std::shared_ptr<perf::Plugin>(std::move(made));
  }();
  return *one;
}

// Runs `body` once for each rank, all at the same time.
inline void on_all(int world, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

struct Group {
  explicit Group(int world, int channels = 1, const Pipeline& pipeline = {}) {
    std::vector<std::string_view> addresses;
    for (int r = 0; r < world; ++r) {
      engines.push_back(std::make_unique<Engine>(plugin(), Place{r, world}, channels, pipeline));
    }
    for (const auto& engine : engines) addresses.push_back(engine->address());
    std::vector<std::string> errors(engines.size());
    on_all(world, [&](int r) {
      try {
        engine(r).connect(addresses, kTimeoutS);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
    for (const std::string& error : errors) REQUIRE(error == "");
  }
  Engine& engine(int rank) { return *engines[static_cast<std::size_t>(rank)]; }
  int world() const { return static_cast<int>(engines.size()); }

  std::vector<std::unique_ptr<Engine>> engines;
};

// Starts all, and waits until all have ended: their errors, in the order of the tasks.
inline std::vector<std::string> errors_of(Engine& engine, const std::vector<Task>& tasks) {
  std::map<std::int64_t, std::size_t> places;
  for (std::size_t i = 0; i < tasks.size(); ++i) places.emplace(engine.start(tasks[i]), i);
  std::vector<std::string> errors(tasks.size(), "not ended");
  while (!places.empty()) {
    const std::optional<Completion> one = engine.next();
    if (!one) break;
    const auto found = places.find(one->id);
    if (found == places.end()) return {"an unknown operation ended"};
    errors[found->second] = one->error;
    places.erase(found);
  }
  return errors;
}

template <typename Element>
Task task_of(Kind kind, DataType type, std::vector<Element>& output, std::size_t count) {
  Task task;
  task.kind = kind;
  task.type = type;
  task.count = count;
  task.output = reinterpret_cast<std::byte*>(output.data());
  return task;
}

}  // namespace fabric::collectives::kit
