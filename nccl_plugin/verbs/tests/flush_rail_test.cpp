// The flushes of one rail: they share one queue pair, which is made anew when it fails.
#include "verbs/flush_rail.h"

#include <atomic>
#include <cerrno>
#include <functional>
#include <thread>
#include <utility>

#include "verbs/region_cache.h"
#include "verbs/tests/kit.h"

using namespace fabric::verbs;
using fake::Call;
using State = FlushRead::State;

namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kGiveUpNs = 1'000 * kMs;

// One rail with its NIC; the test is the thread that makes pairs, and the one that destroys them.
struct Rail {
  fake::Network network;
  fake::Nic& nic;
  std::shared_ptr<Device> device;
  RailPort port;
  std::vector<std::byte> bytes = std::vector<std::byte>(4096);
  RegionCache cache;
  std::vector<std::function<void()>> destructions;
  int wakes = 0;
  std::int64_t now = 1;
  std::unique_ptr<FlushRail> flushes;

  Rail()
      : nic(network.add_nic("a0", "10.0.0.1")),
        device(test::open("a0")),
        port(device, 1, {}, {}),
        cache({device}, false),
        flushes(std::make_unique<FlushRail>(
            [this](std::function<void()> task) { destructions.push_back(std::move(task)); },
            [this] { ++wakes; }, kGiveUpNs)) {}
  ~Rail() {
    flushes.reset();
    destroy();
  }
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  std::shared_ptr<FlushRead> begin() {
    Error error;
    const auto buffer = cache.acquire(bytes.data(), bytes.size(), error);
    REQUIRE(buffer != nullptr);
    auto read = std::make_shared<FlushRead>();
    read->address = reinterpret_cast<std::uintptr_t>(bytes.data());
    read->region = buffer->on(0);
    read->hold = buffer;
    flushes->begin(read, now);
    return read;
  }
  State test(const std::shared_ptr<FlushRead>& read) {
    std::string why;
    return flushes->test(*read, now, why);
  }
  std::string why(const std::shared_ptr<FlushRead>& read) {
    std::string text;
    flushes->test(*read, now, text);
    return text;
  }
  bool make() {
    const bool wanted = flushes->wants_pair(now);
    if (wanted) {
      flushes->make_pair(&port, now);
    }
    return wanted;
  }
  void destroy() {
    for (const auto& task : std::exchange(destructions, {})) {
      task();
    }
  }
};

}  // namespace

TEST_CASE("flush rail: two flushes at once share one pair, which reads for one at a time") {
  Rail rail;
  CHECK_FALSE(rail.make());
  const auto first = rail.begin();
  const auto second = rail.begin();
  CHECK(rail.wakes == 1);
  CHECK(rail.test(second) == State::waiting);
  CHECK(rail.make());
  CHECK_FALSE(rail.make());
  CHECK(rail.test(first) == State::under_way);
  CHECK(rail.test(second) == State::waiting);
  rail.network.run();
  CHECK(rail.nic.reads == 1);
  CHECK(rail.test(second) == State::under_way);  // whoever asks moves both on
  CHECK(first->state == State::done);
  CHECK(rail.test(second) == State::under_way);
  rail.network.run();
  CHECK(rail.test(second) == State::done);
  CHECK(rail.test(first) == State::done);
  CHECK(rail.nic.reads == 2);
  CHECK(rail.network.pairs.size() == 1);
  CHECK(rail.wakes == 1);
}

TEST_CASE("flush rail: a READ that fails is repeated once, on a new pair") {
  Rail rail;
  rail.nic.forced = {IBV_WC_RETRY_EXC_ERR};
  const auto first = rail.begin();
  const auto second = rail.begin();
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(first) == State::waiting);
  CHECK(rail.nic.reads == 0);
  CHECK(rail.wakes == 2);
  CHECK(rail.destructions.size() == 1);  // not on a thread that carries data
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(first) == State::done);  // before the other
  rail.network.run();
  CHECK(rail.test(second) == State::done);
  CHECK(rail.nic.reads == 2);
  CHECK(rail.network.pairs.size() == 2);
}

TEST_CASE("flush rail: a second failure is the flush's, and the next has another pair") {
  Rail rail;
  const auto first = rail.begin();
  const auto second = rail.begin();
  rail.nic.forced = {IBV_WC_RETRY_EXC_ERR};
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(first) == State::waiting);
  rail.nic.fail(Call::post_send, EINVAL);  // at the moment in which it is started
  CHECK(rail.make());
  CHECK(rail.test(first) == State::failed);
  CHECK(rail.why(first) == "ibv_post_send on a0: Invalid argument");
  CHECK(rail.test(second) == State::waiting);
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(second) == State::done);
  CHECK(rail.test(first) == State::failed);
}

TEST_CASE("flush rail: a completion queue that breaks") {
  Rail rail;
  const auto read = rail.begin();
  for (int i = 0; i < 2; ++i) {
    CHECK(rail.make());
    rail.nic.fail(Call::poll_cq, EIO);
    rail.test(read);
  }
  CHECK(rail.test(read) == State::failed);
  CHECK(rail.why(read) == "READ on a0: the completion queue is broken");
}

