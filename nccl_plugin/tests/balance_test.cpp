// Weights by how long bytes wait, on a model of paths with known capacity.
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
const PathIndex kC = path_index(2, 2);

// One path that delivers `rate` bytes a second in the part `held` of the time in which it has any.
struct Model {
  PathIndex path;
  double rate;
  double held;
};

PathSet second(Balance& balance, const std::vector<Model>& models, std::int64_t& now) {
  for (int tick = 0; tick < kSecond / kTick; ++tick) {
    now += kTick;
    const double at = static_cast<double>(tick % 50) / 50;  // messages of 200 ms
    for (const Model& model : models) {
      const bool has = at < model.held;
      const double delivered = has ? model.rate * static_cast<double>(kTick) / 1e9 : 0;
      balance.observe(model.path, has ? 400'000 : 0, static_cast<std::uint64_t>(delivered), kTick,
                      now);
    }
  }
  return balance.step(now);
}

}  // namespace

TEST_CASE(
    "balance: a path that the others wait for loses weight, once a second, and gets it back") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  CHECK(second(balance, {{kA, 100e6, 0.5}, {kB, 50e6, 1}}, now) == 0);  // one may be an accident
  int changes = 0;
  for (int i = 0; i < 9; ++i) {
    const PathSet changed = second(balance, {{kA, 100e6, 0.5}, {kB, 50e6, 1}}, now);
    CHECK((changed & bit(kA)) == 0);
    changes += changed != 0 ? 1 : 0;
    CHECK(balance.step(now + kSecond / 2) == 0);
  }
  CHECK(changes == 3);
  CHECK(balance.factor(kA) == kFullWeight);
  CHECK(balance.factor(kB) < kFullWeight / 2);
  int seconds = 0;
  while (balance.factor(kB) != kFullWeight && seconds < 120) {
    second(balance, {{kA, 100e6, 0.8}, {kB, 100e6, 0.5}}, now);
    ++seconds;
  }
  CHECK(balance.factor(kB) == kFullWeight);
  CHECK(seconds >= 4);
}

TEST_CASE("balance: nothing moves where nobody waits for one path") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  const std::vector<std::vector<Model>> worlds{
      {{kA, 100e6, 1}, {kB, 30e6, 1}, {kC, 60e6, 1}},  // all full, whatever they carry
      {{kA, 100e6, 0.8}, {kB, 80e6, 1}},               // within the dead band
      {{kA, 100e6, 0.3}, {kB, 100e6, 0.9}},            // as quick, only more to carry
      {{kA, 100e6, 0.1}, {kB, 30e6, 0.4}},             // most of the time nothing waits
      {{kA, 100e6, 0.04}, {kB, 20e6, 1}},              // A carries too little to compare
      {{kB, 10e6, 1}},                                 // no other path
      {{kA, 100e3, 0.5}, {kB, 20e3, 1}},               // too little to know anything
  };
  for (const auto& world : worlds) {
    for (int i = 0; i < 5; ++i) {
      CHECK(second(balance, world, now) == 0);
    }
  }
}

TEST_CASE("balance: two slow paths of four are both found") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  const PathIndex d = path_index(3, 3);
  for (int i = 0; i < 4; ++i) {
    second(balance, {{kA, 100e6, 0.5}, {kB, 50e6, 1}, {kC, 100e6, 0.5}, {d, 48e6, 1}}, now);
  }
  CHECK(balance.factor(kB) < kFullWeight);
  CHECK(balance.factor(d) < kFullWeight);
  CHECK(balance.factor(kA) == kFullWeight);
  CHECK(balance.factor(kC) == kFullWeight);
}

TEST_CASE("balance: a path that relapses is taken back ever later") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  std::vector<int> away;
  for (int round = 0; round < 5; ++round) {
    while (balance.factor(kB) == kFullWeight) {
      second(balance, {{kA, 100e6, 0.3}, {kB, 30e6, 1}}, now);
    }
    int seconds = 0;
    while (balance.factor(kB) != kFullWeight) {
      second(balance, {{kA, 100e6, 0.8}, {kB, 100e6, 0.5}}, now);
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
    second(balance, {{kA, 100e6, 0.5}, {kB, 20e6, 1}}, now);
    const PathSet again = balance.take_rehash();
    CHECK((again & bit(kA)) == 0);
    if ((again & bit(kB)) != 0) {
      at.push_back(now);
    }
  }
  REQUIRE(at.size() >= 4);
  CHECK(at[0] >= 10 * kSecond);  // it costs what is under way
  CHECK(at[0] < 20 * kSecond);
  CHECK(at[1] - at[0] >= 10 * kSecond);
  CHECK(at[3] - at[2] >= 2 * (at[1] - at[0]));
  CHECK(balance.factor(kB) >= 100);
}

