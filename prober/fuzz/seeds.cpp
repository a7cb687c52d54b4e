// TARGET_seeds DIRECTORY: writes the corpus that the fuzzer starts from.
#include <cstdio>
#include <fstream>
#include <string>

#include "examples.h"

int main(int count, char** words) {
  if (count != 2) {
    std::fputs("usage: TARGET_seeds DIRECTORY\n", stderr);
    return 2;
  }
  int number = 0;
  for (const std::string& seed : fabric::prober::fuzz::examples()) {
    std::ofstream file(std::string(words[1]) + "/seed-" + std::to_string(number++),
                       std::ios::binary);
    file << seed;
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write into %s\n", words[1]);
      return 1;
    }
  }
  return 0;
}
