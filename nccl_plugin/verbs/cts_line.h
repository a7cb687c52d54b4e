// A CTS line: one slot of a posted receive, from receiver to sender. The lines of a group lie one
// behind the other; the CTS is whole when all its `count` lines are whole.
//
//   0  u64     remote address
//   8  u64     group
//   16 u32[8]  rkey by the receiver's rail; 0: none there
//   48 u48     size, bytes
//   54 u8      bits 0..2 slot, bits 3..5 count - 1, bit 6: device memory (wire version 5)
//   55 u8      LineKind::cts
//   56 i32     tag
//   60 u32     checksum
#pragma once

#include <optional>

#include "core/types.h"
#include "verbs/line.h"

namespace fabric::verbs {

inline constexpr std::uint64_t kCtsSizeMax = (std::uint64_t{1} << 48U) - 1;

struct CtsLine {
  core::GroupId group = 0;
  std::uint8_t count = 0;  // slots of the group, 1..core::kMaxSlots
  std::uint8_t index = 0;  // which of them this is
  core::Slot slot;         // its size is kCtsSizeMax at most
};

inline Line encode_cts(const CtsLine& cts) {
  Line line{};
  put(line, 0, cts.slot.where);
  put(line, 8, cts.group);
  put(line, 16, cts.slot.keys);
  const std::uint64_t size = cts.slot.size | std::uint64_t{cts.index} << 48U |
                             static_cast<std::uint64_t>(cts.count - 1) << 51U |
                             static_cast<std::uint64_t>(cts.slot.device) << 54U;
  put(line, 48, size);
  put(line, 56, cts.slot.tag);
  seal(line, LineKind::cts);
  return line;
}

// nullopt: not there yet, half written, or no CTS line.
inline std::optional<CtsLine> decode_cts(LineBytes line) {
  if (!sealed(line, LineKind::cts)) {
    return std::nullopt;
  }
  CtsLine cts;
  cts.slot.where = get<std::uint64_t>(line, 0);
  cts.group = get<core::GroupId>(line, 8);
  cts.slot.keys = get<std::array<std::uint32_t, core::kMaxRails>>(line, 16);
  const auto size = get<std::uint64_t>(line, 48);
  cts.slot.size = size & kCtsSizeMax;
  cts.index = static_cast<std::uint8_t>(size >> 48U & 7U);
  cts.count = static_cast<std::uint8_t>((size >> 51U & 7U) + 1);
  cts.slot.device = (size >> 54U & 1U) != 0;
  cts.slot.tag = get<std::int32_t>(line, 56);
  return (size >> 55U & 1U) == 0 && cts.index < cts.count ? std::optional(cts) : std::nullopt;
}

static_assert(core::kMaxRails == 8 && core::kMaxSlots == 8);

}  // namespace fabric::verbs
