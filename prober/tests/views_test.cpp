// What hosts tell each other: every host hears its neighbours' view, bad news first.
#include "core/views.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "world.h"

using namespace fabric::prober;
using namespace fabric::prober::test;

namespace {

View unpack(std::uint64_t word) {
  View v;
  v.kind = static_cast<ViewKind>(word & 0xf);
  v.rail = (word >> 4) & 63;
  v.peer_rail = (word >> 10) & 63;
  v.heard = static_cast<Seen>((word >> 16) & 0xf);
  v.told = static_cast<Seen>((word >> 20) & 0xf);
  v.peer = static_cast<std::uint32_t>(word >> 32);
  return v;
}

constexpr std::uint8_t kRails = 4;

// `silent_host`: one whose daemon says no rails, as that of an older version.
World four(std::uint8_t silent_host = 0) {
  World w;
  for (std::uint8_t n = 1; n <= 4; ++n) {
    std::vector<std::uint8_t> peers;
    for (std::uint8_t p = 1; p <= 4; ++p) {
      if (p != n) peers.push_back(p);
    }
    w.start(n, 100U * n, peers, kRails, 10 * kMs);
    if (n == silent_host) continue;
    Config c = w.hosts[n].engine->config();
    for (auto& link : c.links) link.rail = static_cast<int>(link.index);
    for (auto& path : c.paths) path.peer_rail = static_cast<int>(path.link);
    w.hosts[n].engine->configure(c, w.now, 0);
    for (std::uint16_t r = 0; r < kRails; ++r) w.hosts[n].engine->set_carrier(r, true);
  }
  w.run(3000 * kMs);
  return w;
}

// What one host was told: (speaker, kind, rail, peer) → view.
using Key = std::tuple<std::uint32_t, ViewKind, std::uint8_t, std::uint32_t>;
std::map<Key, View> heard(World& w, std::uint8_t host) {
  bool more = true;
  std::map<Key, View> out;
  for (const auto& e : w.hosts[host].engine->views(w.now, 0, 10'000, more)) {
    const View v = unpack(e.word);
    out[{e.speaker, v.kind, v.rail, v.peer}] = v;
  }
  CHECK_FALSE(more);
  return out;
}

}  // namespace

TEST_CASE("A word keeps its fields; unknown kinds and none are not heard") {
  const View v{ViewKind::kPath, 63, 62, Seen::kSilent, Seen::kGone, 0xfedcba98U};
  const View back = unpack(pack(v));
  CHECK(back.rail == 63);
  CHECK(back.peer_rail == 62);
  CHECK(back.heard == Seen::kSilent);
  CHECK(back.told == Seen::kGone);
  CHECK(back.peer == 0xfedcba98U);
  Views views;
  views.hear(7, 0, 1);
  views.hear(7, 15, 1);
  bool more = true;
  CHECK(views.list(1, 0, 10, more).empty());
  CHECK_FALSE(more);
}

TEST_CASE("The newest word on a subject counts, old ones are forgotten, pages do not overlap") {
  Views views;
  View v{ViewKind::kPath, 1, 1, Seen::kWell, Seen::kWell, 5};
  views.hear(7, pack(v), 1);
  v.heard = Seen::kSilent;
  views.hear(7, pack(v), 2);
  bool more = false;
  REQUIRE(views.list(3, 0, 10, more).size() == 1);
  CHECK(unpack(views.list(3, 0, 10, more)[0].word).heard == Seen::kSilent);
  CHECK(views.list(3 + Views::kFresh, 0, 10, more).empty());
  for (std::uint32_t peer = 0; peer < 25; ++peer) {
    v.peer = peer;
    views.hear(7, pack(v), 10);
  }
  std::set<std::uint64_t> all;
  std::size_t skip = 0;
  do {
    for (const auto& e : views.list(10, skip, 10, more)) all.insert(e.word);
    skip += 10;
  } while (more);
  CHECK(all.size() == 25);
}

TEST_CASE("However much is said, only so much is remembered") {
  Views views;
  View v{ViewKind::kPath, 1, 1, Seen::kWell, Seen::kWell, 0};
  for (std::uint32_t peer = 0; peer < Views::kMost + 500; ++peer) {
    v.peer = peer;
    views.hear(7, pack(v), 1);
  }
  bool more = false;
  CHECK(views.list(1, 0, 10 * Views::kMost, more).size() == Views::kMost);
}

TEST_CASE("Each host hears the whole view of each of its peers") {
  World w = four();
  const auto told = heard(w, 1);
  // Of three speakers: paths to three peers on four rails, and four ports.
  CHECK(told.size() == 3 * (3 * kRails + kRails));
  for (const auto& [key, view] : told) CHECK(view.heard == Seen::kWell);
}

TEST_CASE("Silence between two others is told, with its direction, within half a second") {
  World w = four();
  w.lost = [](auto from, auto to, auto rail) { return from == 2 && to == 3 && rail == 1; };
  w.run(500 * kMs);
  const auto told = heard(w, 1);
  const View three = told.at({World::id(3), ViewKind::kPath, 1, World::id(2)});
  const View two = told.at({World::id(2), ViewKind::kPath, 1, World::id(3)});
  CHECK(three.heard == Seen::kSilent);
  CHECK(two.heard == Seen::kWell);
  CHECK(two.told == Seen::kSilent);
  w.lost = [](auto, auto, auto) { return false; };
  w.run(2000 * kMs);
  CHECK(heard(w, 1).at({World::id(3), ViewKind::kPath, 1, World::id(2)}).heard == Seen::kWell);
}

TEST_CASE("A port without carrier and a path never heard are told") {
  World w = four();
  w.hosts[2].engine->set_carrier(3, false);
  w.run(200 * kMs);
  CHECK(heard(w, 1).at({World::id(2), ViewKind::kPort, 3, 0}).heard == Seen::kSilent);
  World dark;
  dark.lost = [](auto, auto, auto rail) { return rail == 1; };
  for (std::uint8_t n = 1; n <= 2; ++n) {
    dark.start(n, 100U * n, {static_cast<std::uint8_t>(3 - n)}, 2, 10 * kMs);
    Config c = dark.hosts[n].engine->config();
    for (auto& link : c.links) link.rail = static_cast<int>(link.index);
    for (auto& path : c.paths) path.peer_rail = static_cast<int>(path.link);
    dark.hosts[n].engine->configure(c, dark.now, 0);
  }
  dark.run(1000 * kMs);
  const View v = heard(dark, 1).at({World::id(2), ViewKind::kPath, 1, World::id(1)});
  CHECK(v.heard == Seen::kUnknown);
}

TEST_CASE("A dead rail between two hosts keeps no word from them for long") {
  World w = four();
  w.lost = [](auto from, auto to, auto rail) { return from + to == 3 && rail == 0; };
  w.run(12'000 * kMs);  // what was said before is forgotten
  const auto told = heard(w, 1);
  for (std::uint8_t rail = 0; rail < kRails; ++rail) {
    CHECK(told.count({World::id(2), ViewKind::kPort, rail, 0}) == 1);
    CHECK(told.count({World::id(2), ViewKind::kPath, rail, World::id(3)}) == 1);
  }
  CHECK(told.at({World::id(2), ViewKind::kPath, 0, World::id(1)}).heard == Seen::kSilent);
}

TEST_CASE("Who is not told its rails says nothing, and harms nobody") {
  World w = four(4);
  for (const auto& [key, view] : heard(w, 1)) CHECK(std::get<0>(key) != World::id(4));
  CHECK_FALSE(heard(w, 4).empty());
  for (auto& [n, h] : w.hosts) CHECK(h.records.of(fabric::ring::EventKind::kMiss).empty());
}
