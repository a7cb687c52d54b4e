// The C interface: numbers that are no group, and every call beside every other one.
#include "collectives/library.h"

#include <array>
#include <atomic>
#include <string>

#include "collectives/tests/group_kit.h"

using namespace fabric::collectives;       // NOLINT(google-build-using-namespace)
using namespace fabric::collectives::kit;  // NOLINT(google-build-using-namespace)

namespace {

using Text = std::array<char, 200>;

struct Ranks {
  explicit Ranks(int world) {
    plugin();  // its environment
    std::string all;
    std::vector<std::size_t> sizes;
    for (int r = 0; r < world; ++r) {
      Text error{};
      groups.push_back(
          fabric_collectives_open(FABRIC_PLUGIN_FILE, r, world, 1, error.data(), error.size()));
      REQUIRE(std::string(error.data()) == "");
      std::string address(4096, '\0');
      const auto size = fabric_collectives_address(groups.back(), address.data(), address.size());
      REQUIRE(size > 0);
      sizes.push_back(static_cast<std::size_t>(size));
      all += address.substr(0, sizes.back());
    }
    std::vector<int> results(groups.size(), 1);
    on_all(world, [&](int r) {
      results[static_cast<std::size_t>(r)] =
          fabric_collectives_connect(group(r), all.data(), sizes.data(), kTimeoutS, nullptr, 0);
    });
    REQUIRE(results == std::vector<int>(groups.size(), 0));
  }
  std::int64_t group(int r) const { return groups[static_cast<std::size_t>(r)]; }
  std::vector<std::int64_t> groups;
};

fabric_task all_reduce(std::vector<std::int32_t>& data) {
  fabric_task task{};
  task.kind = FABRIC_ALL_REDUCE;
  task.type = FABRIC_I32;
  task.count = data.size();
  task.output = data.data();
  return task;
}

}  // namespace

TEST_CASE("a number that is no group is an error, never a crash") {
  Text error{};
  fabric_task task{};
  fabric_completion completion{};
  CHECK(fabric_collectives_version() == FABRIC_COLLECTIVES_VERSION);
  for (const std::int64_t none : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40U}) {
    CHECK(fabric_collectives_start(none, &task, error.data(), error.size()) == -2);
    CHECK(std::string(error.data()) == "group " + std::to_string(none) + " has ended");
    CHECK(fabric_collectives_address(none, nullptr, 0) == -1);
    CHECK(fabric_collectives_connect(none, "", nullptr, 1, error.data(), error.size()) == -2);
    CHECK(fabric_collectives_next(none, &completion) == 0);
    fabric_collectives_abort(none, nullptr);
    fabric_collectives_close(none);
  }
  CHECK(fabric_collectives_open("/nonexistent.so", 0, 2, 1, error.data(), error.size()) == -1);
  CHECK(std::string(error.data()).find("/nonexistent.so") != std::string::npos);
  CHECK(fabric_collectives_open(FABRIC_PLUGIN_FILE, 2, 2, 1, error.data(), error.size()) == -1);
  CHECK(fabric_collectives_open(FABRIC_PLUGIN_FILE, 2, 2, 1, error.data(), 1) == -1);
  CHECK(error[0] == '\0');  // the text has room for its end alone
}

TEST_CASE("an all-reduce through the C interface") {
  Ranks ranks(2);
  on_all(2, [&](int r) {
    std::vector<std::int32_t> data(1000, r + 1);
    const fabric_task task = all_reduce(data);
    const std::int64_t id = fabric_collectives_start(ranks.group(r), &task, nullptr, 0);
    fabric_completion completion{};
    CHECK(fabric_collectives_next(ranks.group(r), &completion) == 1);
    CHECK(completion.id == id);
    CHECK(completion.failed == 0);
    CHECK(data == std::vector<std::int32_t>(1000, 3));
  });
  for (const std::int64_t group : ranks.groups) fabric_collectives_close(group);
}

TEST_CASE("start, next, abort and close from many threads at once") {
  for (int round = 0; round < 5; ++round) {
    Ranks ranks(2);
    std::vector<std::vector<std::int32_t>> data(2, std::vector<std::int32_t>(2000, 1));
    std::atomic<int> started{0};
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      const std::int64_t group = ranks.group(r);
      threads.emplace_back([&, r, group] {
        const fabric_task task = all_reduce(data[static_cast<std::size_t>(r)]);
        while (fabric_collectives_start(group, &task, nullptr, 0) > 0) started.fetch_add(1);
      });
      threads.emplace_back([&, group] {
        fabric_completion completion{};
        while (fabric_collectives_next(group, &completion) == 1) ended.fetch_add(1);
        fabric_collectives_close(group);
      });
      threads.emplace_back([group, round] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
        fabric_collectives_abort(group, "enough");
        fabric_collectives_abort(group, nullptr);
        CHECK(fabric_collectives_address(group, nullptr, 0) != 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(started.load() == ended.load());
    for (const std::int64_t group : ranks.groups) {
      CHECK(fabric_collectives_address(group, nullptr, 0) == -1);
    }
  }
}
