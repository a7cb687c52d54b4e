// The pure parts: patterns, plans, percentiles, addresses.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>

#include "perf/options.h"
#include "perf/pattern.h"
#include "perf/pingpong.h"
#include "perf/plan.h"
#include "perf/rendezvous.h"

using namespace fabric::perf;  // NOLINT(google-build-using-namespace)

TEST_CASE("a byte stream checks clean, in any cut, and one flipped bit anywhere shows") {
  const ByteStream stream{1, 2, 77};
  std::vector<std::byte> whole(10'007);
  fill(whole, 0, stream);
  CHECK(count_corrupt(whole, 0, stream) == 0);
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same cuts in every run
  for (int i = 0; i < 50; ++i) {
    const std::size_t at = random() % whole.size();
    const std::size_t size = random() % (whole.size() - at);
    std::vector<std::byte> part(size);
    fill(part, at, stream);
    CHECK(std::memcmp(part.data(), whole.data() + at, size) == 0);
    CHECK(count_corrupt(std::span<const std::byte>(whole).subspan(at, size), at, stream) == 0);
  }
  for (int i = 0; i < 200; ++i) {
    const std::size_t at = random() % whole.size();
    const std::byte bit = std::byte{1} << (random() % 8);
    whole[at] ^= bit;
    CHECK(count_corrupt(whole, 0, stream) == 1);
    whole[at] ^= bit;
  }
}

TEST_CASE(
    "data of another source, destination, iteration or place is not taken for the right one") {
  const ByteStream right{1, 2, 5};
  std::vector<std::byte> data(4096);
  const auto corrupt_as = [&](const ByteStream& other, std::size_t offset) {
    fill(data, offset, other);
    return count_corrupt(data, 0, right);
  };
  CHECK(corrupt_as(right, 0) == 0);
  // One byte in 256 is equal by chance.
  for (const ByteStream& other : {ByteStream{2, 1, 5}, ByteStream{0, 2, 5}, ByteStream{1, 3, 5},
                                  ByteStream{1, 2, 4}, ByteStream{1, 2, 6}}) {
    CHECK(corrupt_as(other, 0) > 4000);
  }
  CHECK(corrupt_as(right, 1) > 4000);
  CHECK(corrupt_as(right, 8) > 4000);
  CHECK(corrupt_as(right, 4096) > 4000);
}

TEST_CASE_TEMPLATE("sums are exact and every rank's part counts", T, float, std::int32_t) {
  for (const int world : {2, 3, 4, 16, 64, 1024}) {
    CAPTURE(world);
    constexpr std::size_t kCount = 1500;
    const std::size_t first = 123'456'789;
    std::vector<T> sum(kCount, T{0});
    std::vector<T> part(kCount);
    double largest = 0;
    for (int rank = 0; rank < world; ++rank) {
      fill_summand<T>(part, first, rank, world, 9);
      add_into<T>(sum, part);
    }
    for (const T value : sum) largest = std::max(largest, static_cast<double>(value));
    CHECK(largest < 16'777'216.0);
    CHECK(count_corrupt_sum<T>(sum, first, world, 9) == 0);
    // A stale result, a shifted one, a lost part and a part taken twice show in every element.
    const auto elements_wrong = [&](std::uint64_t iteration, std::size_t at) {
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        wrong += count_corrupt_sum<T>(std::span<const T>(sum).subspan(i, 1), at + i, world,
                                      iteration) > 0
                     ? 1U
                     : 0U;
      }
      return wrong;
    };
    CHECK(elements_wrong(10, first) == kCount);
    CHECK(elements_wrong(8, first) == kCount);
    CHECK(elements_wrong(9, first + 1) > kCount * 9 / 10);
    fill_summand<T>(part, first, 1, world, 9);
    add_into<T>(sum, part);
    CHECK(elements_wrong(9, first) == kCount);
    std::vector<T> other(kCount);
    fill_summand<T>(other, first, 0, world, 9);
    for (std::size_t i = 0; i < kCount; ++i) sum[i] -= part[i] + other[i];
    add_into<T>(sum, part);  // rank 1's in the place of rank 0's
    CHECK(elements_wrong(9, first) == kCount);
  }
}

TEST_CASE("parts cover the whole and do not overlap") {
  for (const std::size_t count : {0U, 1U, 5U, 64U, 1000U, 1'000'003U}) {
    for (const std::size_t parts : {1U, 2U, 3U, 7U, 64U}) {
      for (const std::size_t align : {1U, 16U, 64U}) {
        std::size_t at = 40;
        for (std::size_t i = 0; i < parts; ++i) {
          const Extent part = part_of({40, count}, i, parts, align);
          CHECK(part.offset == at);
          at += part.count;
        }
        CHECK(at == 40 + count);
      }
    }
  }
}

