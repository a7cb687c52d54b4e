#include "core/views.h"

#include <algorithm>

namespace fabric::prober {
namespace {

constexpr std::uint64_t kSeenMask = 0x00000000'ffff0000;  // and what is reserved

}  // namespace

std::uint64_t pack(const View& v) {
  return static_cast<std::uint64_t>(v.kind) | std::uint64_t{v.rail} << 4 |
         std::uint64_t{v.peer_rail} << 10 | static_cast<std::uint64_t>(v.heard) << 16 |
         static_cast<std::uint64_t>(v.told) << 20 | std::uint64_t{v.peer} << 32;
}

bool is_view(std::uint64_t word) {
  const auto kind = static_cast<ViewKind>(word & 0xf);
  return kind == ViewKind::kPath || kind == ViewKind::kPort;
}

void Views::hear(std::uint32_t speaker, std::uint64_t word, Nanos now) {
  if (!is_view(word)) return;
  const Subject subject{speaker, word & ~kSeenMask};
  const auto found = words_.find(subject);
  if (found != words_.end()) {
    found->second = {word, now};
    return;
  }
  if (words_.size() >= kMost) forget_old(now);
  if (words_.size() < kMost) words_.emplace(subject, std::pair{word, now});
}

void Views::forget_old(Nanos now) {
  std::erase_if(words_, [&](const auto& item) { return now - item.second.second > kFresh; });
}

std::vector<Views::Entry> Views::list(Nanos now, std::size_t skip, std::size_t most, bool& more) {
  if (skip == 0) forget_old(now);
  std::vector<Entry> out;
  const std::size_t from = std::min(skip, words_.size());
  const std::size_t count = std::min(most, words_.size() - from);
  auto item = std::next(words_.begin(), static_cast<std::ptrdiff_t>(from));
  for (std::size_t i = 0; i < count; ++i, ++item) {
    out.push_back({item->first.first, item->second.first, item->second.second});
  }
  more = from + count < words_.size();
  return out;
}

}  // namespace fabric::prober
