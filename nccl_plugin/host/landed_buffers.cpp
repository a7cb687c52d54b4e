#include "host/landed_buffers.h"

namespace fabric::host {

void LandedBuffers::note(const void* data, std::size_t size, std::uint64_t rails) {
  latest_[next_] = {data, size, rails};
  next_ = (next_ + 1) % kMost;
}

// The newest receive into this address counts, and only as far as it reached.
std::optional<std::uint64_t> LandedBuffers::find(const FlushRange& range) const {
  for (std::size_t age = 1; age <= kMost; ++age) {
    const Landed& landed = latest_[(next_ + kMost - age) % kMost];
    if (landed.data == range.data) {
      return range.size <= landed.size ? std::optional(landed.rails) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::uint64_t LandedBuffers::rails_of(std::span<const FlushRange> ranges, std::uint64_t all) const {
  std::uint64_t rails = 0;
  for (const FlushRange& range : ranges) {
    const auto landed = range.size == 0 ? std::optional<std::uint64_t>(0) : find(range);
    if (!landed) {
      return all;
    }
    rails |= *landed;
  }
  return rails;
}

}  // namespace fabric::host
