// What hosts tell each other about their paths and ports, one word in each probe, so that every
// host can say where a fault is from its neighbours' view too. It is told, never acted on here.
//
// A word: kind (bits 0..3) | own rail (4..9) | peer's rail (10..15) | heard (16..19) |
// told (20..23) | 0 (24..31) | peer's host id (32..63). Word 0 says nothing; kinds that are not
// known are left alone. For kind Port the peer is 0 and `heard` is its carrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/cadence.h"

namespace fabric::prober {

enum class ViewKind : std::uint8_t { kNone = 0, kPath = 1, kPort = 2 };

// Of one direction of a path; a port's carrier: kUnknown, kWell or kSilent.
enum class Seen : std::uint8_t { kUnknown = 0, kWell = 1, kSilent = 2, kDoubt = 3, kGone = 4 };

struct View {
  ViewKind kind = ViewKind::kNone;
  std::uint8_t rail = 0;
  std::uint8_t peer_rail = 0;
  Seen heard = Seen::kUnknown;  // what the speaker hears of the peer; never heard: unknown
  Seen told = Seen::kUnknown;   // whether the peer says that it hears the speaker
  std::uint32_t peer = 0;
};

inline constexpr std::uint8_t kMaxRail = 63;

std::uint64_t pack(const View& view);
bool is_view(std::uint64_t word);  // of a kind that we know

// The last word of each neighbour on each subject.
class Views {
 public:
  static constexpr std::size_t kMost = 16384;
  static constexpr Nanos kFresh = 10'000'000'000;
  struct Entry {
    std::uint32_t speaker;
    std::uint64_t word;
    Nanos at;
  };

  void hear(std::uint32_t speaker, std::uint64_t word, Nanos now);
  // What was said lately, at most `most` after the first `skip`; sets `more` if there is more.
  std::vector<Entry> list(Nanos now, std::size_t skip, std::size_t most, bool& more);

 private:
  using Subject = std::pair<std::uint32_t, std::uint64_t>;  // speaker, word without what was seen
  void forget_old(Nanos now);
  std::map<Subject, std::pair<std::uint64_t, Nanos>> words_;
};

}  // namespace fabric::prober
