// What hosts tell each other: every host gets its neighbours' reports, bad news first.
#include "core/peer_reports.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "world.h"

using namespace fabric::prober;
using namespace fabric::prober::test;

namespace {

PeerReport unpack(std::uint64_t packed) {
  PeerReport v;
  v.kind = static_cast<ReportKind>(packed & 0xf);
  v.rail = (packed >> 4) & 63;
  v.peer_rail = (packed >> 10) & 63;
  v.heard = static_cast<Reachability>((packed >> 16) & 0xf);
  v.told = static_cast<Reachability>((packed >> 20) & 0xf);
  v.peer = static_cast<std::uint32_t>(packed >> 32);
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

// What one host was told: (reporter, kind, rail, peer) → report.
using ReportKey = std::tuple<std::uint32_t, ReportKind, std::uint8_t, std::uint32_t>;
std::map<ReportKey, PeerReport> heard(World& w, std::uint8_t host) {
  bool more = true;
  std::map<ReportKey, PeerReport> out;
  for (const auto& e : w.hosts[host].engine->peer_reports(w.now, 0, 10'000, more)) {
    const PeerReport v = unpack(e.packed);
    out[{e.reporter, v.kind, v.rail, v.peer}] = v;
  }
  CHECK_FALSE(more);
  return out;
}

}  // namespace

TEST_CASE("A report keeps its fields; unknown kinds and none are not taken") {
  const PeerReport v{ReportKind::kPath,   63,         62, Reachability::kSilent,
                     Reachability::kGone, 0xfedcba98U};
  const PeerReport back = unpack(pack(v));
  CHECK(back.rail == 63);
  CHECK(back.peer_rail == 62);
  CHECK(back.heard == Reachability::kSilent);
  CHECK(back.told == Reachability::kGone);
  CHECK(back.peer == 0xfedcba98U);
  PeerReports peer_reports;
  peer_reports.update(7, 0, 1);
  peer_reports.update(7, 15, 1);
  bool more = true;
  CHECK(peer_reports.list(1, 0, 10, more).empty());
  CHECK_FALSE(more);
}

TEST_CASE(
    "The newest report on a path or port counts, old ones are forgotten, pages do not overlap") {
  PeerReports peer_reports;
  PeerReport v{ReportKind::kPath, 1, 1, Reachability::kWell, Reachability::kWell, 5};
  peer_reports.update(7, pack(v), 1);
  v.heard = Reachability::kSilent;
  peer_reports.update(7, pack(v), 2);
  bool more = false;
  REQUIRE(peer_reports.list(3, 0, 10, more).size() == 1);
  CHECK(unpack(peer_reports.list(3, 0, 10, more)[0].packed).heard == Reachability::kSilent);
  CHECK(peer_reports.list(3 + PeerReports::kFresh, 0, 10, more).empty());
  for (std::uint32_t peer = 0; peer < 25; ++peer) {
    v.peer = peer;
    peer_reports.update(7, pack(v), 10);
  }
  std::set<std::uint64_t> all;
  std::size_t skip = 0;
  do {
    for (const auto& e : peer_reports.list(10, skip, 10, more)) all.insert(e.packed);
    skip += 10;
  } while (more);
  CHECK(all.size() == 25);
}

TEST_CASE("However much is said, only so much is remembered") {
  PeerReports peer_reports;
  PeerReport v{ReportKind::kPath, 1, 1, Reachability::kWell, Reachability::kWell, 0};
  for (std::uint32_t peer = 0; peer < PeerReports::kMost + 500; ++peer) {
    v.peer = peer;
    peer_reports.update(7, pack(v), 1);
  }
  bool more = false;
  CHECK(peer_reports.list(1, 0, 10 * PeerReports::kMost, more).size() == PeerReports::kMost);
}

TEST_CASE("Each host gets all reports of each of its peers") {
  World w = four();
  const auto told = heard(w, 1);
  // Of three reporters: paths to three peers on four rails, and four ports.
  CHECK(told.size() == 3 * (3 * kRails + kRails));
  for (const auto& [key, report] : told) CHECK(report.heard == Reachability::kWell);
}

TEST_CASE("Silence between two others is told, with its direction, within half a second") {
  World w = four();
  w.lost = [](auto from, auto to, auto rail) { return from == 2 && to == 3 && rail == 1; };
  w.run(500 * kMs);
  const auto told = heard(w, 1);
  const PeerReport three = told.at({World::id(3), ReportKind::kPath, 1, World::id(2)});
  const PeerReport two = told.at({World::id(2), ReportKind::kPath, 1, World::id(3)});
  CHECK(three.heard == Reachability::kSilent);
  CHECK(two.heard == Reachability::kWell);
  CHECK(two.told == Reachability::kSilent);
  w.lost = [](auto, auto, auto) { return false; };
  w.run(2000 * kMs);
  CHECK(heard(w, 1).at({World::id(3), ReportKind::kPath, 1, World::id(2)}).heard ==
        Reachability::kWell);
}

TEST_CASE("A port without carrier and a path never heard are told") {
  World w = four();
  w.hosts[2].engine->set_carrier(3, false);
  w.run(200 * kMs);
  CHECK(heard(w, 1).at({World::id(2), ReportKind::kPort, 3, 0}).heard == Reachability::kSilent);
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
  const PeerReport v = heard(dark, 1).at({World::id(2), ReportKind::kPath, 1, World::id(1)});
  CHECK(v.heard == Reachability::kUnknown);
}

TEST_CASE("A dead rail between two hosts keeps no report from them for long") {
  World w = four();
  w.lost = [](auto from, auto to, auto rail) { return from + to == 3 && rail == 0; };
  w.run(12'000 * kMs);  // what was said before is forgotten
  const auto told = heard(w, 1);
  for (std::uint8_t rail = 0; rail < kRails; ++rail) {
    CHECK(told.count({World::id(2), ReportKind::kPort, rail, 0}) == 1);
    CHECK(told.count({World::id(2), ReportKind::kPath, rail, World::id(3)}) == 1);
  }
  CHECK(told.at({World::id(2), ReportKind::kPath, 0, World::id(1)}).heard == Reachability::kSilent);
}

TEST_CASE("Who is not told its rails says nothing, and harms nobody") {
  World w = four(4);
  for (const auto& [key, report] : heard(w, 1)) CHECK(std::get<0>(key) != World::id(4));
  CHECK_FALSE(heard(w, 4).empty());
  for (auto& [n, h] : w.hosts) CHECK(h.records.of(fabric::ring::EventKind::kMiss).empty());
}
