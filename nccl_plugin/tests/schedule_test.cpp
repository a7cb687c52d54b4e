// Which paths carry and how they share: core/schedule.h.
#include "core/schedule.h"

#include <doctest/doctest.h>

#include <array>
#include <limits>

using namespace fabric::core;

namespace {

constexpr PathIndex kPrimary = path_index(0, 0);
constexpr PathIndex kOther = path_index(1, 1);

}  // namespace

TEST_CASE("schedule: chunks are shared in proportion to weight") {
  Share share;
  const PathSet both = bit(kPrimary) | bit(kOther);
  std::array<int, 2> carried{};
  for (int i = 0; i < 900; ++i) {
    const PathIndex path = *share.next(both);
    share.carried(path, 1000, path == kPrimary ? 1000 : 500);
    ++carried[path == kPrimary ? 0 : 1];
  }
  CHECK(carried[0] == 600);
  CHECK(carried[1] == 300);
  CHECK(*share.next(bit(kOther)) == kOther);
  CHECK_FALSE(share.next(0));
}

TEST_CASE("schedule: who comes back neither starves nor makes up for its absence") {
  const PathSet both = bit(kPrimary) | bit(kOther);
  // The primary carried alone at weight 0 or 100, then the other alone, then both.
  for (const std::uint16_t weight : {std::uint16_t{0}, std::uint16_t{100}}) {
    for (const bool died : {false, true}) {
      Share share;
      share.change(0, bit(kPrimary));
      for (int i = 0; i < 1000; ++i) {
        share.carried(kPrimary, 1'000'000, weight);
      }
      share.change(died ? 0 : bit(kPrimary), bit(kOther));
      for (int i = 0; i < 10; ++i) {
        share.carried(kOther, 1'000'000, 1000);
      }
      share.change(bit(kOther), both);
      std::array<int, 2> carried{};
      for (int i = 0; i < 100; ++i) {
        const PathIndex path = *share.next(both);
        share.carried(path, 1000, 1000);
        ++carried[path == kPrimary ? 0 : 1];
      }
      CHECK(carried[0] == 50);
      CHECK(carried[1] == 50);
    }
  }
  // All died, and two others come: level with one another.
  Share share;
  share.carried(kPrimary, 1'000'000, 1);
  share.change(0, both);
  CHECK(*share.next(both) == kPrimary);
  share.carried(kPrimary, 1000, 1000);
  CHECK(*share.next(both) == kOther);
}

TEST_CASE("schedule: comms that share the same paths begin with different ones") {
  constexpr PathIndex kThird = path_index(3, 0);
  const PathSet three = bit(kPrimary) | bit(kOther) | bit(kThird);
  const std::array order{kPrimary, kOther, kThird};
  for (std::size_t turn = 0; turn < 7; ++turn) {
    Share share;
    share.change(0, three);
    share.begin_with(three, turn);
    for (std::size_t i = 0; i < 9; ++i) {
      const PathIndex path = *share.next(three);
      CHECK(path == order[(turn + i) % order.size()]);
      share.carried(path, 1000, kFullWeight);
    }
    // What takes nothing now is passed over.
    CHECK(*share.next(three & ~bit(order[turn % 3])) == order[(turn + 1) % 3]);
    share.begin_with(0, 1);
    CHECK(*share.next(three) == order[turn % 3]);
  }
}

// A path of one of them leaves for a moment, or some of its chunks go again.
TEST_CASE("schedule: comms that were out of step are in step again") {
  constexpr PathIndex kThird = path_index(3, 0);
  const PathSet three = bit(kPrimary) | bit(kOther) | bit(kThird);
  for (const bool again : {false, true}) {
    for (std::size_t out = 0; out < 3; ++out) {
      for (std::size_t moment = 0; moment < 3; ++moment) {
        std::array<Share, 3> comms;
        const auto round = [&](std::optional<std::size_t> lacks) {
          PathSet used = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            const PathSet paths = lacks == i ? bit(kPrimary) | bit(kOther) : three;
            const PathIndex path = *comms[i].next(paths);
            comms[i].carried(path, 1000, kFullWeight);
            used |= bit(path);
          }
          return std::popcount(used);
        };
        for (std::size_t i = 0; i < 3; ++i) {
          comms[i].begin_with(three, i);
        }
        for (std::size_t i = 0; i < moment; ++i) {
          CHECK(round({}) == 3);
        }
        if (again) {
          comms[out].carried(kOther, 1000, kFullWeight, true);
        } else {
          comms[out].change(three, bit(kPrimary) | bit(kOther));
          round(out);
          comms[out].change(bit(kPrimary) | bit(kOther), three);
        }
        for (int i = 0; i < 6; ++i) {
          round({});
        }
        for (int i = 0; i < 30; ++i) {
          CHECK(round({}) == 3);
        }
      }
    }
  }
}

