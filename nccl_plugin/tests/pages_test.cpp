// The steer page as an enemy would write it, and the stats page as a reader sees it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "tests/steer_page_kit.h"

#include "host/stats_page.h"
#include "host/steer_reader.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::pages;

namespace {

constexpr std::int64_t kNow = 1'000'000'000'000;

// A page with a rail on hold.
struct Page : SteerPageKit {
  Page() : SteerPageKit(kNow) {
    SteerRail rail{};
    std::strcpy(rail.netdev, "rail0");
    rail.weight = 0;
    rail.state = 3;
    rails.push_back(rail);
  }
};

}  // namespace

TEST_CASE("a good page is followed, each kind of bad one is not") {
  SteerView view;
  CHECK(parse_steer_page(Page().bytes(), kNow, view) == SteerVerdict::good);
  REQUIRE(view.rail("rail0") != nullptr);
  CHECK(view.rail("rail0")->weight == 0);
  CHECK(view.rail("rail") == nullptr);
  const auto verdict = [&view](auto change) {
    Page page;
    change(page);
    return parse_steer_page(page.bytes(), kNow, view);
  };
  CHECK(verdict([](Page& p) { p.header.magic = 1; }) == SteerVerdict::refused);
  CHECK(verdict([](Page& p) { p.header.version = 9; }) == SteerVerdict::refused);
  CHECK(verdict([](Page& p) { p.header.seq = 3; }) == SteerVerdict::torn);
  CHECK(verdict([](Page& p) { p.header.page_size = 1; }) == SteerVerdict::refused);
  CHECK(verdict([](Page& p) { p.header.mode = 7; }) == SteerVerdict::refused);
  CHECK(verdict([](Page& p) { p.header.heartbeat_ns = ~0ULL; }) == SteerVerdict::refused);
  CHECK(verdict([](Page& p) { p.rails[0].weight = 1001; }) == SteerVerdict::refused);
  CHECK(verdict([](Page& p) { p.rails[0].state = 8; }) == SteerVerdict::refused);
  CHECK(verdict([](Page& p) { std::memset(p.rails[0].netdev, 'x', 16); }) == SteerVerdict::refused);
  const auto with_rdma = [&verdict](std::uint16_t weight, std::uint8_t state, std::uint8_t given) {
    return verdict([&](Page& p) {
      p.rails[0].rdma_weight = weight;
      p.rails[0].rdma_state = state;
      p.rails[0].rdma_given = given;
    });
  };
  CHECK(with_rdma(1001, 1, 1) == SteerVerdict::refused);
  CHECK(with_rdma(1000, 8, 1) == SteerVerdict::refused);
  CHECK(with_rdma(1001, 8, 0) == SteerVerdict::good);  // means nothing
  REQUIRE(view.rail("rail0") != nullptr);
  CHECK(rdma_weight(*view.rail("rail0")) == 0);  // the rail's own
  CHECK(rdma_state(*view.rail("rail0")) == LinkState::down);
  CHECK(with_rdma(1000, 1, 1) == SteerVerdict::good);
  CHECK(rdma_weight(*view.rail("rail0")) == 1000);
  CHECK(rdma_state(*view.rail("rail0")) == LinkState::up);
  const auto of_newer_daemon = [](Page& p) { p.header.reserved[0] = p.rails[0].reserved[0] = 7; };
  CHECK(verdict(of_newer_daemon) == SteerVerdict::good);
  std::vector<std::byte> bent = Page().bytes();
  bent[kSteerRailsAt + 20] ^= std::byte{1};
  CHECK(parse_steer_page(bent, kNow, view) == SteerVerdict::refused);
  bent.resize(100);
  CHECK(parse_steer_page(bent, kNow, view) == SteerVerdict::refused);
}

TEST_CASE("fences: as many as there are, up to where they would meet the paths") {
  SteerView view;
  Page page;
  page.fences = {7, 0xdeadbeefdeadbeef};
  CHECK(parse_steer_page(page.bytes(), kNow, view) == SteerVerdict::good);
  CHECK(view.fences == page.fences);
  page.fences.assign(kSteerMaxFences, 9);
  page.paths.resize((steer_fences_at(kSteerMaxFences) - kSteerPathsAt) / sizeof(SteerPath));
  CHECK(parse_steer_page(page.bytes(), kNow, view) == SteerVerdict::good);
  CHECK(view.fences.size() == kSteerMaxFences);
  page.paths.emplace_back();
  CHECK(parse_steer_page(page.bytes(), kNow, view) == SteerVerdict::refused);
  page.paths.clear();
  page.fences.emplace_back(9);
  CHECK(parse_steer_page(page.bytes(), kNow, view) == SteerVerdict::refused);
  page.fences.assign(2, 9);
  std::vector<std::byte> bent = page.bytes();
  bent[kSteerPageSize - 1] ^= std::byte{1};
  CHECK(parse_steer_page(bent, kNow, view) == SteerVerdict::refused);
}

TEST_CASE("random damage never gets through and never crashes") {
  std::mt19937_64 random(7);
  const std::vector<std::byte> good = Page().bytes();
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = good;
    const std::size_t at = random() % (kSteerRailsAt + sizeof(SteerRail));
    const std::byte flip = static_cast<std::byte>(1U << (random() % 8));
    bytes[at] ^= flip;
    SteerView view;
    const SteerVerdict verdict = parse_steer_page(bytes, kNow, view);
    // The sequence itself is under no checksum.
    CHECK((verdict != SteerVerdict::good ||
           (at >= offsetof(SteerHeader, seq) && at < offsetof(SteerHeader, page_size))));
  }
}