TEST_CASE("flush rail: while no pair can be made flushes wait, and not for ever") {
  Rail rail;
  rail.nic.ports[0].state = IBV_PORT_DOWN;
  const auto first = rail.begin();
  CHECK(rail.make());
  CHECK(rail.test(first) == State::waiting);
  CHECK_FALSE(rail.make());  // not that soon again
  rail.now += FlushRail::kMakePauseNs;
  CHECK(rail.make());
  rail.nic.ports[0].state = IBV_PORT_ACTIVE;
  rail.now += FlushRail::kMakePauseNs;
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(first) == State::done);

  rail.nic.forced = {IBV_WC_RETRY_EXC_ERR};
  rail.nic.ports[0].state = IBV_PORT_DOWN;
  const auto second = rail.begin();
  rail.network.run();
  CHECK(rail.test(second) == State::waiting);
  CHECK(rail.make());
  CHECK(rail.test(second) == State::waiting);
  rail.now += kGiveUpNs;
  CHECK(rail.make());
  CHECK(rail.test(second) == State::failed);
  CHECK(rail.why(second) == "a0:1: the port is not active");
  CHECK_FALSE(rail.make());
}

TEST_CASE("flush rail: a READ that the device never completes ends its flush, and no other") {
  Rail rail;
  const auto first = rail.begin();
  const auto second = rail.begin();
  CHECK(rail.make());
  rail.nic.stopped = true;
  rail.now += kGiveUpNs - 1;
  CHECK(rail.test(first) == State::under_way);
  rail.now += 1;
  rail.flushes->poll(rail.now);
  CHECK(rail.test(first) == State::failed);
  CHECK(rail.why(first) == "READ on a0: the device never completed it");
  // The other waits for a pair of its own, and its buffer and that of the READ stay registered.
  CHECK(rail.test(second) == State::waiting);
  CHECK(rail.cache.size() == 1);
  rail.nic.stopped = false;
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(second) == State::done);
}

TEST_CASE("flush rail: a device that is gone writes no more") {
  Rail rail;
  const auto under_way = rail.begin();
  CHECK(rail.make());
  const auto waiting = rail.begin();
  CHECK(rail.test(under_way) == State::under_way);
  SUBCASE("it says EIO") { rail.nic.unplug(); }
  SUBCASE("it says nothing") { rail.nic.stopped = true; }
  rail.device->set_gone();
  CHECK(rail.test(waiting) == State::done);
  CHECK(rail.test(under_way) == State::done);
  CHECK_FALSE(rail.make());
  CHECK(rail.nic.reads == 0);
}

TEST_CASE("flush rail: a device that goes before there is a pair") {
  Rail rail;
  const auto read = rail.begin();
  rail.nic.unplug();
  CHECK(rail.make());  // in vain
  CHECK(rail.test(read) == State::waiting);
  rail.device->set_gone();
  rail.now += FlushRail::kMakePauseNs;
  CHECK(rail.test(read) == State::done);
  CHECK_FALSE(rail.make());
}

TEST_CASE("flush rail: after another device has come to the rail, flushes read through that one") {
  Rail rail;
  const auto before = rail.begin();
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(before) == State::done);
  rail.nic.unplug();
  rail.device->set_gone();
  fake::Nic& nic = rail.network.add_nic("a0", "10.0.0.1");
  const auto device = test::open("a0");
  rail.port = RailPort(device, 1, {}, {});
  rail.cache.set_devices({device});
  const auto after = rail.begin();
  CHECK(rail.make());
  rail.network.run();
  CHECK(rail.test(after) == State::done);
  CHECK(nic.reads == 1);
}

TEST_CASE("flush rail: one that is dropped keeps its buffer until its READ has ended") {
  Rail rail;
  auto under_way = rail.begin();
  auto waiting = rail.begin();
  CHECK(rail.make());
  under_way.reset();
  waiting.reset();
  rail.flushes->poll(rail.now);
  CHECK(rail.cache.size() == 1);
  rail.network.run();
  rail.flushes->poll(rail.now);
  CHECK(rail.cache.size() == 0);
  rail.network.run();
  CHECK(rail.nic.reads == 1);  // the other one never began
}

TEST_CASE("flush rail: one that is dropped before there is a pair needs none") {
  Rail rail;
  rail.begin().reset();
  rail.flushes->poll(rail.now);
  CHECK_FALSE(rail.make());
  CHECK(rail.cache.size() == 0);
  CHECK(rail.network.pairs.empty());
}

TEST_CASE("flush rail: it ends with a READ under way") {
  Rail rail;
  auto read = rail.begin();
  CHECK(rail.make());
  read.reset();
  rail.flushes.reset();
  CHECK(rail.cache.size() == 1);
  CHECK(rail.nic.regions() == 2);
  rail.destroy();
  CHECK(rail.cache.size() == 0);
  CHECK(rail.nic.regions() == 0);
}

TEST_CASE("flush rail: many threads flush at once") {
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  Rail rail;
  rail.network.carries_at_once = true;
  std::atomic<int> running{kThreads};
  std::atomic<int> failed{0};
  Error error;
  const auto buffer = rail.cache.acquire(rail.bytes.data(), rail.bytes.size(), error);
  REQUIRE(buffer != nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < kEach; ++n) {
        auto read = std::make_shared<FlushRead>();
        read->address = reinterpret_cast<std::uintptr_t>(rail.bytes.data());
        read->region = buffer->on(0);
        read->hold = buffer;
        rail.flushes->begin(read, rail.now);
        if (i == 0 && n % 2 == 0) {
          continue;  // dropped
        }
        State state = State::waiting;
        while (state != State::done && state != State::failed) {
          state = rail.test(read);
          std::this_thread::yield();
        }
        failed += state == State::failed ? 1 : 0;
      }
      --running;
    });
  }
  while (running != 0) {
    if (!rail.make()) {
      rail.flushes->poll(rail.now);
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(failed == 0);
  CHECK(rail.network.pairs.size() == 1);
  CHECK(rail.nic.reads >= kThreads * kEach - kEach / 2);
}
