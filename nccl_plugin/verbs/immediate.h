// The 32 bits of immediate data of an RDMA WRITE that ends a chunk, in host byte order:
//
//   bits 31..22  group modulo 1024
//   bits 21..19  slot
//   bit  18      last chunk of its message
//   bits 17..0   chunk, its ordinal in the message
//
// The queue pair says which path and epoch, the completion's byte_len how long the write was. The
// size of a message follows from its last chunk (core::Landed).
#pragma once

#include <cstdint>

#include "core/types.h"

namespace fabric::verbs {

// `slot` is below core::kMaxSlots, `chunk` below core::kLandedChunks.
constexpr std::uint32_t encode_immediate(core::GroupId group, std::uint8_t slot,
                                         std::uint32_t chunk, bool last) {
  return static_cast<std::uint32_t>(group % core::kLandedGroups) << 22U |
         std::uint32_t{slot} << 19U | (last ? 1U << 18U : 0U) | chunk;
}

// Every 32 bits are an immediate; the receiving core decides whether they make sense there.
// `byte_len`: of the completion. 0 where a write without immediate took the chunk before it.
constexpr core::Landed decode_immediate(std::uint32_t immediate, std::uint32_t byte_len) {
  core::Landed landed;
  landed.group = static_cast<std::uint16_t>(immediate >> 22U);
  landed.slot = static_cast<std::uint8_t>(immediate >> 19U & 7U);
  landed.last = (immediate >> 18U & 1U) != 0;
  landed.chunk = immediate & (core::kLandedChunks - 1);
  landed.length = byte_len;
  return landed;
}

static_assert(core::kLandedGroups == 1U << 10U && core::kMaxSlots == 1U << 3U &&
              core::kLandedChunks == 1U << 18U);

}  // namespace fabric::verbs
