// How often a test repeats what it does with other numbers: few times in each run, all of them in
// the nightly step `native` (FABRIC_LONG=1, lab/testrun/nightly.py). The numbers are the same each
// time: the short run is the beginning of the long one.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace fabric::testing {

inline constexpr int kShorter = 5;

// `nightly`: repetitions of the long run, at least one.
inline int rounds(int nightly) {
  const char* const asked = std::getenv("FABRIC_LONG");
  return asked != nullptr && *asked == '1' ? nightly : std::max(1, nightly / kShorter);
}

}  // namespace fabric::testing
