#include "core/peer_reports.h"

#include <algorithm>

namespace fabric::prober {
namespace {

constexpr std::uint64_t kReachabilityMask = 0x00000000'ffff0000;  // and what is reserved

}  // namespace

std::uint64_t pack(const PeerReport& v) {
  return static_cast<std::uint64_t>(v.kind) | std::uint64_t{v.rail} << 4 |
         std::uint64_t{v.peer_rail} << 10 | static_cast<std::uint64_t>(v.heard) << 16 |
         static_cast<std::uint64_t>(v.told) << 20 | std::uint64_t{v.peer} << 32;
}

bool is_peer_report(std::uint64_t packed) {
  const auto kind = static_cast<ReportKind>(packed & 0xf);
  return kind == ReportKind::kPath || kind == ReportKind::kPort;
}

void PeerReports::update(std::uint32_t reporter, std::uint64_t packed, Nanos now) {
  if (!is_peer_report(packed)) return;
  const ReportKey key{reporter, packed & ~kReachabilityMask};
  const auto found = reports_.find(key);
  if (found != reports_.end()) {
    found->second = {packed, now};
    return;
  }
  if (reports_.size() >= kMost) forget_old(now);
  if (reports_.size() < kMost) reports_.emplace(key, std::pair{packed, now});
}

void PeerReports::forget_old(Nanos now) {
  std::erase_if(reports_, [&](const auto& item) { return now - item.second.second > kFresh; });
}

std::vector<PeerReports::Entry> PeerReports::list(Nanos now, std::size_t skip, std::size_t most,
                                                  bool& more) {
  if (skip == 0) forget_old(now);
  std::vector<Entry> out;
  const std::size_t from = std::min(skip, reports_.size());
  const std::size_t count = std::min(most, reports_.size() - from);
  auto item = std::next(reports_.begin(), static_cast<std::ptrdiff_t>(from));
  for (std::size_t i = 0; i < count; ++i, ++item) {
    out.push_back({item->first.first, item->second.first, item->second.second});
  }
  more = from + count < reports_.size();
  return out;
}

}  // namespace fabric::prober
