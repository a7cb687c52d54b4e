// When those who wait for events are woken.
#include "core/notify_throttle.h"

#include <doctest/doctest.h>

#include "util.h"

namespace fabric::prober::test {
namespace {

ring::EventRecord record(ring::EventKind kind, std::uint16_t flags = 0, std::uint32_t count = 1) {
  ring::EventRecord out{};
  out.kind = static_cast<std::uint16_t>(kind);
  out.flags = flags;
  out.count = count;
  return out;
}

// How often it notifies within a second in which `kind` happens every millisecond.
int notified_in_a_second(NotifyThrottle& throttle, const ring::EventRecord& of,
                         std::uint32_t miss_run) {
  int notices = 0;
  for (Nanos now = 10'000 * kMs; now < 11'000 * kMs; now += kMs) {
    throttle.note(of);
    notices += throttle.should_notify(now, miss_run) ? 1 : 0;
  }
  return notices;
}

}  // namespace

TEST_CASE("Without an event there is no notice, and one event has one notice") {
  NotifyThrottle throttle;
  CHECK_FALSE(throttle.should_notify(1000 * kMs, 0));
  CHECK_FALSE(throttle.should_notify(1000 * kMs, 3));
  throttle.note(record(ring::EventKind::kMiss));
  CHECK(throttle.should_notify(1000 * kMs, 1));
  CHECK_FALSE(throttle.should_notify(2000 * kMs, 3));
}

TEST_CASE("After a quiet time every event is notified at once") {
  for (const auto kind : {ring::EventKind::kCarrier, ring::EventKind::kMiss,
                          ring::EventKind::kHeard, ring::EventKind::kStall}) {
    NotifyThrottle throttle;
    throttle.note(record(kind));
    CHECK(throttle.should_notify(1000 * kMs, 0));
  }
}

TEST_CASE("A carrier change and a run of misses do not wait; single misses and the rest do") {
  NotifyThrottle carrier;
  CHECK(notified_in_a_second(carrier, record(ring::EventKind::kCarrier), 0) == 1000);
  NotifyThrottle run;
  CHECK(notified_in_a_second(run, record(ring::EventKind::kMiss), 2) == 1000);
  NotifyThrottle single;
  CHECK(notified_in_a_second(single, record(ring::EventKind::kMiss), 1) == 50);
  NotifyThrottle heard;
  CHECK(notified_in_a_second(heard, record(ring::EventKind::kHeard), 0) == 20);
  NotifyThrottle unclear;
  const auto miss = record(ring::EventKind::kMiss, ring::kFlagInconclusive);
  CHECK(notified_in_a_second(unclear, miss, 0) == 4);
  NotifyThrottle its_end;
  CHECK(notified_in_a_second(its_end, record(ring::EventKind::kHeard, 0, 0), 0) == 4);
  NotifyThrottle gap;
  CHECK(notified_in_a_second(gap, record(ring::EventKind::kStall), 0) == 4);
}

TEST_CASE("What may wait is notified with what may not") {
  NotifyThrottle throttle;
  throttle.note(record(ring::EventKind::kHeard));
  CHECK(throttle.should_notify(1000 * kMs, 0));
  throttle.note(record(ring::EventKind::kHeard));
  CHECK_FALSE(throttle.should_notify(1001 * kMs, 0));
  CHECK_FALSE(throttle.should_notify(1049 * kMs, 1));
  throttle.note(record(ring::EventKind::kCarrier));
  CHECK(throttle.should_notify(1002 * kMs, 0));
  CHECK_FALSE(throttle.should_notify(1100 * kMs, 0));
}

}  // namespace fabric::prober::test
