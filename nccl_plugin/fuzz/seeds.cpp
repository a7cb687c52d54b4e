// fuzz_wire_seeds DIRECTORY: writes the corpus that the fuzzer starts from.
#include <cstdio>
#include <fstream>
#include <string>

#include "fuzz/hostile.h"

int main(int count, char** words) {
  if (count != 2) {
    std::fputs("usage: fuzz_wire_seeds DIRECTORY\n", stderr);
    return 2;
  }
  int number = 0;
  for (const auto& seed : fabric::hostile::seeds()) {
    std::ofstream file(std::string(words[1]) + "/seed-" + std::to_string(number++),
                       std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write into %s\n", words[1]);
      return 1;
    }
  }
  return 0;
}