TEST_CASE("balance: a loop closed over shared capacity settles and does not swing") {
  // Four paths of 100 MB/s, one of them half taken by a stranger; a message is placed by weight,
  // and the next one comes when all of it is there.
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  const std::array<double, 4> capacity{100e6, 100e6, 100e6, 50e6};
  std::array<std::uint16_t, 4> last{};
  int changes = 0;
  double longest = 0;
  double ideal = 0;
  for (int i = 0; i < 120; ++i) {
    double sum = 0;
    for (std::size_t p = 0; p < 4; ++p) {
      sum += balance.factor(path_index(p, p));
    }
    std::array<double, 4> takes{};
    for (std::size_t p = 0; p < 4; ++p) {
      takes[p] = balance.factor(path_index(p, p)) / sum / capacity[p];
    }
    const double all = *std::max_element(takes.begin(), takes.end());
    std::vector<Model> models;
    for (std::size_t p = 0; p < 4; ++p) {
      models.push_back({path_index(p, p), capacity[p], takes[p] / all});
    }
    second(balance, models, now);
    if (i >= 60) {
      longest += all;
      ideal += 1 / 350e6;
    }
    for (std::size_t p = 0; p < 4; ++p) {
      changes += i > 60 && balance.factor(path_index(p, p)) != last[p] ? 1 : 0;
      last[p] = balance.factor(path_index(p, p));
    }
  }
  // The half that is there is used, and the weight moves seldom: one probing step up, one back.
  CHECK(changes < 15);
  CHECK(last[0] == kFullWeight);
  CHECK(longest < 1.1 * ideal);
}

// A ring over as many comms as rails, each with its own as its primary: all deliver what the
// slowest does. `slow`: its capacity as part of the others'.
std::vector<Model> ring_of_four(double slow) {
  const double lockstep = 100e6 * slow;
  std::vector<Model> models;
  for (std::size_t p = 0; p < 3; ++p) models.push_back({path_index(p, p), 100e6, lockstep / 100e6});
  models.push_back({path_index(3, 3), lockstep, 1});
  return models;
}

TEST_CASE("balance: a path at a quarter, or a tenth, is removed within three seconds") {
  for (const double slow : {0.4, 0.25, 0.1}) {
    Balance balance;
    std::int64_t now = kSecond;
    balance.step(now);
    const PathIndex last = path_index(3, 3);
    for (int i = 0; i < 3; ++i) second(balance, ring_of_four(slow), now);
    CHECK(balance.removed() == bit(last));
    CHECK(balance.factor(last) < kFullWeight);
    for (std::size_t p = 0; p < 3; ++p) CHECK(balance.factor(path_index(p, p)) == kFullWeight);
  }
}

TEST_CASE("balance: a path that has half of the others' speed keeps its share") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  for (int i = 0; i < 3; ++i) second(balance, ring_of_four(0.55), now);
  CHECK(balance.removed() == 0);
  CHECK(balance.factor(path_index(3, 3)) < kFullWeight);
}

TEST_CASE("balance: a full path is not removed because of one that is never full") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  for (int i = 0; i < 10; ++i) {
    for (int tick = 0; tick < kSecond / kTick; ++tick) {
      now += kTick;
      balance.observe(kA, 400'000, 500'000, kTick, now);  // 125 MB/s, all the time
      balance.observe(kB, 40'000, 160'000, kTick, now);   // 40 MB/s in small pieces
    }
    balance.step(now);
    CHECK(balance.removed() == 0);
  }
}

TEST_CASE("balance: the pauses of a removed path do not begin anew") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  std::int64_t removed_at = 0;
  std::vector<std::int64_t> pauses;
  for (int i = 0; i < 4 * 3600; ++i) {
    const bool removed = balance.removed() != 0;
    now += kTick;  // steps come late
    if (removed) {
      second(balance, {{kA, 100e6, 1}, {kB, 100e6, 1}, {kC, 100e6, 1}}, now);
    } else {
      second(balance, ring_of_four(0.25), now);
    }
    if (removed && balance.removed() == 0) pauses.push_back(now - removed_at);
    if (!removed && balance.removed() != 0) removed_at = now;
  }
  REQUIRE(pauses.size() >= 10);
  for (std::size_t i = 5; i < pauses.size(); ++i) CHECK(pauses[i] >= 590 * kSecond);
}

