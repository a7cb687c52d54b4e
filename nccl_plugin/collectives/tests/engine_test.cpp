// Collectives of ranks that agree: what every rank has afterwards, bit by bit.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "collectives/tests/group_kit.h"

using namespace fabric::collectives;       // NOLINT(google-build-using-namespace)
using namespace fabric::collectives::kit;  // NOLINT(google-build-using-namespace)

namespace {

using Floats = std::vector<float>;
using Numbers = std::vector<std::int32_t>;

constexpr Pipeline kSmall{4096, 256, 3};  // many slices of a small buffer

Floats floats_of(int rank, std::size_t count, unsigned seed) {
  std::mt19937 random(seed + static_cast<unsigned>(rank));  // NOLINT(cert-msc51-cpp): repeatable
  std::uniform_real_distribution<float> values(-1000.0F, 1000.0F);
  Floats made(count);
  for (float& one : made) one = values(random) / 3.0F;
  return made;
}

// The documented order: chunk c is the sum of ranks c + 1, c + 2, ..., c.
Floats documented_sum(const std::vector<Floats>& parts) {
  const std::size_t world = parts.size();
  Floats sum(parts[0].size());
  for (std::size_t c = 0; c < world; ++c) {
    const auto chunk = fabric::perf::part_of({0, sum.size()}, c, world);
    for (std::size_t i = chunk.offset; i < chunk.offset + chunk.count; ++i) {
      float value = parts[(c + 1) % world][i];
      for (std::size_t step = 2; step <= world; ++step) value += parts[(c + step) % world][i];
      sum[i] = value;
    }
  }
  return sum;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("all-reduce: the documented sum, bit by bit, whatever the channels and slices") {
  for (const int world : {1, 2, 4}) {
    for (const int channels : {1, 3}) {
      CAPTURE(world);
      CAPTURE(channels);
      Group group(world, channels, channels == 1 ? Pipeline{} : kSmall);
      for (const std::size_t count : {0U, 1U, 5U, 4096U, 100'003U}) {
        std::vector<Floats> parts;
        for (int r = 0; r < world; ++r) parts.push_back(floats_of(r, count, 7));
        const Floats want = documented_sum(parts);
        on_all(world, [&](int r) {
          Floats& mine = parts[static_cast<std::size_t>(r)];
          const auto errors = errors_of(
              group.engine(r), {task_of(Kind::all_reduce, DataType::f32, mine, mine.size())});
          CHECK(errors == std::vector<std::string>{""});
        });
        for (const Floats& part : parts) CHECK(same_bits(part, want));
      }
    }
  }
}

TEST_CASE("reductions of other types and operations") {
  constexpr int kWorld = 3;
  constexpr std::size_t kCount = 1000;
  Group group(kWorld, 2, kSmall);
  on_all(kWorld, [&](int r) {
    std::vector<std::int64_t> longs(kCount);
    std::iota(longs.begin(), longs.end(), 10 * r);
    std::vector<std::uint16_t> halves(kCount, float_to_half(static_cast<float>(r + 1)));
    std::vector<double> doubles(kCount, r + 1);
    Task least = task_of(Kind::all_reduce, DataType::i64, longs, kCount);
    least.op = ReduceOp::minimum;
    Task mean = task_of(Kind::all_reduce, DataType::f16, halves, kCount);
    mean.op = ReduceOp::average;
    Task product = task_of(Kind::all_reduce, DataType::f64, doubles, kCount);
    product.op = ReduceOp::product;
    CHECK(errors_of(group.engine(r), {least, mean, product}) == std::vector<std::string>(3, ""));
    CHECK(longs[0] == 0);
    CHECK(longs[kCount - 1] == kCount - 1);
    CHECK(halves == std::vector<std::uint16_t>(kCount, float_to_half(2.0F)));
    CHECK(doubles == std::vector<double>(kCount, 6.0));
  });
}

TEST_CASE("broadcast, all-gather, reduce-scatter") {
  constexpr int kWorld = 4;
  Group group(kWorld, 2, kSmall);
  for (const std::size_t count : {0U, 1U, 3000U}) {
    on_all(kWorld, [&](int r) {
      const auto world = static_cast<std::size_t>(kWorld);
      Numbers told(count, r);
      Task broadcast = task_of(Kind::broadcast, DataType::i32, told, count);
      broadcast.peer = 2;
      const Numbers mine(count, 100 + r);
      Numbers gathered(world * count, -1);
      Task gather = task_of(Kind::all_gather, DataType::i32, gathered, count);
      gather.input = reinterpret_cast<const std::byte*>(mine.data());
      Numbers summands(world * count);
      for (std::size_t i = 0; i < summands.size(); ++i) summands[i] = static_cast<int>(i) * (r + 1);
      const Numbers before = summands;
      Numbers sums(count, -1);
      Task scatter = task_of(Kind::reduce_scatter, DataType::i32, sums, count);
      scatter.input = reinterpret_cast<const std::byte*>(summands.data());
      CHECK(errors_of(group.engine(r), {broadcast, gather, scatter}) ==
            std::vector<std::string>(3, ""));
      CHECK(told == Numbers(count, 2));
      CHECK(summands == before);  // the input is the caller's
      for (std::size_t i = 0; i < gathered.size(); ++i) {
        REQUIRE(gathered[i] == 100 + static_cast<int>(i / count));
      }
      const std::size_t first = static_cast<std::size_t>(r) * count;
      for (std::size_t i = 0; i < count; ++i) REQUIRE(sums[i] == static_cast<int>(first + i) * 10);
    });
  }
}

TEST_CASE("messages: both ways at once, beside collectives, and each way in order") {
  constexpr int kWorld = 3;
  constexpr std::size_t kCount = 50'000;
  Group group(kWorld);
  on_all(kWorld, [&](int r) {
    std::vector<Task> tasks;
    std::vector<Numbers> outgoing;
    std::vector<Numbers> incoming;
    outgoing.reserve(16);
    incoming.reserve(16);
    Numbers sums(kCount, r);
    // All sends first: who waited for each would wait for ever.
    for (int peer = 0; peer < kWorld; ++peer) {
      for (int n = 0; n < 2 && peer != r; ++n) {
        const std::size_t count = n == 0 ? kCount : 1;
        Task send = task_of(Kind::send, DataType::i32,
                            outgoing.emplace_back(count, 100 * r + 10 * peer + n), count);
        send.input = std::exchange(send.output, nullptr);
        send.peer = peer;
        send.tag = 7 + n;
        tasks.push_back(send);
      }
    }
    tasks.push_back(task_of(Kind::all_reduce, DataType::i32, sums, kCount));
    for (int peer = 0; peer < kWorld; ++peer) {
      for (int n = 0; n < 2 && peer != r; ++n) {
        const std::size_t count = n == 0 ? kCount : 1;
        Task receive =
            task_of(Kind::receive, DataType::i32, incoming.emplace_back(count, -1), count);
        receive.peer = peer;
        receive.tag = 7 + n;
        tasks.push_back(receive);
      }
    }
    CHECK(errors_of(group.engine(r), tasks) == std::vector<std::string>(tasks.size(), ""));
    CHECK(sums == Numbers(kCount, 3));
    std::size_t at = 0;
    for (int peer = 0; peer < kWorld; ++peer) {
      for (int n = 0; n < 2 && peer != r; ++n) {
        CHECK(incoming[at++] == Numbers(n == 0 ? kCount : 1, 100 * peer + 10 * r + n));
      }
    }
  });
}

TEST_CASE("a group that was closed has ended all, and its ranks may form another one") {
  for (int generation = 0; generation < 3; ++generation) {
    Group group(2);
    on_all(2, [&](int r) {
      Numbers one(10, 1);
      CHECK(errors_of(group.engine(r), {task_of(Kind::all_reduce, DataType::i32, one, 10)}) ==
            std::vector<std::string>{""});
      CHECK(one == Numbers(10, 2));
    });
    on_all(2, [&](int r) { group.engine(r).close(); });
    CHECK(!group.engine(0).next());
  }
}
