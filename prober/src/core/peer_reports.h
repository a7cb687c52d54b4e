// What hosts report to each other about their paths and ports, one report in each probe. So every
// host can locate a fault by its neighbours' reports, too. The prober hands them on and acts on
// none.
//
// A report: kind (bits 0..3) | own rail (4..9) | peer's rail (10..15) | heard (16..19) |
// told (20..23) | 0 (24..31) | peer's host id (32..63). 0 says nothing; unknown kinds are
// ignored. For kind Port the peer is 0 and `heard` is its carrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/cadence.h"

namespace fabric::prober {

enum class ReportKind : std::uint8_t { kNone = 0, kPath = 1, kPort = 2 };

// Of one direction of a path; a port's carrier: kUnknown, kWell or kSilent.
enum class Reachability : std::uint8_t {
  kUnknown = 0,
  kWell = 1,
  kSilent = 2,
  kDoubt = 3,
  kGone = 4,
};

struct PeerReport {
  ReportKind kind = ReportKind::kNone;
  std::uint8_t rail = 0;
  std::uint8_t peer_rail = 0;
  // What the reporter hears of the peer; never heard: unknown.
  Reachability heard = Reachability::kUnknown;
  // Whether the peer says that it hears the reporter.
  Reachability told = Reachability::kUnknown;
  std::uint32_t peer = 0;
};

inline constexpr std::uint8_t kMaxRail = 63;

std::uint64_t pack(const PeerReport& report);
bool is_peer_report(std::uint64_t packed);  // of a kind that we know

// The last report of each neighbour on each path and port.
class PeerReports {
 public:
  static constexpr std::size_t kMost = 16384;
  static constexpr Nanos kFresh = 10'000'000'000;
  struct Entry {
    std::uint32_t reporter;
    std::uint64_t packed;
    Nanos at;
  };

  void update(std::uint32_t reporter, std::uint64_t packed, Nanos now);
  // What was reported lately, at most `most` after the first `skip`; sets `more` if there is more.
  std::vector<Entry> list(Nanos now, std::size_t skip, std::size_t most, bool& more);

 private:
  // Reporter, and packed report without its findings.
  using ReportKey = std::pair<std::uint32_t, std::uint64_t>;
  void forget_old(Nanos now);
  std::map<ReportKey, std::pair<std::uint64_t, Nanos>> reports_;
};

}  // namespace fabric::prober
