// Which rails a flush is for.
#include "host/landed_buffers.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

using namespace fabric;
using fabric::host::LandedBuffers;

namespace {

constexpr std::uint64_t kAll = 0b1111;
constexpr std::size_t kSize = 16;

struct Buffers {
  std::vector<std::byte> bytes = std::vector<std::byte>(4096 * kSize);
  FlushRange range(std::size_t index, std::size_t size = kSize) {
    return {bytes.data() + index * kSize, size, nullptr};
  }
  void note(LandedBuffers& landed, std::size_t index, std::uint64_t rails) {
    landed.note(range(index).data, kSize, rails);
  }
};

std::uint64_t rails_of(const LandedBuffers& landed, const std::vector<FlushRange>& ranges) {
  return landed.rails_of(ranges, kAll);
}

}  // namespace

TEST_CASE("landed buffers: the rails of all ranges together, all rails for an unknown one") {
  Buffers buffers;
  LandedBuffers landed;
  buffers.note(landed, 0, 0b0001);
  buffers.note(landed, 1, 0b0100);
  buffers.note(landed, 2, 0);
  CHECK(rails_of(landed, {buffers.range(0)}) == 0b0001);
  CHECK(rails_of(landed, {buffers.range(0), buffers.range(1), buffers.range(2)}) == 0b0101);
  CHECK(rails_of(landed, {buffers.range(2)}) == 0);
  CHECK(rails_of(landed, {buffers.range(0), buffers.range(3)}) == kAll);
  CHECK(rails_of(landed, {}) == 0);
}

TEST_CASE("landed buffers: a part that was received is known, what reaches beyond it is not") {
  Buffers buffers;
  LandedBuffers landed;
  buffers.note(landed, 0, 0b0001);
  CHECK(rails_of(landed, {buffers.range(0, kSize / 2)}) == 0b0001);
  CHECK(rails_of(landed, {buffers.range(0, kSize + 1)}) == kAll);
  CHECK(rails_of(landed, {buffers.range(0), {nullptr, 0, nullptr}}) == 0b0001);
}

TEST_CASE("landed buffers: the newest receive into a buffer counts, and the oldest is forgotten") {
  Buffers buffers;
  LandedBuffers landed;
  buffers.note(landed, 0, 0b0001);
  buffers.note(landed, 0, 0b0010);
  CHECK(rails_of(landed, {buffers.range(0)}) == 0b0010);
  for (std::size_t i = 1; i < LandedBuffers::kMost; ++i) {
    buffers.note(landed, i, 0b1000);
  }
  CHECK(rails_of(landed, {buffers.range(0)}) == 0b0010);
  buffers.note(landed, LandedBuffers::kMost, 0b1000);
  CHECK(rails_of(landed, {buffers.range(0)}) == kAll);
  CHECK(rails_of(landed, {buffers.range(LandedBuffers::kMost)}) == 0b1000);
}
