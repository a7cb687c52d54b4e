// libFuzzer target; what it reaches is told in hostile.h.
#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/hostile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fabric::hostile::feed(std::as_bytes(std::span(data, size)));
  return 0;
}
