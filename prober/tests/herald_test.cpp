// When those who wait for news are woken.
#include "core/herald.h"

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

// How often it tells within a second in which `kind` happens every millisecond.
int told_in_a_second(Herald& herald, const ring::EventRecord& of, std::uint32_t row) {
  int told = 0;
  for (Nanos now = 10'000 * kMs; now < 11'000 * kMs; now += kMs) {
    herald.saw(of);
    told += herald.tells(now, row) ? 1 : 0;
  }
  return told;
}

}  // namespace

TEST_CASE("Nothing is told of nothing, and what was told is not told again") {
  Herald herald;
  CHECK_FALSE(herald.tells(1000 * kMs, 0));
  CHECK_FALSE(herald.tells(1000 * kMs, 3));
  herald.saw(record(ring::EventKind::kMiss));
  CHECK(herald.tells(1000 * kMs, 1));
  CHECK_FALSE(herald.tells(2000 * kMs, 3));
}

TEST_CASE("After a quiet time everything is told at once") {
  for (const auto kind : {ring::EventKind::kCarrier, ring::EventKind::kMiss,
                          ring::EventKind::kHeard, ring::EventKind::kStall}) {
    Herald herald;
    herald.saw(record(kind));
    CHECK(herald.tells(1000 * kMs, 0));
  }
}

TEST_CASE("A carrier change and a row of misses do not wait; single misses and the rest do") {
  Herald carrier;
  CHECK(told_in_a_second(carrier, record(ring::EventKind::kCarrier), 0) == 1000);
  Herald row;
  CHECK(told_in_a_second(row, record(ring::EventKind::kMiss), 2) == 1000);
  Herald single;
  CHECK(told_in_a_second(single, record(ring::EventKind::kMiss), 1) == 50);
  Herald heard;
  CHECK(told_in_a_second(heard, record(ring::EventKind::kHeard), 0) == 20);
  Herald unclear;
  const auto miss = record(ring::EventKind::kMiss, ring::kFlagInconclusive);
  CHECK(told_in_a_second(unclear, miss, 0) == 4);
  Herald its_end;
  CHECK(told_in_a_second(its_end, record(ring::EventKind::kHeard, 0, 0), 0) == 4);
  Herald gap;
  CHECK(told_in_a_second(gap, record(ring::EventKind::kStall), 0) == 4);
}

TEST_CASE("What may wait is told with what may not") {
  Herald herald;
  herald.saw(record(ring::EventKind::kHeard));
  CHECK(herald.tells(1000 * kMs, 0));
  herald.saw(record(ring::EventKind::kHeard));
  CHECK_FALSE(herald.tells(1001 * kMs, 0));
  CHECK_FALSE(herald.tells(1049 * kMs, 1));
  herald.saw(record(ring::EventKind::kCarrier));
  CHECK(herald.tells(1002 * kMs, 0));
  CHECK_FALSE(herald.tells(1100 * kMs, 0));
}

}  // namespace fabric::prober::test