TEST_CASE("the ring plan computes an all-reduce, and never overwrites what is still being sent") {
  for (const int world : {2, 3, 4, 7}) {
    for (const std::size_t elements : {0U, 1U, 3U, 100U, 1001U}) {
      for (const std::size_t slice : {1U, 8U, 64U, 5000U}) {
        if (elements / slice > 200) continue;
        const auto ranks = static_cast<std::size_t>(world);
        std::vector<RingPlan> plans;
        std::vector<std::vector<int>> buffers;
        for (int r = 0; r < world; ++r) {
          plans.emplace_back(r, world, Extent{10, elements}, slice);
          std::vector<int> buffer(elements + 10);
          for (std::size_t i = 0; i < elements; ++i) {
            buffer[10 + i] = static_cast<int>(i) * (r + 1) + r;
          }
          buffers.push_back(buffer);
        }
        // Every rank handles message q of all others in step: what q needs came before it.
        for (std::size_t q = 0; q < plans[0].receives(); ++q) {
          std::vector<std::vector<int>> wire;
          for (std::size_t r = 0; r < ranks; ++r) {
            const Extent m = plans[r].sent(q);
            const auto from = buffers[r].begin() + static_cast<std::ptrdiff_t>(m.offset);
            wire.emplace_back(from, from + static_cast<std::ptrdiff_t>(m.count));
          }
          for (std::size_t r = 0; r < ranks; ++r) {
            const Extent m = plans[r].received(q);
            const std::vector<int>& got = wire[(r + ranks - 1) % ranks];
            REQUIRE(got.size() == m.count);
            CHECK(plans[r].sends_before_receiving(q) <= q + 1);
            for (std::size_t i = 0; i < m.count; ++i) {
              int& into = buffers[r][m.offset + i];
              into = plans[r].reduces(q) ? into + got[i] : got[i];
            }
            if (!plans[r].reduces(q)) {
              // It lies where an earlier message was sent from, and that one is asked to be done.
              const std::size_t sender = plans[r].sends_before_receiving(q) - 1;
              CHECK(plans[r].sent(sender).offset == m.offset);
              CHECK(plans[r].sent(sender).count == m.count);
            }
            if (q + plans[r].slices() < plans[r].sends()) {
              CHECK(plans[r].sent(q + plans[r].slices()).offset == m.offset);
            }
          }
        }
        const int all = world * (world + 1) / 2;
        const int ranks_sum = world * (world - 1) / 2;
        for (const auto& buffer : buffers) {
          for (std::size_t i = 0; i < elements; ++i) {
            REQUIRE(buffer[10 + i] == static_cast<int>(i) * all + ranks_sum);
          }
        }
      }
    }
  }
}

TEST_CASE("links: every pattern has the ring of tokens and its own connections, once") {
  for (const Mode mode : {Mode::p2p, Mode::ring, Mode::alltoall}) {
    const auto links = links_of(mode, 4, 2);
    std::set<std::tuple<int, int, int>> seen;
    for (const Link& l : links) {
      CHECK(l.source != l.destination);
      CHECK(seen.emplace(l.source, l.destination, l.channel).second);
    }
    const std::size_t payload = mode == Mode::p2p ? 8 : mode == Mode::ring ? 8 : 24;
    CHECK(links.size() == 4 + payload);
  }
  CHECK(links_of(Mode::p2p, 4, 2, false).size() == 4 + 4);
}

TEST_CASE("slices and batches") {
  CHECK(slices_of({5, 0}, 10).size() == 1);
  const auto slices = slices_of({5, 25}, 10);
  REQUIRE(slices.size() == 3);
  CHECK(slices[2].offset == 25);
  CHECK(slices[2].count == 5);
  CHECK(messages_per_batch(0) == 256);
  CHECK(messages_per_batch(std::size_t{1} << 40U) == 1);
  CHECK(messages_per_batch(std::size_t{1} << 20U) == 32);
  CHECK(messages_per_batch(std::size_t{1} << 20U, 1, std::size_t{4} << 20U) == 4);
}

TEST_CASE("groups: at least so many messages, empty ones if need be") {
  for (const std::size_t size : {0U, 1U, 8U, 100U, 5000U}) {
    for (const std::size_t least : {1U, 3U, 8U}) {
      const auto cut = slices_of({40, size}, 1000, least);
      CHECK(cut.size() >= least);
      std::size_t at = 40;
      for (const Extent& e : cut) {
        CHECK(e.count <= 1000);
        CHECK((e.count == 0 || e.offset == at));
        at += e.count;
      }
      CHECK(at == 40 + size);
    }
  }
  CHECK(messages_per_batch(std::size_t{64} << 20U, 4) == 4);
  CHECK(messages_per_batch(8, 4) == 256);
  for (const std::size_t elements : {0U, 2U, 1000U}) {
    const RingPlan plan(0, 3, {0, elements}, 7, 5);
    CHECK(plan.slices() >= 5);
    CHECK(plan.sends() == 4 * plan.slices());
    CHECK(plan.receives() == 4 * plan.slices());
  }
}

TEST_CASE("latency percentiles") {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const Latency l = summarize(samples);
  CHECK(l.min == 1);
  CHECK(l.p50 == doctest::Approx(51));
  CHECK(l.p99 == 99);
  CHECK(l.count == 100);
  CHECK(summarize({}).count == 0);
  CHECK(summarize({3.0}).p99 == 3.0);
  CHECK(default_round_trips(0) == 1000);
  CHECK(default_round_trips(std::size_t{1} << 33U) == 3);
}

TEST_CASE("rendezvous addresses") {
  CHECK(parse_rendezvous("file:/tmp/x").place == "/tmp/x");
  const RendezvousAddress v4 = parse_rendezvous("tcp:10.0.0.1:29400");
  CHECK(v4.place == "10.0.0.1");
  CHECK(v4.port == 29400);
  const RendezvousAddress v6 = parse_rendezvous("tcp:[fd00::1]:1");
  CHECK(v6.place == "fd00::1");
  for (const char* bad : {"", "file:", "tcp:", "tcp:host", "tcp:host:", "host::80", "tcp:h:0",
                          "tcp:h:65536", "tcp:h:12x", "tcp:fd00::1:80", "udp:h:1"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_rendezvous(bad), UsageError);
  }
}
