// What the fuzzer feeds to the decoder and the engine, in small and repeatable: good examples, and
// each of them mutated, cut and grown. The target puts a right tag on what it is given, so this is
// also what a peer that holds the key may say.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "../fuzz/examples.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void feed(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

void mutate(std::string& bytes, std::mt19937_64& random) {
  for (std::size_t times = 1 + random() % 8; times > 0 && !bytes.empty(); --times) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
        break;
      case 2:  // the values at which sums and counts go wrong
        bytes.replace(at, 8, 8, random() % 2 == 0 ? '\0' : '\xff');
        break;
      case 3:
        bytes.resize(at);
        break;
      default:  // its end once more
        bytes += bytes.substr(at);
        break;
    }
  }
}

}  // namespace

TEST_CASE("Mutated examples never crash the decoder or the engine") {
  const auto examples = fabric::prober::fuzz::examples();
  for (const std::string& one : examples) feed(one);
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 10'000; ++round) {
    std::string bytes = examples[random() % examples.size()];
    mutate(bytes, random);
    feed(bytes);
  }
}
