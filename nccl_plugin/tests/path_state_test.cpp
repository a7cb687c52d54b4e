// The parts of a path's and a comm's state, by themselves.
#include "host/path_state.h"

#include <doctest/doctest.h>

#include <string>

#include "host/comm_state.h"

using namespace fabric;
using namespace fabric::host;

namespace {

constexpr std::int64_t kHold = 500 * kMs;
constexpr std::uint16_t kWeight = 1000;
constexpr bool kLive = true;

PathTrust returned(int failures, std::int64_t now) {
  PathTrust trust;
  trust.connect(false, true, now, kHold);
  for (int i = 0; i < failures; ++i) {
    trust.fail(true, false);
  }
  trust.connect(true, true, now, kHold);
  return trust;
}

}  // namespace

TEST_CASE("path trust: the first connection has it at once, a later one when it was held") {
  PathTrust trust;
  trust.connect(false, true, 1, kHold);
  CHECK(trust.trusted());
  std::int64_t expected = kHold;
  for (int failures = 1; failures < 8; ++failures) {
    trust = returned(failures, 1);
    CHECK_FALSE(trust.trusted());
    trust.update(kLive, kWeight, expected);
    CHECK_FALSE(trust.trusted());
    trust.update(!kLive, kWeight, 1 + expected);
    CHECK_FALSE(trust.trusted());
    trust.update(kLive, kWeight, 1 + expected);
    CHECK(trust.trusted());
    expected = std::min({2 * expected, 16 * kHold, kHoldMaxNs});
  }
}

TEST_CASE("path trust: a connection that stood for long forgives, one opened again counts not") {
  PathTrust trust = returned(4, 1);
  trust.fail(true, true);
  trust.fail(false, false);
  trust.connect(true, true, 1, kHold);
  trust.update(kLive, kWeight, 1 + kHold);
  CHECK(trust.trusted());
}

TEST_CASE("path trust: no hold ends before the validation is delivered") {
  PathTrust trust = returned(1, 1);
  trust.fail(true, true);
  trust.connect(true, false, 1, kHold);
  trust.update(kLive, kWeight, 100 * kHold);
  CHECK_FALSE(trust.trusted());
  CHECK(trust.validate());
  CHECK_FALSE(trust.validate());  // once
  trust.update(kLive, kWeight, 100 * kHold);
  CHECK(trust.trusted());
}

TEST_CASE("path trust: what the steer page took is trusted when the page gives it back") {
  PathTrust trust = returned(1, 1);
  SUBCASE("by its weight") { trust.update(kLive, 0, 2); }
  SUBCASE("by its word") { trust.leave_to_page(); }
  trust.update(kLive, 0, 100 * kHold);
  CHECK_FALSE(trust.trusted());
  trust.update(kLive, kWeight, 3);
  CHECK(trust.trusted());
}

TEST_CASE("path redial: the back-off doubles up to its limit, and comms are staggered") {
  PathRedial redial;
  CHECK(redial.due(0));
  std::int64_t expected = kDialMinNs;
  for (int dials = 0; dials < 10; ++dials) {
    redial.dial(0, 0);
    CHECK_FALSE(redial.due(expected - 1));
    CHECK(redial.due(expected));
    redial.fail(0, 128);  // half of half the back-off later
    CHECK_FALSE(redial.due(expected + expected / 4 - 1));
    CHECK(redial.due(expected + expected / 4));
    expected = std::min(2 * expected, kDialMaxNs);
  }
  redial.at_once();
  CHECK(redial.due(0));
  redial.forget_backoff();
  redial.fail(7, 128);
  CHECK(redial.due(7));
}

TEST_CASE("path bytes: what was delivered since the last look, and what waits") {
  PathBytes bytes;
  core::PathSample sample;
  sample.acknowledged_bytes = 100;
  bytes.connect(sample, 5);
  CHECK(bytes.passed(9) == 0);
  bytes.written += 5000;
  sample.acknowledged_bytes = 1100;
  sample.window = 77;
  CHECK(bytes.update(sample, 9) == 1000);
  CHECK(bytes.window == 77);
  CHECK(bytes.delivered_at == 9);
  CHECK(bytes.waiting() == 4000);
  bytes.unsent_limit = kUnsentLimit + 3000;  // so much waits for nothing but the limit
  CHECK(bytes.waiting() == 1000);
  CHECK(bytes.update(sample, 10) == 0);
  CHECK(bytes.delivered_at == 9);
}

TEST_CASE("path outage: it is reported once, when all paths that there were have died") {
  PathOutage outage(10);
  CHECK_FALSE(outage.goes_on(false, 20));  // none has connected yet
  outage.path_failed("eth0 (no carrier)", 30);
  CHECK_FALSE(outage.goes_on(true, 40));
  CHECK(outage.goes_on(false, 50));
  CHECK_FALSE(outage.goes_on(false, 60));
  CHECK(outage.lasted(60) == 50);
  outage.over();
  CHECK(outage.goes_on(false, 100));
  CHECK(outage.lasted(2'000'000'100) == 2'000'000'000);
  CHECK(outage.text(2'000'000'100, "") ==
        "for 2 s (FABRIC_DEADLINE); the last to fail: eth0 (no carrier), 2000 ms ago");
}
