// Plans of rings: what every kind leaves in memory, in any cut and over any number of channels.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "perf/plan.h"

using fabric::perf::Extent;
using fabric::perf::part_of;
using fabric::perf::RingPlan;
using fabric::perf::RingWork;

namespace {

// Elements are texts: they show in which order ranks were added.
using Buffer = std::vector<std::string>;

// Plays the plans of all ranks: each sends and receives as soon as its plan lets it.
void play(std::vector<Buffer>& buffers, Extent range, std::size_t slice, const RingWork& work) {
  const std::size_t world = buffers.size();
  std::vector<RingPlan> plans;
  for (std::size_t r = 0; r < world; ++r) {
    plans.emplace_back(static_cast<int>(r), static_cast<int>(world), range, slice, 1, work);
  }
  std::vector<std::size_t> sent(world, 0);
  std::vector<std::size_t> received(world, 0);
  std::vector<std::vector<Buffer>> wires(world);  // to the next rank
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t r = 0; r < world; ++r) {
      const RingPlan& plan = plans[r];
      if (sent[r] < plan.sends() && received[r] >= plan.receives_before_sending(sent[r])) {
        const Extent m = plan.sent(sent[r]++);
        const auto from = buffers[r].begin() + static_cast<std::ptrdiff_t>(m.offset);
        wires[r].emplace_back(from, from + static_cast<std::ptrdiff_t>(m.count));
        moved = true;
      }
      const std::size_t before = (r + world - 1) % world;
      const std::size_t q = received[r];
      if (q < plan.receives() && wires[before].size() > q &&
          sent[r] >= plan.sends_before_receiving(q)) {
        const Extent m = plan.received(q);
        REQUIRE(wires[before][q].size() == m.count);
        for (std::size_t i = 0; i < m.count; ++i) {
          std::string& into = buffers[r][m.offset + i];
          const std::string& from = wires[before][q][i];
          into = plan.reduces(q) ? from + into : from;
        }
        ++received[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < world; ++r) {
    CHECK(sent[r] == plans[r].sends());
    CHECK(received[r] == plans[r].receives());
  }
}

std::string own(std::size_t rank) { return std::string(1, static_cast<char>('a' + rank)); }

// The sum of chunk `c`: ranks c + 1, c + 2, ..., c.
std::string sum_of(std::size_t c, std::size_t world) {
  std::string all;
  for (std::size_t i = 1; i <= world; ++i) all += own((c + i) % world);
  return all;
}

std::size_t chunk_of(std::size_t element, std::size_t elements, std::size_t world) {
  std::size_t c = 0;
  while (element >=
         part_of({0, elements}, c, world).offset + part_of({0, elements}, c, world).count) {
    ++c;
  }
  return c;
}

template <typename Check>
void each_ring(RingWork::Kind kind, Check check) {
  for (const std::size_t world : {2U, 3U, 4U, 7U}) {
    for (const std::size_t elements : {0U, 1U, 3U, 40U, 101U}) {
      for (const std::size_t slice : {1U, 8U, 500U}) {
        for (const std::size_t channels : {1U, 2U, 3U}) {
          CAPTURE(world);
          CAPTURE(elements);
          CAPTURE(slice);
          CAPTURE(channels);
          std::vector<Buffer> buffers;
          for (std::size_t r = 0; r < world; ++r) buffers.emplace_back(elements, own(r));
          for (const int root : {0, static_cast<int>(world) - 1}) {
            auto played = buffers;
            for (std::size_t c = 0; c < channels; ++c) {
              play(played, {0, elements}, slice, {kind, root, c, channels});
            }
            check(played, elements, root);
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("all-reduce: every rank has every sum, in the order of the ranks behind the chunk") {
  each_ring(RingWork::Kind::all_reduce, [](const auto& played, std::size_t elements, int) {
    for (const Buffer& buffer : played) {
      for (std::size_t i = 0; i < elements; ++i) {
        REQUIRE(buffer[i] == sum_of(chunk_of(i, elements, played.size()), played.size()));
      }
    }
  });
}

TEST_CASE("reduce-scatter: rank r has the sums of chunk r, as all-reduce forms them") {
  each_ring(RingWork::Kind::reduce_scatter, [](const auto& played, std::size_t elements, int) {
    for (std::size_t i = 0; i < elements; ++i) {
      const std::size_t c = chunk_of(i, elements, played.size());
      REQUIRE(played[c][i] == sum_of(c, played.size()));
    }
  });
}

TEST_CASE("all-gather: chunk r of rank r is everybody's") {
  each_ring(RingWork::Kind::all_gather, [](const auto& played, std::size_t elements, int) {
    for (const Buffer& buffer : played) {
      for (std::size_t i = 0; i < elements; ++i) {
        REQUIRE(buffer[i] == own(chunk_of(i, elements, played.size())));
      }
    }
  });
}

TEST_CASE("broadcast: what the root has") {
  each_ring(RingWork::Kind::broadcast, [](const auto& played, std::size_t elements, int root) {
    for (const Buffer& buffer : played) {
      for (std::size_t i = 0; i < elements; ++i) {
        REQUIRE(buffer[i] == own(static_cast<std::size_t>(root)));
      }
    }
  });
}
