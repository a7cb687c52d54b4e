// Fabric time as a parameter, and the 32 bits by which a packet announces the next.
#include "core/due_time.h"

#include <doctest/doctest.h>

#include <random>

#include "util.h"

using namespace fabric::prober;
using namespace fabric::prober::test;

namespace {

constexpr Nanos kPace = 10 * kMs;
constexpr Nanos kAhead = 1'700'000'000'123'456'789;

FabricTime settled(Nanos ahead = kAhead, Nanos bound = 800, Nanos now = 5'000 * kMs) {
  FabricTime time;
  time.look(FabricReading{ahead, bound, 1}, kPace, now - FabricTime::kSettled);
  time.look(FabricReading{ahead, bound, 1}, kPace, now);
  return time;
}

}  // namespace

TEST_CASE("Fabric time is used once it was good for a second, and only while it is") {
  FabricTime time;
  const FabricReading page{kAhead, 800, 1};
  Nanos now = 1'000 * kMs;
  CHECK_FALSE(time.good());
  for (int i = 0; i < 500; ++i, now += 2 * kMs) {
    time.look(page, kPace, now);
    CHECK_FALSE(time.good());
  }
  time.look(page, kPace, now);
  CHECK(time.good());
  const auto generation = time.generation();
  const auto lost = [&](const std::optional<FabricReading>& reading) {
    FabricTime other = time;
    other.look(reading, kPace, now += 2 * kMs);
    CHECK_FALSE(other.good());
    other.look(page, kPace, now += 2 * kMs);
    CHECK_FALSE(other.good());
    CHECK(other.generation() != generation);
  };
  lost(std::nullopt);
  lost(FabricReading{kAhead, kPace / 16 + 1, 1});  // holdover that went on for too long
  lost(FabricReading{kAhead, -1, 1});
  lost(FabricReading{kAhead, 800, 2});            // another epoch
  lost(FabricReading{kAhead + 100'000, 800, 1});  // it jumps
  lost(FabricReading{kAhead - 100'000, 800, 1});
  lost(FabricReading{std::numeric_limits<Nanos>::min(), 800, 1});
  // Slewed by 100 ppm, it goes on.
  for (int i = 0; i < 1000; ++i) time.look({{kAhead + i * 200, 800, 1}}, kPace, now += 2 * kMs);
  CHECK(time.good());
  CHECK(time.generation() == generation);
  CHECK(FabricTime::most_bound(kMs) == 62'500);
  CHECK(FabricTime::most_bound(1'000 * kMs) == kMs);
}

TEST_CASE("A due time is read as it was announced, by another clock too, over all wraps") {
  std::mt19937_64 rng(3);
  for (int i = 0; i < 20'000; ++i) {
    // Sender and receiver have monotonic clocks of their own; fabric time is the same.
    const Nanos fabric = static_cast<Nanos>(rng() % (Nanos{1} << 61));
    const Nanos sent = static_cast<Nanos>(rng() % (Nanos{1} << 50));
    const Nanos heard = static_cast<Nanos>(rng() % (Nanos{1} << 50));
    const Nanos bound = static_cast<Nanos>(rng() % 600'000);
    const FabricTime sender = settled(fabric - sent, bound, sent);
    const FabricTime receiver = settled(fabric - heard, 500, heard);
    const Nanos in =
        static_cast<Nanos>(rng() % static_cast<std::uint64_t>(2 * kMostAhead)) - kMostAhead;
    const auto packed = pack_next_due(sent + in, sent, sender);
    const auto got = unpack_next_due(packed, heard, receiver);
    REQUIRE(got);
    CHECK(got->due - heard >= in);
    CHECK(got->due - heard < in + 256);
    CHECK(got->bound >= bound);
    CHECK(got->bound <= std::max<Nanos>(512, 2 * bound));
  }
}

TEST_CASE("No due time is announced without fabric time, too far ahead, or by 0") {
  const Nanos now = 5'000 * kMs;
  const FabricTime time = settled();
  CHECK(pack_next_due(now + kPace, now, FabricTime{}) == 0);
  CHECK(pack_next_due(now + kMostAhead + 1, now, time) == 0);
  CHECK(pack_next_due(now - kMostAhead - 1, now, time) == 0);
  const auto packed = pack_next_due(now + kPace, now, time);
  CHECK(unpack_next_due(packed, now, time).has_value());
  CHECK_FALSE(unpack_next_due(packed, now, FabricTime{}).has_value());
  CHECK_FALSE(unpack_next_due(0, now, time).has_value());
  CHECK_FALSE(unpack_next_due(packed & ~15U, now, time).has_value());
}

TEST_CASE("Missing: three eighths of the link's interval after the latest that packets ever come") {
  const FabricTime time = settled();
  DueTimeTracker tracker;
  const Nanos interval = 3 * kPace;
  Nanos due = 6'000 * kMs;
  std::uint64_t seq = 1;
  for (int i = 0; i < 40; ++i, due += interval, ++seq) {
    CHECK(tracker.holds() == (i > 8));
    const Nanos came = due + 50'000 + (i % 4) * 100'000;
    const DueTime next{due + interval, 512};
    CHECK(tracker.take(next, seq, true, came, came, interval, kPace, time));
  }
  const Nanos first = due + 350'000 + 512 + 800 + DueTimeTracker::grace(kPace);
  CHECK(tracker.due(1) == due);
  CHECK(tracker.missing_from(1) == first);
  CHECK(tracker.missing(first - 1) == 0);
  CHECK(tracker.missing(first) == 1);
  // Its grid may move meanwhile.
  const Nanos second = first + interval + interval / 16;
  CHECK(tracker.missing(second - 1) == 1);
  CHECK(tracker.missing(second) == 2);
  CHECK(tracker.missing(second + 5 * interval) == 7);
  SUBCASE("A train in between moves nothing; what it says of the single packet counts") {
    CHECK(tracker.take(DueTime{due, 512}, seq, false, due - 5 * kMs, due - interval, interval,
                       kPace, time));
    CHECK(tracker.missing_from(1) == first);
  }
  SUBCASE("After another generation of our own time it is learnt anew") {
    FabricTime other = time;
    const FabricReading page{kAhead + 50 * kMs, 800, 1};
    other.look(page, kPace, due);
    other.look(page, kPace, due + FabricTime::kSettled);
    CHECK(tracker.take(DueTime{due + interval, 512}, seq, true, due, due, interval, kPace, other));
    CHECK_FALSE(tracker.holds());
  }
  SUBCASE("Without a due time nothing holds, and all is forgotten") {
    CHECK(tracker.take(std::nullopt, seq, true, due, due, interval, kPace, time));
    CHECK_FALSE(tracker.holds());
    CHECK(tracker.missing(due + 100 * interval) == 0);
  }
  SUBCASE("What does not fit the pace is left out, and the next one counts again") {
    for (const Nanos nonsense : {due - interval, due + 5 * kMs, due + 2 * interval, Nanos{0},
                                 std::numeric_limits<Nanos>::max() / 4}) {
      DueTimeTracker other = tracker;
      CHECK_FALSE(other.take(DueTime{nonsense, 512}, seq, true, due, due, interval, kPace, time));
      CHECK_FALSE(other.holds());
      CHECK(other.missing(due + 100 * interval) == 0);
      CHECK(other.take(DueTime{due + 2 * interval, 512}, seq + 1, true, due + interval,
                       due + interval, interval, kPace, time));
      CHECK(other.holds());
    }
  }
  SUBCASE("A due time that is too early calls nothing missing that comes by its pace") {
    const Nanos lie = due + interval - 3 * kMs;
    CHECK(tracker.take(DueTime{lie, 512}, seq, true, due, due, interval, kPace, time));
    CHECK(tracker.missing(due + interval + kPace / 8 - 1) == 0);
  }
}
