#include "core/window.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "core/rtt.h"
#include "core/stalls.h"

using namespace fabric::prober;

TEST_CASE("Each sequence is accepted once") {
  ReceiveWindow w;
  CHECK_FALSE(w.accept(0));
  CHECK(w.accept(10));
  CHECK_FALSE(w.accept(10));
  CHECK_FALSE(w.accept(9));  // before the first heard: not ours to judge
  CHECK(w.accept(12));
  CHECK(w.accept(11));
  CHECK_FALSE(w.accept(11));
  CHECK(w.bitmap() == 0b111);
  CHECK(w.accept(200));
  CHECK(w.bitmap() == 1);
  CHECK_FALSE(w.accept(136));  // 64 behind
  CHECK(w.accept(137));
}

TEST_CASE("Lost counts what did not come, once it is too late for reordering") {
  ReceiveWindow w;
  w.accept(1);
  w.accept(3);
  CHECK(w.lost() == 0);
  for (std::uint64_t s = 4; s <= 9; ++s) w.accept(s);
  CHECK(w.lost() == 0);
  w.accept(10);
  CHECK(w.lost() == 1);
  CHECK(w.accept(2));
  CHECK(w.lost() == 0);
}

TEST_CASE("Against a plain model: random loss, reordering and duplication") {
  constexpr std::size_t kPackets = 600;
  std::mt19937_64 rng(3);
  for (int round = 0; round < 50; ++round) {
    ReceiveWindow w;
    std::array<bool, kPackets> seen{};
    std::uint64_t highest = 0;
    std::uint64_t first = 0;
    for (std::uint64_t s = 1; s < kPackets; ++s) {
      std::uint64_t seq = s;
      if (rng() % 10 == 0) continue;
      if (rng() % 8 == 0) seq = s - std::min<std::uint64_t>(s - 1, rng() % 80);
      const bool fresh =
          highest == 0 || seq > highest || (highest - seq < 64 && seq >= first && !seen[seq]);
      CHECK(w.accept(seq) == fresh);
      if (fresh) {
        if (highest == 0) first = seq;
        seen[seq] = true;
        highest = std::max(highest, seq);
      }
      const std::uint64_t known = std::min<std::uint64_t>(highest, 64);
      std::uint64_t bitmap = 0;
      for (std::uint64_t i = 0; i < known; ++i) bitmap |= std::uint64_t{seen[highest - i]} << i;
      CHECK((known < 64 ? w.bitmap() & ((1ULL << known) - 1) : w.bitmap()) == bitmap);
      std::uint64_t lost = 0;
      for (std::uint64_t i = first; i + ReceiveWindow::kReorder <= highest; ++i) {
        if (!seen[i]) ++lost;
      }
      CHECK(w.lost() == lost);
    }
  }
}

TEST_CASE("Stalls: only the overlap counts") {
  StallLog log;
  log.add(100, 200);
  log.add(300, 350);
  CHECK(log.within(0, 1000) == 150);
  CHECK(log.within(150, 310) == 60);
  CHECK(log.within(200, 300) == 0);
  CHECK(log.lately(360, 20));
  CHECK_FALSE(log.lately(400, 20));
}

TEST_CASE("RTT: least of the last 10 to 20 s, nonsense ignored") {
  Rtt rtt;
  constexpr Nanos kS = 1'000'000'000;
  CHECK_FALSE(rtt.add(-5, 0));
  CHECK_FALSE(rtt.add(11 * kS, 0));
  CHECK(rtt.add(100, 30 * kS));
  CHECK(rtt.add(300, 31 * kS));
  CHECK(rtt.least() == 100);
  CHECK(rtt.last() == 300);
  CHECK(rtt.smoothed() == 125);
  CHECK(rtt.add(250, 41 * kS));
  CHECK(rtt.least() == 100);
  CHECK(rtt.add(260, 52 * kS));
  CHECK(rtt.least() == 250);
}
