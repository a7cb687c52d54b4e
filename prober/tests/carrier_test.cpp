#include "core/carrier.h"

#include <doctest/doctest.h>

#include "util.h"

using namespace fabric::prober;
namespace ring = fabric::ring;
using namespace fabric::prober::test;
using fabric::ring::EventKind;

TEST_CASE("Counter differences are exact however many flaps lie between two readings") {
  Records out;
  CarrierTracker t;
  t.update(3, {true, 7, true, 10, 11}, 1 * kMs, out);
  REQUIRE(out.events.size() == 1);
  CHECK((out.events[0].flags & ring::kFlagInitial) != 0);
  CHECK(out.events[0].count == 0);
  t.update(3, {true, 7, true, 10, 11}, 3 * kMs, out);
  CHECK(out.events.size() == 1);
  t.update(3, {true, 7, true, 14, 15}, 5 * kMs, out);
  REQUIRE(out.events.size() == 2);
  CHECK(out.events[1].count == 4);
  CHECK((out.events[1].flags & ring::kFlagCarrier) != 0);
  CHECK(out.events[1].value[2] == 3 * kMs);
  CHECK(out.events[1].link == 3);
  t.update(3, {true, 7, false, 15, 15}, 7 * kMs, out);
  CHECK(out.events.back().count == 1);
  CHECK((out.events.back().flags & ring::kFlagCarrier) == 0);
  t.update(3, {true, 7, true, 15, 16}, 9 * kMs, out);
  CHECK(out.events.back().count == 0);
  CHECK(t.downs() == 5);
}

TEST_CASE("A device that goes while up is one down; its return is none") {
  Records out;
  CarrierTracker t;
  t.update(0, {true, 7, true, 1, 2}, 1 * kMs, out);
  t.update(0, {}, 3 * kMs, out);
  CHECK((out.events.back().flags & ring::kFlagGone) != 0);
  CHECK(out.events.back().count == 1);
  t.update(0, {}, 5 * kMs, out);
  CHECK(out.events.size() == 2);
  t.update(0, {true, 9, false, 1, 0}, 7 * kMs, out);
  CHECK((out.events.back().flags & ring::kFlagReturned) != 0);
  CHECK(out.events.back().count == 0);
  CHECK(t.downs() == 1);
}

TEST_CASE("A device replaced between two readings") {
  Records out;
  CarrierTracker t;
  t.update(0, {true, 7, true, 5, 6}, 1 * kMs, out);
  t.update(0, {true, 8, true, 1, 1}, 3 * kMs, out);
  CHECK((out.events.back().flags & ring::kFlagReturned) != 0);
  CHECK(out.events.back().count == 1);
  t.update(0, {true, 8, true, 2, 2}, 5 * kMs, out);
  CHECK(out.events.back().count == 1);
}

TEST_CASE("A device that is not there at first") {
  Records out;
  CarrierTracker t;
  t.update(0, {}, 1 * kMs, out);
  CHECK((out.events.back().flags & ring::kFlagGone) != 0);
  t.update(0, {true, 4, true, 0, 1}, 3 * kMs, out);
  CHECK((out.events.back().flags & ring::kFlagReturned) != 0);
  CHECK(t.downs() == 0);
}
