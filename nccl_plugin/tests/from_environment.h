// Numbers by which who runs a test makes it longer, or plays one case again.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>

namespace fabric::testing {

// A number above 0; `otherwise` where the variable is not set.
inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return otherwise;
  }
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text, &end, 10);
  REQUIRE_MESSAGE((number != 0 && *end == '\0'), name << " is not a number above 0: " << text);
  return number;
}

}  // namespace fabric::testing