TEST_CASE("the reader: appears, goes stale, is replaced, truncated, garbage") {
  const Directory directory;
  const std::string path = directory.path + "/steer";
  SteerReader reader(path);
  std::int64_t now = kNow;
  CHECK_FALSE(reader.poll(now));
  CHECK(reader.view() == nullptr);
  store(path, Page().bytes());
  now += 200'000'000;
  CHECK(reader.poll(now));
  REQUIRE(reader.view() != nullptr);
  CHECK_FALSE(reader.poll(now + 1'000'000));  // nothing new

  Page next;
  next.header.generation = 2;
  next.rails[0].weight = 1000;
  next.rails[0].state = 1;
  next.header.heartbeat_ns = static_cast<std::uint64_t>(now);
  store(path, next.bytes());  // renamed into place
  now += 200'000'000;
  CHECK(reader.poll(now));
  REQUIRE(reader.view() != nullptr);
  CHECK(reader.view()->rail("rail0")->weight == 1000);

  now += 4'000'000'000;
  CHECK(reader.poll(now));
  CHECK(reader.view() == nullptr);  // the heartbeat is too old
  CHECK(reader.rejected() == 0);

  std::vector<std::byte> garbage(kSteerPageSize, std::byte{0x5a});
  store(path, garbage);
  now += 200'000'000;
  reader.poll(now);
  CHECK(reader.view() == nullptr);
  CHECK(reader.rejected() == 1);
  reader.poll(now + 5'000'000);
  CHECK(reader.rejected() == 1);  // the same page is counted once

  Page again;
  again.header.heartbeat_ns = static_cast<std::uint64_t>(now);
  store(path, again.bytes());
  now += 200'000'000;
  CHECK(reader.poll(now));
  CHECK(reader.view() != nullptr);
  CHECK(::truncate(path.c_str(), 10) == 0);
  now += 5'000'000;
  CHECK(reader.poll(now));
  CHECK(reader.view() == nullptr);
  now += 200'000'000;
  reader.poll(now);
  CHECK(reader.view() == nullptr);
  CHECK(reader.rejected() >= 2);
}

TEST_CASE("a stranger's page is followed only where no stranger can have put it") {
  if (::geteuid() != 0) {
    MESSAGE("not root: a file of another user cannot be made");
    return;
  }
  const Directory directory;
  const std::string path = directory.path + "/steer";
  std::int64_t now = kNow;
  for (const auto& [mode, followed] :
       {std::pair{0755U, true}, std::pair{0775U, false}, std::pair{01777U, false}}) {
    CAPTURE(mode);
    store(path, Page().bytes());
    REQUIRE(::chown(path.c_str(), 64003, 64003) == 0);  // the daemon has a user of its own
    REQUIRE(::chmod(directory.path.c_str(), mode) == 0);
    SteerReader reader(path);
    now += 200'000'000;
    CHECK(reader.poll(now) == followed);
    CHECK((reader.view() != nullptr) == followed);
    CHECK(reader.rejected() == (followed ? 0 : 1));
  }
}

TEST_CASE("the stats page is whole, counts, keeps events, and goes away") {
  const Directory directory;
  Params params;
  params.run_dir = directory.path;
  params.job = "job with a name that is much longer than the sixty-three bytes there are for it";
  Rail rail;
  rail.name = "rail0";
  Stats stats;
  CHECK(stats.open(params, {rail}, kNow) == "");
  stats.rails[0].tx_bytes = 12345;
  for (int i = 0; i < 600; ++i) {
    stats.event(StatsEventKind::path_down, 7, 0, 1, static_cast<std::uint32_t>(i));
  }
  stats.publish(kNow + 5);
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path + "/stats")) {
    file = entry.path();
  }
  REQUIRE(file.ends_with("-" + std::to_string(kNow) + ".page"));
  std::vector<char> bytes(kStatsPageSize + 1);
  std::ifstream in(file, std::ios::binary);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(in.gcount() == static_cast<std::streamsize>(kStatsPageSize));
  StatsHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  CHECK(header.magic == kStatsMagic);
  CHECK(header.seq % 2 == 0);
  CHECK(header.heartbeat_ns == kNow + 5);
  CHECK(header.event_count == 600);
  CHECK(header.job[63] == '\0');
  StatsRail shown{};
  std::memcpy(&shown, bytes.data() + kStatsRailsAt, sizeof shown);
  CHECK(shown.tx_bytes == 12345);
  StatsEvent event{};
  std::memcpy(&event, bytes.data() + kStatsEventsAt + (599 % kStatsMaxEvents) * sizeof event,
              sizeof event);
  CHECK(event.index == 600);
  CHECK(event.detail == 599);
  stats.close();
  CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("without a run directory everything counts and nothing is published") {
  Params params;
  params.run_dir = "/nonexistent/fabric";
  Stats stats;
  CHECK(stats.open(params, {}, kNow) != "");
  stats.event(StatsEventKind::error, 1, 0, 0, 0);
  stats.publish(kNow);
  CHECK(stats.events().size() == 1);
  stats.close();
}
