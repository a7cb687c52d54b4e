// A progress line: what the receiver has whole, and the credits of one path. There is one for each
// path, and it is written over and over on that path's own queue pair, so that the newest stays.
//
//   0  u64     all groups before this one are whole
//   8  u8[32]  groups from there on: a bit for each whole slot
//   40 u64     chunks that landed on this path in this epoch
//   48 u32     epoch
//   52 u8      path
//   53 u16     0
//   55 u8      LineKind::progress
//   56 u32     0
//   60 u32     checksum
#pragma once

#include <optional>

#include "core/types.h"
#include "verbs/line.h"

namespace fabric::verbs {

struct ProgressLine {
  core::Progress progress;   // `beyond` is not told here
  std::uint64_t landed = 0;  // see core::SendCore::on_landed
  core::Epoch epoch = 0;
  core::PathIndex path = 0;
};

inline Line encode_progress(const ProgressLine& said) {
  Line line{};
  put(line, 0, said.progress.done_below);
  put(line, 8, said.progress.whole);
  put(line, 40, said.landed);
  put(line, 48, said.epoch);
  put(line, 52, said.path);
  seal(line, LineKind::progress);
  return line;
}

// nullopt: not there yet, half written, or no progress line.
inline std::optional<ProgressLine> decode_progress(LineBytes line) {
  if (!sealed(line, LineKind::progress)) {
    return std::nullopt;
  }
  ProgressLine said;
  said.progress.done_below = get<core::GroupId>(line, 0);
  said.progress.whole = get<std::array<std::uint8_t, core::kProgressGroups>>(line, 8);
  said.landed = get<std::uint64_t>(line, 40);
  said.epoch = get<core::Epoch>(line, 48);
  said.path = get<core::PathIndex>(line, 52);
  return said.path < core::kMaxPaths ? std::optional(said) : std::nullopt;
}

static_assert(core::kProgressGroups == 32);

}  // namespace fabric::verbs
