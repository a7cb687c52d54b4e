// How often a path that fails its validation is tried again.
#include "core/validation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace fabric::core;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr PathIndex kPath = path_index(1, 1);

// A path that never validates, each attempt taking a second, from `now` on: when attempts began.
std::vector<std::int64_t> attempts(ValidationBackoff& backoff, std::int64_t now,
                                   std::int64_t until) {
  std::vector<std::int64_t> began;
  while (now < until) {
    if ((backoff.held(now) & bit(kPath)) != 0) {
      now += kSecond / 100;
      continue;
    }
    began.push_back(now);
    backoff.began(kPath, now);
    backoff.failed(kPath, now, now + kSecond);
    now += kSecond;
  }
  return began;
}

std::size_t within(const std::vector<std::int64_t>& times, std::int64_t from, std::int64_t to) {
  std::size_t count = 0;
  for (const std::int64_t time : times) count += time >= from && time < to ? 1U : 0U;
  return count;
}

}  // namespace

TEST_CASE("a path that fails for ever is tried at most once a minute after five minutes") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    ValidationBackoff backoff(seed * 0x123456789abcdefULL);
    const auto times = attempts(backoff, 0, 3600 * kSecond);
    REQUIRE(times.size() >= 45);  // for ever: not given up either
    CHECK(within(times, 0, 300 * kSecond) <= 14);
    for (std::size_t i = 1; i < times.size(); ++i) {
      if (times[i] >= 300 * kSecond) CHECK(times[i] - times[i - 1] >= 60 * kSecond);
      CHECK(times[i] - times[i - 1] <= 90 * kSecond);
    }
  }
}

TEST_CASE("processes that lost a path together do not come back to it together") {
  std::vector<std::int64_t> last;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ValidationBackoff backoff(seed * 0x9e3779b97f4a7c15ULL);
    last.push_back(attempts(backoff, 0, 600 * kSecond).back());
  }
  std::sort(last.begin(), last.end());
  std::size_t apart = 0;
  for (std::size_t i = 1; i < last.size(); ++i) apart += last[i] != last[i - 1] ? 1U : 0U;
  CHECK(apart >= 10);
}

TEST_CASE("many comms that fail together count as one failure, and share one attempt") {
  ValidationBackoff one(1);
  ValidationBackoff many(1);
  one.failed(kPath, 0, kSecond);
  for (int comm = 0; comm < 100; ++comm) many.failed(kPath, comm, kSecond + comm);
  const auto opens = [](const ValidationBackoff& backoff) {
    std::int64_t now = kSecond;
    while ((backoff.held(now) & bit(kPath)) != 0) now += kSecond / 1000;
    return now;
  };
  CHECK(opens(one) == opens(many));
  const std::int64_t now = opens(many);
  CHECK(many.held(now) == 0);
  many.began(kPath, now);
  CHECK(many.held(now) == bit(kPath));  // for all the others
  CHECK(many.held(now + kValidationMinNs - 1) == bit(kPath));
}

TEST_CASE("success forgets all failures; other paths are not concerned") {
  ValidationBackoff backoff(3);
  attempts(backoff, 0, 600 * kSecond);
  const std::int64_t now = 600 * kSecond;
  CHECK(backoff.held(now) == bit(kPath));
  backoff.succeeded(kPath);
  CHECK(backoff.held(now) == 0);
  backoff.began(kPath, now);
  CHECK(backoff.held(now) == 0);  // nothing failed: all comms may come back at once
  backoff.failed(kPath, now, now + kSecond);
  CHECK(backoff.held(now + 2 * kSecond) == 0);
}

TEST_CASE("a link event is worth one attempt, and no more") {
  ValidationBackoff backoff(4);
  attempts(backoff, 0, 600 * kSecond);
  std::int64_t now = 600 * kSecond;
  REQUIRE(backoff.held(now) == bit(kPath));
  backoff.prompt(kPath);
  CHECK(backoff.held(now) == 0);
  backoff.began(kPath, now);
  CHECK(backoff.held(now + 59 * kSecond) == bit(kPath));
  backoff.failed(kPath, now, now + kSecond);
  CHECK(backoff.held(now + 60 * kSecond) == bit(kPath));
}
