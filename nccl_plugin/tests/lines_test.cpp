// What a NIC writes into the memory of the other end: verbs/immediate.h, cts_line.h and
// progress_line.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "verbs/cts_line.h"
#include "verbs/immediate.h"
#include "verbs/progress_line.h"

using namespace fabric;
using namespace fabric::verbs;

namespace {

constexpr std::uint64_t kSeed = 20261127;

CtsLine some_cts() {
  CtsLine cts;
  cts.group = 0x1122334455667788;
  cts.count = 8;
  cts.index = 7;
  cts.slot.size = kCtsSizeMax;
  cts.slot.where = 0xfedcba9876543210;
  cts.slot.tag = -5;
  cts.slot.keys = {1, 2, 3, 4, 5, 6, 7, 0xffffffff};
  return cts;
}

bool same(const CtsLine& one, const CtsLine& other) {
  return one.group == other.group && one.count == other.count && one.index == other.index &&
         one.slot.size == other.slot.size && one.slot.where == other.slot.where &&
         one.slot.tag == other.slot.tag && one.slot.keys == other.slot.keys &&
         one.slot.device == other.slot.device;
}

bool same(const ProgressLine& one, const ProgressLine& other) {
  return one.progress.done_below == other.progress.done_below &&
         one.progress.whole == other.progress.whole && one.landed == other.landed &&
         one.epoch == other.epoch && one.path == other.path;
}

}  // namespace

TEST_CASE("immediate: there and back") {
  for (const std::uint64_t group : {0ULL, 1ULL, 1023ULL, 1024ULL, 0xffffffffffffffffULL}) {
    for (std::uint8_t slot = 0; slot < core::kMaxSlots; ++slot) {
      for (const std::uint32_t chunk : {0U, 1U, core::kLandedChunks - 1}) {
        for (const bool last : {false, true}) {
          const core::Landed landed =
              decode_immediate(encode_immediate(group, slot, chunk, last), 77);
          CHECK(landed.group == group % core::kLandedGroups);
          CHECK(landed.slot == slot);
          CHECK(landed.chunk == chunk);
          CHECK(landed.last == last);
          CHECK(landed.length == 77);
        }
      }
    }
  }
  CHECK(encode_immediate(1, 0, 0, false) == 0x00400000);
  CHECK(encode_immediate(0, 1, 0, false) == 0x00080000);
  CHECK(encode_immediate(0, 0, 1, true) == 0x00040001);
}

TEST_CASE("immediate: every 32 bits mean one thing") {
  std::mt19937 random(kSeed);
  for (int round = 0; round < 100'000; ++round) {
    const auto bits = static_cast<std::uint32_t>(random());
    const core::Landed landed = decode_immediate(bits, 1);
    CHECK(encode_immediate(landed.group, landed.slot, landed.chunk, landed.last) == bits);
  }
}

TEST_CASE("CTS line: there and back, and where its fields lie") {
  const CtsLine cts = some_cts();
  const Line line = encode_cts(cts);
  static_assert(sizeof(Line) == 64);
  const auto back = decode_cts(line);
  REQUIRE(back);
  CHECK(same(*back, cts));
  CHECK(line[0] == std::byte{0x10});
  CHECK(line[8] == std::byte{0x88});
  CHECK(line[16] == std::byte{1});
  CHECK(line[44] == std::byte{0xff});
  CHECK(line[53] == std::byte{0xff});
  CHECK(line[54] == std::byte{0x3f});
  CHECK(line[55] == std::byte{1});
  CHECK(line[56] == std::byte{0xfb});
  CtsLine least;
  least.count = 1;
  const auto empty = decode_cts(encode_cts(least));
  REQUIRE(empty);
  CHECK(same(*empty, least));
  CtsLine beyond = cts;
  beyond.count = 7;  // the slot with the ordinal 7 of seven
  CHECK_FALSE(decode_cts(encode_cts(beyond)));
}

TEST_CASE("progress line: there and back") {
  ProgressLine said;
  said.progress.done_below = 0x0102030405060708;
  for (std::size_t i = 0; i < core::kProgressGroups; ++i) {
    said.progress.whole[i] = static_cast<std::uint8_t>(i * 7);
  }
  said.landed = 0xa1a2a3a4a5a6a7a8;
  said.epoch = 0xb1b2b3b4;
  said.path = core::kMaxPaths - 1;
  const Line line = encode_progress(said);
  const auto back = decode_progress(line);
  REQUIRE(back);
  CHECK(same(*back, said));
  CHECK_FALSE(decode_cts(line));
  CHECK_FALSE(decode_progress(encode_cts(some_cts())));
  said.path = core::kMaxPaths;
  CHECK_FALSE(decode_progress(encode_progress(said)));
}

TEST_CASE("lines: what is half written, or nobody wrote, is no line") {
  const Line nothing{};
  CHECK_FALSE(decode_cts(nothing));
  CHECK_FALSE(decode_progress(nothing));
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 20'000; ++round) {
    CtsLine old = some_cts();
    old.group = random();
    old.slot.where = random();
    CtsLine next = old;
    next.group += 256;
    next.slot.where = random();
    next.slot.tag = static_cast<std::int32_t>(random());
    next.slot.device = random() % 2 == 0;
    next.slot.keys[random() % core::kMaxRails] = static_cast<std::uint32_t>(random());
    const Line before = round % 2 == 0 ? Line{} : encode_cts(old);
    const Line after = encode_cts(next);
    // Any bytes of the next are there, in any order; all of them make the line.
    Line torn = before;
    bool whole = true;
    for (std::size_t at = 0; at < kLineSize; ++at) {
      if (random() % 8 != 0) {
        torn[at] = after[at];
      }
      whole = whole && torn[at] == after[at];
    }
    const auto read = decode_cts(torn);
    CHECK(read.has_value() == (whole || (torn == before && round % 2 != 0)));
  }
}

TEST_CASE("lines: random and mutated bytes") {
  std::mt19937_64 random(kSeed);
  int read = 0;
  for (int round = 0; round < 200'000; ++round) {
    Line line = round % 4 == 0 ? Line{} : encode_cts(some_cts());
    if (round % 4 == 0) {
      std::generate(line.begin(), line.end(), [&] { return static_cast<std::byte>(random()); });
    } else {
      line[random() % kLineSize] ^= static_cast<std::byte>(1 + random() % 255);
    }
    if (round % 2 == 0) {  // by somebody who knows the checksum
      put(line, kLineChecksumAt, line_checksum(line));
    }
    if (const auto cts = decode_cts(line)) {
      ++read;
      CHECK(cts->count <= core::kMaxSlots);
      CHECK(cts->index < cts->count);
      CHECK(cts->slot.size <= kCtsSizeMax);
      CHECK(encode_cts(*cts) == line);
    }
    if (const auto said = decode_progress(line)) {
      CHECK(said->path < core::kMaxPaths);
    }
  }
  CHECK(read > 10'000);
}
