// Ranks that disagree, leave, or are aborted: every operation ends with an error, and no memory is
// written afterwards.
#include <chrono>
#include <random>

#include "collectives/tests/group_kit.h"

using namespace fabric::collectives;       // NOLINT(google-build-using-namespace)
using namespace fabric::collectives::kit;  // NOLINT(google-build-using-namespace)

namespace {

using Numbers = std::vector<std::int32_t>;
using std::chrono::milliseconds;

// What comes before an abort: an all-reduce that the last rank takes no part in.
struct Stuck {
  explicit Stuck(int world, std::size_t count) : group(world), buffers(group.engines.size()) {
    for (int r = 0; r + 1 < world; ++r) {
      Numbers& mine = buffers[static_cast<std::size_t>(r)];
      mine.assign(count, r);
      group.engine(r).start(task_of(Kind::all_reduce, DataType::i32, mine, count));
    }
  }
  Group group;
  std::vector<Numbers> buffers;
};

}  // namespace

TEST_CASE("abort from another thread, in the middle of a collective") {
  constexpr int kWorld = 3;
  for (const int wait_ms : {0, 1, 20}) {
    Stuck stuck(kWorld, 300'000);
    std::this_thread::sleep_for(milliseconds(wait_ms));
    const auto began = std::chrono::steady_clock::now();
    stuck.group.engine(0).abort("a rank is lost");  // rank 1 may hear of it before its own abort
    std::vector<std::thread> aborters;
    for (int r = 0; r < kWorld; ++r) {
      for (int n = 0; n < 2; ++n) {
        aborters.emplace_back([&, r] { stuck.group.engine(r).abort("a rank is lost"); });
      }
    }
    std::vector<Numbers> after(kWorld);
    on_all(kWorld - 1, [&](int r) {
      const std::optional<Completion> ended = stuck.group.engine(r).next();
      CHECK(ended.has_value());
      CHECK((ended ? ended->error : "") != "");
      if (r == 0) CHECK((ended ? ended->error : "") == "a rank is lost");
      Numbers& mine = stuck.buffers[static_cast<std::size_t>(r)];
      if (r == 0) {
        Numbers().swap(mine);  // memory that nothing may read or write any more
      }
      after[static_cast<std::size_t>(r)] = mine;
    });
    const auto took = std::chrono::steady_clock::now() - began;
    CHECK(took <
          std::chrono::seconds(10));  // milliseconds on a machine at rest; FABRIC_DEADLINE is 120 s
    for (std::thread& thread : aborters) thread.join();
    std::this_thread::sleep_for(milliseconds(20));
    for (int r = 0; r + 1 < kWorld; ++r) {
      CHECK(stuck.buffers[static_cast<std::size_t>(r)] == after[static_cast<std::size_t>(r)]);
      Numbers more(1);
      CHECK_THROWS_AS(
          stuck.group.engine(r).start(task_of(Kind::all_reduce, DataType::i32, more, 1)),
          AbortedError);
    }
    on_all(kWorld, [&](int r) { stuck.group.engine(r).close(); });
    for (int r = 0; r < kWorld; ++r) CHECK(!stuck.group.engine(r).next());
  }
}

TEST_CASE("a rank that leaves is an error at all others, soon") {
  constexpr int kWorld = 3;
  Stuck stuck(kWorld, 300'000);
  stuck.group.engine(kWorld - 1).close();
  on_all(kWorld - 1, [&](int r) {
    const std::optional<Completion> ended = stuck.group.engine(r).next();
    CHECK(ended.has_value());
    CHECK((ended ? ended->error : "") != "");
  });
}

TEST_CASE("ranks that differ in what they do: an error that says so, not a hang or an overrun") {
  constexpr std::size_t kCount = 40'000;
  const std::vector<std::function<void(Task&)>> differences{
      [](Task& task) { task.count = kCount / 2; },
      [](Task& task) { task.count = 1; },
      [](Task& task) { task.type = DataType::f32; },
      [](Task& task) { task.op = ReduceOp::maximum; },
      [](Task& task) { task.kind = Kind::broadcast; },
      [](Task& task) {
        task.kind = Kind::broadcast;
        task.count = 0;
      },
  };
  for (std::size_t d = 0; d < differences.size(); ++d) {
    CAPTURE(d);
    constexpr int kWorld = 3;
    Group group(kWorld, 1, {4096, 256, 3});
    std::vector<std::string> errors(kWorld);
    on_all(kWorld, [&](int r) {
      Numbers mine(kCount, 1);
      Task task = task_of(Kind::all_reduce, DataType::i32, mine, kCount);
      if (r == 1) differences[d](task);
      errors[static_cast<std::size_t>(r)] = errors_of(group.engine(r), {task})[0];
      group.engine(r).close();
    });
    std::size_t said = 0;
    for (const std::string& error : errors) {
      said += error.find("ranks differ") != std::string::npos ? 1U : 0U;
    }
    CHECK(said > 0);
    CHECK(std::count(errors.begin(), errors.end(), "") <= 1);  // who was done before it heard
  }
}

TEST_CASE("a message of another size or tag than the receiver expects is an error") {
  for (const bool tag : {false, true}) {
    Group group(2);
    std::vector<std::string> errors(2);
    on_all(2, [&](int r) {
      Numbers data(30'000, r);
      Task task = task_of(r == 0 ? Kind::send : Kind::receive, DataType::i32, data, data.size());
      if (r == 0) task.input = std::exchange(task.output, nullptr);
      task.peer = 1 - r;
      if (r == 1 && tag) task.tag = 3;
      if (r == 1 && !tag) task.count = 20'000;
      errors[static_cast<std::size_t>(r)] = errors_of(group.engine(r), {task})[0];
      group.engine(r).close();
    });
    CHECK(errors[1].find("ranks differ") != std::string::npos);
  }
}

TEST_CASE("tasks that cannot be are refused, and change nothing") {
  Group group(2);
  Numbers data(10);
  const Task good = task_of(Kind::all_reduce, DataType::i32, data, 10);
  const std::vector<std::function<void(Task&)>> faults{
      [](Task& task) { task.kind = static_cast<Kind>(77); },
      [](Task& task) { task.type = static_cast<DataType>(-1); },
      [](Task& task) { task.op = static_cast<ReduceOp>(9); },
      [](Task& task) { task.op = ReduceOp::average; },
      [](Task& task) { task.output = nullptr; },
      [](Task& task) { task.output += 1; },
      [](Task& task) { task.count = ~std::size_t{0}; },
      [](Task& task) { task.kind = Kind::all_gather; },  // no input
      [](Task& task) {
        task.kind = Kind::broadcast;
        task.peer = 2;
      },
      [](Task& task) {
        task.kind = Kind::receive;
        task.peer = 0;  // itself
      },
      [](Task& task) {
        task.kind = Kind::receive;
        task.peer = 1;
        task.tag = -1;
      },
  };
  for (const auto& fault : faults) {
    Task task = good;
    fault(task);
    CHECK_THROWS_AS(group.engine(0).start(task), fabric::perf::UsageError);
  }
  on_all(2, [&](int r) {
    Numbers mine(10, 1);
    CHECK(errors_of(group.engine(r), {task_of(Kind::all_reduce, DataType::i32, mine, 10)}) ==
          std::vector<std::string>{""});
  });
}

TEST_CASE("addresses that are none of this group, or damaged") {
  Engine one(plugin(), {0, 2}, 1);
  Engine two(plugin(), {1, 2}, 1);
  const std::string a = one.address();
  const std::string b = two.address();
  const auto refused = [&](const std::vector<std::string>& addresses) {
    Engine engine(plugin(), {0, 2}, 1);
    const std::vector<std::string_view> views(addresses.begin(), addresses.end());
    try {
      engine.connect(views, 0.05);
      return false;
    } catch (const fabric::perf::UsageError&) {
      return true;
    } catch (const fabric::perf::TransportError&) {
      return true;
    }
  };
  CHECK(refused({a}));
  CHECK(refused({a, a}));
  CHECK(refused({b, a}));
  CHECK(refused({a, ""}));
  CHECK(refused({a, b.substr(0, b.size() - 1)}));
  CHECK(refused({a, b + "x"}));
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same in every run
  for (int i = 0; i < 50; ++i) {
    std::string damaged = b;
    for (int n = 0; n < 3; ++n) damaged[random() % damaged.size()] = static_cast<char>(random());
    CHECK(refused({a, damaged}));  // nobody answers, at the latest
  }
}

TEST_CASE("connecting ends with its time, and with an abort") {
  Engine one(plugin(), {0, 2}, 1);
  Engine two(plugin(), {1, 2}, 1);
  const std::string theirs = two.address();
  const std::string mine = one.address();
  const std::vector<std::string_view> addresses{mine, theirs};
  Numbers data(1);
  const Task task = task_of(Kind::all_reduce, DataType::i32, data, 1);
  CHECK_THROWS_AS(one.start(task), fabric::perf::UsageError);
  // Rank 1 never connects.
  std::thread aborter([&] {
    std::this_thread::sleep_for(milliseconds(30));
    one.abort("no longer wanted");
  });
  CHECK_THROWS_AS(one.connect(addresses, kTimeoutS), AbortedError);
  aborter.join();
  CHECK_THROWS_AS(one.start(task), AbortedError);
  Engine late(plugin(), {0, 2}, 1);
  CHECK_THROWS_AS(late.connect(addresses, 0.05), fabric::perf::TransportError);
  CHECK_THROWS_AS(late.connect(addresses, 0.05), AbortedError);
}
