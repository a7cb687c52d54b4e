#include "core/blake2s_lanes_body.h"

namespace fabric::prober::blake2s {

void hash_lanes_plain(const std::uint32_t* start, std::uint64_t absorbed,
                      const std::uint8_t* const messages[kLanes], std::size_t length,
                      std::uint32_t out[8][kLanes]) {
  hash(start, absorbed, messages, length, out);
}

void hash_lanes(const std::uint32_t* start, std::uint64_t absorbed,
                const std::uint8_t* const messages[kLanes], std::size_t length,
                std::uint32_t out[8][kLanes]) {
#ifdef __x86_64__
  static const bool kAvx2 = __builtin_cpu_supports("avx2") != 0;
  if (kAvx2) return hash_lanes_avx2(start, absorbed, messages, length, out);
#endif
  hash_lanes_plain(start, absorbed, messages, length, out);
}

}  // namespace fabric::prober::blake2s
