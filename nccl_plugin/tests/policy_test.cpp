// Where traffic goes, over real sockets: striping, standby rails, validation of a path that
// returns.
#include <algorithm>

#include "tests/loopback_pair.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

TEST_CASE("striping: one comm over all rails, and over those that are left") {
  Params params = Pair::usual();
  params.stripe = true;
  Pair pair(3, params);
  REQUIRE(connected(*pair.a, 2));
  CHECK(exchange(pair, milliseconds(200), 60).intact);
  const std::uint64_t most = std::max({moved(*pair.a, 0), moved(*pair.a, 1), moved(*pair.a, 2)});
  for (std::size_t rail = 0; rail < 3; ++rail) {
    CHECK(moved(*pair.a, rail) > most / 2);
  }
}

TEST_CASE("FABRIC_STANDBY: standby rails move behind the others") {
  std::vector<Rail> rails(3);
  for (std::size_t i = 0; i < 3; ++i) {
    rails[i].name = "n" + std::to_string(i);
  }
  std::array<std::uint8_t, core::kMaxRails> backup_of{};
  std::size_t shown = 0;
  CHECK(set_standby("n0/n1", rails, backup_of, shown).empty());
  CHECK(shown == 2);
  CHECK(rails[0].name == "n0");
  CHECK(rails[1].name == "n2");
  CHECK(rails[2].name == "n1");
  CHECK(backup_of[2] == 0);
  CHECK(backup_of[0] == core::kBackupOfNone);
  for (const char* bad : {"n0", "n0/n9", "n0/n0", "/", "n0/", "n0/n1,n1/n2", "n0/n1,n2/n0"}) {
    CHECK_FALSE(set_standby(bad, rails, backup_of, shown).empty());
  }
  CHECK(set_standby("", rails, backup_of, shown).empty());
  CHECK(shown == 3);
}

TEST_CASE("a path that came back is tried before it is trusted") {
  Pair pair(2);
  REQUIRE(connected(*pair.a, 1));
  CHECK(exchange(pair, milliseconds(50), 5).intact);
  CHECK(kill_connections("127.0.10.1") > 0);
  const auto until = Clock::now() + milliseconds(10'000);
  const std::uint64_t before = moved(*pair.a, 0);
  while (moved(*pair.a, 0) == before && Clock::now() < until) {
    CHECK(exchange(pair, milliseconds(50), 5).intact);
  }
  CHECK(moved(*pair.a, 0) > before);
  CHECK(stats_of(*pair.a).rails[0].rejoins > 0);
  CHECK(stats_of(*pair.a).rails[0].validations > 0);
  CHECK(stats_of(*pair.a).errors == 0);
  // The validation is nobody's payload.
  CHECK(stats_of(*pair.b).rails[0].duplicate_bytes == 0);
}
