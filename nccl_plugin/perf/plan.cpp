#include "perf/plan.h"

#include <algorithm>

namespace fabric::perf {

Extent part_of(Extent whole, std::size_t index, std::size_t parts, std::size_t align) {
  const std::size_t units = (whole.count + align - 1) / align;
  // In two steps: units * index would overflow only past 2^64 / parts, far above any buffer.
  const std::size_t from = std::min(units * index / parts * align, whole.count);
  const std::size_t to = std::min(units * (index + 1) / parts * align, whole.count);
  return {whole.offset + from, to - from};
}

RingPlan::RingPlan(int rank, int world, Extent range, std::size_t slice, std::size_t least,
                   const RingWork& work)
    : rank_(static_cast<std::size_t>(rank)),
      world_(static_cast<std::size_t>(world)),
      range_(range),
      slice_(slice),
      work_(work) {
  using Kind = RingWork::Kind;
  const bool whole = work.kind == Kind::broadcast;
  std::size_t longest = whole ? range.count : 0;
  for (std::size_t c = 0; c < world_ && !whole; ++c) {
    longest = std::max(longest, part_of(range_, c, world_).count);
  }
  const std::size_t all = (longest + slice_ - 1) / slice_;
  const std::size_t mine = all > work.channel
                               ? (all - work.channel + work.channels - 1) / work.channels
                               : std::size_t{0};
  slices_ = std::max(least, mine);
  const std::size_t half = (world_ - 1) * slices_;
  if (whole) {
    const std::size_t distance =
        (rank_ + world_ - static_cast<std::size_t>(work.root)) % world_;  // from the root
    sends_ = distance + 1 < world_ ? slices_ : 0;
    receives_ = distance > 0 ? slices_ : 0;
    lead_ = distance > 0 ? 0 : slices_;
  } else {
    sends_ = receives_ = work.kind == Kind::all_reduce ? 2 * half : half;
    first_step_ = work.kind == Kind::all_gather ? world_ - 1 : 0;
    reducing_ = work.kind == Kind::all_gather ? 0 : half;
    lead_ = slices_;
  }
  overwriting_from_ = work.kind == Kind::all_reduce ? half : receives_;
}

Extent RingPlan::slice_of(std::size_t q, std::size_t behind) const {
  Extent whole = range_;
  if (work_.kind != RingWork::Kind::broadcast) {
    const std::size_t step = first_step_ + q / slices_ + behind;  // at most 2 W - 2
    whole = part_of(range_, (rank_ + 3 * world_ - step - 1) % world_, world_);
  }
  const std::size_t slice = work_.channel + q % slices_ * work_.channels;
  const std::size_t from = std::min(slice * slice_, whole.count);
  return {whole.offset + from, std::min(slice_, whole.count - from)};
}

std::vector<Link> links_of(Mode mode, int world, int channels, bool answers) {
  std::vector<Link> links;
  links.reserve(static_cast<std::size_t>(world) * static_cast<std::size_t>(channels + 1));
  for (int r = 0; r < world; ++r) links.push_back({r, (r + 1) % world, kTokenChannel});
  for (int c = 0; c < channels; ++c) {
    switch (mode) {
      case Mode::ring:
        for (int r = 0; r < world; ++r) links.push_back({r, (r + 1) % world, c});
        break;
      case Mode::p2p:
        for (int r = 0; r + 1 < world; r += 2) {
          links.push_back({r, r + 1, c});
          if (answers) links.push_back({r + 1, r, c});
        }
        break;
      case Mode::alltoall:
        for (int s = 0; s < world; ++s) {
          for (int d = 0; d < world; ++d) {
            if (s != d) links.push_back({s, d, c});
          }
        }
        break;
    }
  }
  return links;
}

std::vector<Extent> slices_of(Extent range, std::size_t slice, std::size_t least) {
  slice = std::clamp<std::size_t>((range.count + least - 1) / least, 1, slice);
  std::vector<Extent> all;
  for (std::size_t at = 0; at < range.count; at += slice) {
    all.push_back({range.offset + at, std::min(slice, range.count - at)});
  }
  while (all.size() < least) all.push_back({range.offset + range.count, 0});
  return all;
}

std::size_t messages_per_batch(std::size_t size, std::size_t least, std::size_t memory) {
  return size == 0 ? 256 : std::clamp<std::size_t>(memory / size, least, 256);
}

}  // namespace fabric::perf
