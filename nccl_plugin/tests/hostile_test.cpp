// What the fuzzer feeds to every reader of foreign bytes, in small and repeatable: good examples,
// each of them mutated, cut and grown (FABRIC_HOSTILE_ROUNDS=N sets how often), and fuzz/corpus/.
#include "fuzz/hostile.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

namespace {

using Bytes = std::vector<std::byte>;

void mutate(Bytes& bytes, std::mt19937_64& random) {
  for (std::size_t times = 1 + random() % 4; times > 0 && bytes.size() > 1; --times) {
    const std::size_t at = 1 + random() % (bytes.size() - 1);
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<std::byte>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<std::byte>(1U << (random() % 8));
        break;
      case 2:  // the values at which lengths and counts go wrong
        bytes[at] = random() % 2 == 0 ? std::byte{0} : std::byte{0xff};
        break;
      case 3:
        bytes.resize(at);
        break;
      default: {  // its end once more
        const Bytes tail(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
        bytes.insert(bytes.end(), tail.begin(), tail.end());
        break;
      }
    }
  }
}

}  // namespace

TEST_CASE("good examples are read") {
  for (const Bytes& seed : fabric::hostile::seeds()) {
    CHECK_NOTHROW(fabric::hostile::feed(seed));
  }
}

TEST_CASE("what the fuzzer has learnt is read or refused, as ever") {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FABRIC_FUZZ_CORPUS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    Bytes bytes(entry.file_size());
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    CAPTURE(entry.path().string());
    CHECK_NOTHROW(fabric::hostile::feed(bytes));
    ++files;
  }
  CHECK(files > 100);
}

TEST_CASE("mutated examples never get through, and never crash") {
  const char* text = std::getenv("FABRIC_HOSTILE_ROUNDS");
  const long rounds = text == nullptr ? 20'000 : std::strtol(text, nullptr, 10);
  const auto seeds = fabric::hostile::seeds();
  std::mt19937_64 random(20261121);
  for (long round = 0; round < rounds; ++round) {
    Bytes bytes = seeds[random() % seeds.size()];
    mutate(bytes, random);
    CAPTURE(round);
    REQUIRE_NOTHROW(fabric::hostile::feed(bytes));
  }
}
