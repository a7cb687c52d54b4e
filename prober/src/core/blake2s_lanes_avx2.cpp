// Compiled for AVX2 (prober/CMakeLists.txt).
#include "core/blake2s_lanes_body.h"

namespace fabric::prober::blake2s {

void hash_lanes_avx2(const std::uint32_t* start, std::uint64_t absorbed,
                     const std::uint8_t* const messages[kLanes], std::size_t length,
                     std::uint32_t out[8][kLanes]) {
  hash(start, absorbed, messages, length, out);
}

}  // namespace fabric::prober::blake2s