TEST_CASE("balance: a removed path is tried for a second, ever more seldom") {
  Balance balance;
  std::int64_t now = kSecond;
  balance.step(now);
  const PathIndex last = path_index(3, 3);
  int used = 0;
  std::vector<std::int64_t> tries;
  for (int i = 0; i < 3600; ++i) {
    const bool removed = balance.removed() != 0;
    if (removed) {
      second(balance, {{kA, 100e6, 1}, {kB, 100e6, 1}, {kC, 100e6, 1}}, now);
    } else {
      second(balance, ring_of_four(0.25), now);
      ++used;
    }
    if (removed && balance.removed() == 0) tries.push_back(now);
  }
  REQUIRE(tries.size() >= 6);
  CHECK(tries[0] >= 60 * kSecond);
  for (std::size_t i = 1; i < tries.size(); ++i) {
    CHECK(tries[i] - tries[i - 1] >= 60 * kSecond);
    CHECK(tries[i] - tries[i - 1] <= 602 * kSecond);
  }
  CHECK(used <= 20);  // seconds of an hour
  // It is sound again, and somebody says so.
  while (balance.removed() == 0) second(balance, ring_of_four(0.25), now);
  balance.retry(last);
  second(balance, {{kA, 100e6, 1}, {kB, 100e6, 1}, {kC, 100e6, 1}}, now);
  CHECK(balance.removed() == 0);
  CHECK(balance.factor(last) == kFullWeight);
  for (int i = 0; i < 30; ++i) second(balance, ring_of_four(1), now);
  CHECK(balance.factor(last) == kFullWeight);
}

TEST_CASE("balance: paths of different kinds are not compared") {
  // By the streams beside it the one-sided path would be slow: bytes wait there all the time.
  const auto factor_of = [](PathKind kind) {
    Balance balance;
    std::int64_t now = kSecond;
    for (int tick = 0; tick < 10 * kSecond / kTick; ++tick) {
      now += kTick;
      const bool has = tick % 50 < 25;
      balance.observe(kA, has ? 400'000 : 0, has ? 400'000 : 0, kTick, now);
      balance.observe(kC, has ? 400'000 : 0, has ? 400'000 : 0, kTick, now);
      balance.observe(kB, 400'000, 200'000, kTick, now, kind);
      balance.step(now);
    }
    return balance.factor(kB);
  };
  CHECK(factor_of(PathKind::stream) < kFullWeight);
  CHECK(factor_of(PathKind::one_sided) == kFullWeight);
}

TEST_CASE("balance: a path is judged by streams again when no comm has it one-sided any more") {
  Balance balance;
  std::int64_t now = kSecond;
  for (int i = 0; i < 3; ++i) {
    balance.observe(kB, 400'000, 200'000, kTick, now, PathKind::one_sided);
    for (int tick = 0; tick < kSecond / kTick; ++tick) {  // a stream over the same path, no help
      now += kTick;
      balance.observe(kB, 400'000, 200'000, kTick, now);
      balance.observe(kA, tick % 50 < 25 ? 400'000 : 0, 400'000, kTick, now);
    }
    CHECK(balance.step(now) == 0);
  }
  for (int i = 0; i < 10; ++i) {
    second(balance, {{kA, 100e6, 0.5}, {kB, 50e6, 1}}, now);
  }
  CHECK(balance.factor(kB) < kFullWeight);
}

TEST_CASE("balance: what was found of a stream does not hold over RDMA") {
  Balance balance;
  std::int64_t now = kSecond;
  for (int i = 0; i < 10; ++i) {
    second(balance, {{kA, 100e6, 0.5}, {kB, 50e6, 1}}, now);
  }
  REQUIRE(balance.factor(kB) < kFullWeight);
  CHECK(balance.kind(kB) == PathKind::stream);
  balance.observe(kB, 0, 0, kTick, now, PathKind::one_sided);
  CHECK(balance.kind(kB) == PathKind::one_sided);
  CHECK(balance.factor(kB) == kFullWeight);
  CHECK(balance.removed() == 0);
  CHECK((balance.step(now + kSecond) & bit(kB)) != 0);  // its weight is another
}