TEST_CASE("schedule: small messages do not change whose turn it is") {
  const PathSet both = bit(kPrimary) | bit(kOther);
  Share share(kCopyLimit);
  share.begin_with(both, 1);
  CHECK(*share.next(both) == kOther);
  share.carried(kOther, 64, kFullWeight);
  CHECK(*share.next(both) == kOther);
  share.carried(kOther, kCopyLimit, kFullWeight);
  CHECK(*share.next(both) == kPrimary);
  share.carried(kPrimary, 256 << 10U, kFullWeight);
  CHECK(*share.next(both) == kOther);
  share.carried(kOther, 256 << 10U, kFullWeight);
  CHECK(*share.next(both) == kPrimary);  // it is behind by more than that
}

TEST_CASE("schedule: as many chunks at once as a path takes in about a millisecond") {
  BatchSize size;
  CHECK(size.most() == BatchSize::kLeast);
  size.through(BatchSize::kLeast, 900'000);
  CHECK(size.most() == 2 * BatchSize::kLeast);
  size.through(BatchSize::kLeast, 900'000);  // there were no more: that says nothing
  CHECK(size.most() == 2 * BatchSize::kLeast);
  size.through(2 * BatchSize::kLeast, 2'000'000);
  CHECK(size.most() == 2 * BatchSize::kLeast);
  for (int i = 0; i < 10; ++i) {
    size.through(size.most(), 1000);
  }
  CHECK(size.most() == BatchSize::kMost);
  for (int i = 0; i < 10; ++i) {
    size.through(size.most(), 8'000'000);
  }
  CHECK(size.most() == BatchSize::kLeast);
}

TEST_CASE("schedule: only a path beside a heavier one is limited") {
  constexpr auto kNoLimit = std::numeric_limits<std::size_t>::max();
  CHECK(most_outstanding(1000, 1000, 0) == kNoLimit);
  CHECK(most_outstanding(0, 0, 0) == kNoLimit);      // the last path, whatever is said of it
  CHECK(most_outstanding(100, 100, 0) == kNoLimit);  // alone
  CHECK(most_outstanding(500, 1000, 0) == kBacklog / 1000 * 500);
  // A little less weight is a little less, on a long path as well.
  const std::size_t window = 16 * kBacklog;
  CHECK(most_outstanding(990, 1000, window) > window / 100 * 98);
  CHECK(most_outstanding(200, 400, window) == window / 400 * 200);
}

TEST_CASE("schedule: what is much slower is as good as gone, unless there is nothing else") {
  const auto view = [](std::uint8_t rail, bool primary, bool slow) {
    return PathView{path_index(rail, rail),
                    primary,
                    true,
                    true,
                    static_cast<std::uint16_t>(slow ? 250 : kFullWeight),
                    false,
                    slow};
  };
  Policy policy;
  policy.primary_lost = true;
  for (std::uint8_t rail = 0; rail < 4; ++rail) policy.primaries |= bit(path_index(rail, rail));
  PathSet others = 0;
  for (std::uint8_t rail = 0; rail < 3; ++rail) others |= bit(path_index(rail, rail));
  // The comm with its primary there shares the three others; one with its primary on these stays.
  std::vector<PathView> live{view(0, false, false), view(1, false, false), view(2, false, false),
                             view(3, true, true)};
  CHECK(eligible(live, policy) == others);
  live[3].primary = false;
  live[1].primary = true;
  CHECK(eligible(live, policy) == bit(path_index(1, 1)));
  policy.stripe = true;
  CHECK(eligible(live, policy) == others);
  for (PathView& each : live) each.slow = true;
  CHECK(eligible(live, policy) == (others | bit(path_index(3, 3))));
}

namespace {

PathView view_of(PathIndex path, PathKind kind, std::uint16_t weight = kFullWeight,
                 bool trusted = true) {
  PathView view;
  view.path = path;
  view.primary = path == kPrimary;
  view.base = sender_rail(path) == receiver_rail(path);
  view.trusted = trusted;
  view.weight = weight;
  view.kind = kind;
  return view;
}

}  // namespace

TEST_CASE("schedule: a stream carries only where no one-sided path has a weight") {
  constexpr PathKind kStream = PathKind::stream;
  constexpr PathKind kOneSided = PathKind::one_sided;
  constexpr PathIndex kThird = path_index(2, 2);
  const auto chosen = [](const std::array<PathView, 3>& live) { return eligible(live); };
  // The primary is a stream: the comm has lost its primary, and shares what is one-sided.
  const std::array<PathView, 3> at_primary{view_of(kPrimary, kStream), view_of(kOther, kOneSided),
                                           view_of(kThird, kOneSided)};
  CHECK(best_kind(at_primary) == kOneSided);
  CHECK(primary_place(at_primary) == 0);
  CHECK(chosen(at_primary) == (bit(kOther) | bit(kThird)));
  // A weight, however small, is one.
  CHECK(chosen({view_of(kPrimary, kStream), view_of(kOther, kOneSided, 1),
                view_of(kThird, kOneSided, 0)}) == bit(kOther));
  CHECK(chosen({view_of(kPrimary, kStream), view_of(kOther, kOneSided, 0),
                view_of(kThird, kOneSided, 0)}) == bit(kPrimary));
  // One that came back just now is not trusted with what a stream carries well.
  CHECK(chosen({view_of(kPrimary, kStream), view_of(kOther, kOneSided, kFullWeight, false),
                view_of(kThird, kStream)}) == bit(kPrimary));
  CHECK(chosen({view_of(kPrimary, kStream, 0), view_of(kOther, kOneSided, kFullWeight, false),
                view_of(kThird, kStream, kFullWeight, false)}) == bit(kOther));
  // No hint takes the last path, of whichever kind.
  const std::array<PathView, 3> none{view_of(kPrimary, kStream, 0), view_of(kOther, kOneSided, 0),
                                     view_of(kThird, kStream, 0)};
  CHECK_FALSE(best_kind(none));
  CHECK(chosen(none) == (bit(kPrimary) | bit(kOther) | bit(kThird)));
  CHECK(eligible({}) == 0);
  CHECK(chosen({view_of(kPrimary, kOneSided), view_of(kOther, kOneSided),
                view_of(kThird, kOneSided)}) == bit(kPrimary));
}

TEST_CASE("schedule: a comm with device memory keeps to one-sided paths while any lives") {
  constexpr PathKind kStream = PathKind::stream;
  constexpr PathKind kOneSided = PathKind::one_sided;
  Policy policy;
  policy.device_memory = true;
  // Untrusted, without a weight, or both: nothing else will do.
  for (const bool trusted : {true, false}) {
    for (const std::uint16_t weight : std::array<std::uint16_t, 3>{0, 1, kFullWeight}) {
      const std::array<PathView, 2> live{view_of(kPrimary, kStream),
                                         view_of(kOther, kOneSided, weight, trusted)};
      CHECK(eligible(live, policy) == bit(kOther));
      CHECK(best_kind(live, true) == kOneSided);
    }
  }
  CHECK(eligible(std::array{view_of(kPrimary, kOneSided, 0), view_of(kOther, kOneSided)}, policy) ==
        bit(kOther));
  CHECK(eligible(std::array{view_of(kPrimary, kStream)}, policy) == bit(kPrimary));
  // One that has not delivered its validation may lose what is large.
  PathView back = view_of(kOther, kOneSided, kFullWeight, false);
  back.validated = false;
  CHECK(eligible(std::array{view_of(kPrimary, kStream), back}, policy) == bit(kPrimary));
  CHECK(eligible(std::array{back}, policy) == bit(kOther));
}

TEST_CASE("schedule: the primary, then all survivors, then whatever lives") {
  const auto view = [](std::size_t a, std::size_t b, bool primary, bool trusted, int weight) {
    return PathView{path_index(a, b), primary, a == b, trusted, static_cast<std::uint16_t>(weight)};
  };
  const PathSet p00 = bit(path_index(0, 0));
  const PathSet p11 = bit(path_index(1, 1));
  const PathSet p22 = bit(path_index(2, 2));
  const PathSet p10 = bit(path_index(1, 0));
  CHECK(eligible(std::array{view(0, 0, true, true, 1000), view(1, 1, false, true, 1000)}) == p00);
  CHECK(eligible(std::array{view(0, 0, true, true, 0), view(1, 1, false, true, 1000),
                            view(2, 2, false, true, 500)}) == (p11 | p22));
  CHECK(eligible(std::array{view(0, 0, true, false, 1000), view(1, 1, false, true, 1000)}) == p11);
  // A cross pair carries only what has no pair of its own.
  CHECK(eligible(std::array{view(1, 0, false, true, 1000), view(2, 2, false, true, 1000)}) ==
        (p10 | p22));
  CHECK(eligible(std::array{view(1, 0, false, true, 1000), view(1, 1, false, true, 1000),
                            view(0, 0, false, true, 1000)}) == (p00 | p11));
  // It would meet the pair of a rail that carries already: from an idle rail, and to an idle one.
  CHECK(eligible(std::array{view(0, 1, false, true, 1000), view(1, 1, false, true, 1000),
                            view(2, 2, false, true, 1000)}) == (p11 | p22));
  CHECK(eligible(std::array{view(1, 0, false, true, 1000), view(1, 1, false, true, 1000),
                            view(2, 2, false, true, 1000)}) == (p11 | p22));
  // Two would meet at rail 0, but where nothing else carries one of them has to.
  CHECK(eligible(std::array{view(1, 0, false, true, 1000), view(2, 2, false, true, 1000),
                            view(3, 0, false, true, 1000)}) == (p10 | p22));
  CHECK(eligible(std::array{view(1, 0, false, true, 1000), view(1, 1, true, true, 0)}) == p10);
  CHECK(eligible(std::array{view(1, 1, false, false, 1000), view(0, 0, true, true, 0)}) == p11);
  CHECK(eligible(std::array{view(0, 0, true, true, 0)}) == p00);  // hints never remove the last
  CHECK(eligible({}) == 0);
}

TEST_CASE(
    "schedule: the pool opens when a comm has lost its primary and there is room beside the "
    "primaries") {
  const auto view = [](std::size_t s, std::size_t r, bool primary, std::uint16_t weight = 1000) {
    return PathView{path_index(s, r), primary, s == r, true, weight};
  };
  Policy policy;
  policy.primary_lost = true;
  policy.primaries = bit(path_index(0, 0)) | bit(path_index(1, 1)) | bit(path_index(2, 2));
  const PathSet p00 = bit(path_index(0, 0));
  const PathSet p11 = bit(path_index(1, 1));
  // Every survivor is somebody's primary: no reason to leave ours.
  const std::array primaries{view(0, 0, true), view(1, 1, false)};
  CHECK(eligible(primaries, policy) == p00);
  // A pair that is nobody's primary, a cross-rail path, a primary of less weight: all share all.
  const std::array spare{view(0, 0, true), view(1, 1, false), view(3, 3, false)};
  CHECK(eligible(spare, policy) == (p00 | p11 | bit(path_index(3, 3))));
  const std::array cross_rail{view(0, 0, true), view(2, 1, false)};
  CHECK(eligible(cross_rail, policy) == (p00 | bit(path_index(2, 1))));
  const std::array slow{view(0, 0, true), view(1, 1, false, 400)};
  CHECK(eligible(slow, policy) == (p00 | p11));
  policy.primary_lost = false;
  CHECK(eligible(spare, policy) == p00);
  policy.stripe = true;
  CHECK(eligible(spare, policy) == (p00 | p11 | bit(path_index(3, 3))));
}

TEST_CASE("schedule: a standby rail carries for its own rail, and for nobody else") {
  const auto view = [](std::size_t rail, bool primary, bool backup, bool trusted = true) {
    return PathView{path_index(rail, rail), primary, true, trusted, 1000, backup};
  };
  Policy policy;
  policy.backup_of[2] = 0;
  policy.backup_of[3] = 1;
  const PathSet p1 = bit(path_index(1, 1));
  const PathSet p2 = bit(path_index(2, 2));
  const PathSet p3 = bit(path_index(3, 3));
  // The comm whose primary is rail 0, whose rail is dead, then also the standby.
  const std::array dead{view(1, false, false), view(2, false, true), view(3, false, false)};
  CHECK(primary_place(dead) == p2);
  CHECK(eligible(dead, policy) == p2);
  const std::array both{view(1, false, false), view(3, false, false)};
  CHECK(primary_place(both) == 0);
  CHECK(eligible(both, policy) == p1);
  const std::array last{view(3, false, false)};
  CHECK(eligible(last, policy) == p3);
  // Striped: the active rails, and the standby of the dead one.
  policy.stripe = true;
  CHECK(eligible(dead, policy) == (p1 | p2));
}
