// Weights by latency, on a model of paths with known capacity.
#include "core/balance.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

using namespace fabric::core;

namespace {

constexpr std::int64_t kTick = 4'000'000;
constexpr std::int64_t kSecond = 1'000'000'000;
const PathIndex kA = path_index(0, 0);
const PathIndex kB = path_index(1, 1);

// One path whose sockets hold `backlog` bytes and which delivers `rate` bytes a second.
struct Model {
  PathIndex path;
  double rate;
  double backlog;
};

PathSet second(Balance& balance, const std::vector<Model>& models, std::int64_t& now) {
  for (std::int64_t until = now + kSecond; now < until; now += kTick) {
    for (const Model& model : models) {
      const double delivered = model.rate * static_cast<double>(kTick) / 1e9;
      balance.observe(model.path, static_cast<std::uint64_t>(model.backlog),
                      static_cast<std::uint64_t>(delivered), kTick);
    }
  }
  return balance.step(now);
}

}  // namespace

TEST_CASE("balance: a path with twice the latency loses weight, once a second, and gets it back") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  int changes = 0;
  for (int i = 0; i < 5; ++i) {
    const PathSet changed = second(balance, {{kA, 100e6, 400e3}, {kB, 50e6, 400e3}}, now);
    CHECK((changed & bit(kA)) == 0);
    changes += changed != 0 ? 1 : 0;
    CHECK(balance.step(now + kSecond / 2) == 0);
  }
  CHECK(changes == 5);
  CHECK(balance.factor(kA) == kFullWeight);
  CHECK(balance.factor(kB) < kFullWeight / 2);
  int seconds = 0;
  while (balance.factor(kB) != kFullWeight && seconds < 60) {
    second(balance, {{kA, 100e6, 400e3}, {kB, 100e6, 400e3}}, now);
    ++seconds;
  }
  CHECK(balance.factor(kB) == kFullWeight);
  CHECK(seconds >= 4);
}

TEST_CASE("balance: nothing moves within the dead band, without a queue, or beside an idle path") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  for (int i = 0; i < 10; ++i) {
    CHECK(second(balance, {{kA, 100e6, 400e3}, {kB, 75e6, 400e3}}, now) == 0);  // 1.33 times
    CHECK(second(balance, {{kA, 100e6, 4e3}, {kB, 10e6, 40e3}}, now) == 0);     // no queue
    CHECK(second(balance, {{kA, 100e6, 400e3}, {kB, 2e6, 1e3}}, now) == 0);     // B is idle
    CHECK(second(balance, {{kB, 10e6, 900e3}}, now) == 0);                      // no other path
    CHECK(second(balance, {{kA, 100e3, 400e3}, {kB, 20e3, 400e3}}, now) == 0);  // too little
  }
  CHECK(balance.take_rehash() == 0);
}

TEST_CASE("balance: a path that relapses is taken back ever later") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  std::vector<int> away;
  for (int round = 0; round < 5; ++round) {
    while (balance.factor(kB) == kFullWeight) {
      second(balance, {{kA, 100e6, 400e3}, {kB, 30e6, 400e3}}, now);
    }
    int seconds = 0;
    while (balance.factor(kB) != kFullWeight) {
      second(balance, {{kA, 100e6, 400e3}, {kB, 100e6, 400e3}}, now);
      ++seconds;
    }
    away.push_back(seconds);
  }
  CHECK(std::is_sorted(away.begin(), away.end()));
  CHECK(away.back() >= 3 * away.front());
}

TEST_CASE("balance: a path that stays slow is hashed anew, with growing pauses") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  std::vector<std::int64_t> at;
  for (int i = 0; i < 200; ++i) {
    second(balance, {{kA, 100e6, 400e3}, {kB, 20e6, 400e3}}, now);
    const PathSet again = balance.take_rehash();
    CHECK((again & bit(kA)) == 0);
    CHECK(balance.take_rehash() == 0);
    if ((again & bit(kB)) != 0) {
      at.push_back(now);
    }
  }
  REQUIRE(at.size() >= 4);
  CHECK(at[0] < 12 * kSecond);
  CHECK(at[1] - at[0] >= 10 * kSecond);
  CHECK(at[3] - at[2] >= 2 * (at[1] - at[0]));
  CHECK(balance.factor(kB) >= 100);
}

TEST_CASE("balance: a loop closed over shared capacity settles and does not swing") {
  // Four paths of 100 MB/s, one of them half taken by a stranger; demand is 300 MB/s, placed by
  // weight; what a path can't take waits there (at most 600 KB in its sockets).
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  const std::array<double, 4> capacity{100e6, 100e6, 100e6, 50e6};
  std::array<std::uint16_t, 4> last{};
  int changes = 0;
  for (int i = 0; i < 120; ++i) {
    double sum = 0;
    for (std::size_t p = 0; p < 4; ++p) {
      sum += balance.factor(path_index(p, p));
    }
    std::vector<Model> models;
    for (std::size_t p = 0; p < 4; ++p) {
      const double asked = 300e6 * balance.factor(path_index(p, p)) / sum;
      const double rate = std::min(asked, capacity[p]);
      models.push_back(
          {path_index(p, p), rate, asked >= capacity[p] ? 600e3 : 60e3 * rate / 100e6});
    }
    second(balance, models, now);
    for (std::size_t p = 0; p < 4; ++p) {
      changes += i > 60 && balance.factor(path_index(p, p)) != last[p] ? 1 : 0;
      last[p] = balance.factor(path_index(p, p));
    }
  }
  // The half that is there is used, and the weight moves seldom: one probing step up, one back.
  CHECK(changes < 30);
  CHECK(last[0] == kFullWeight);
}
