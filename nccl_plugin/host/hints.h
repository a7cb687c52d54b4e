// What this host knows of its rails: carrier, and the daemon's steer page. Control thread only.
#pragma once

#include <array>
#include <cstdint>

#include "host/context.h"
#include "host/page_watch.h"
#include "host/steer_reader.h"

namespace fabric::host {

// Paths that are said to be down, as streams and over RDMA.
struct SaidDown {
  core::PathSet stream = 0;
  core::PathSet rdma = 0;
};

class Hints {
 public:
  Hints(Context& context, Poller& poller);

  // Looks; true when anything changed. Call every few milliseconds.
  bool poll(std::int64_t now);
  // The rail has no address, or has it again.
  void lost(std::size_t rail, bool gone) { gone_[rail] = gone; }
  // It has another address or device: until then what is connected over it is given up.
  void moved(std::size_t rail, std::int64_t until) { moved_until_[rail] = until; }
  // An event tells of what the page says, or there is no page: polling is for the rest.
  [[nodiscard]] bool prompt() const { return steer_.view() == nullptr || !watch_.blind(); }
  [[nodiscard]] const SteerView* page() const { return steer_.view(); }  // nothing: absent
  [[nodiscard]] const RailsReport& local() const { return local_; }
  // About the paths to a peer: sets weights and reasons, returns the paths that are said to be
  // down. `outbound`: we are the sender, so the first rail of a path is ours.
  SaidDown apply(PeerFacts& facts, const RailTable& remote_addresses, const RailsReport& remote,
                 std::size_t remote_rails, bool outbound) const;

 private:
  void say_rdma(const RailsReport& next) const;

  Context& context_;
  SteerReader steer_;
  PageWatch watch_;
  CarrierReader carrier_;
  std::array<bool, core::kMaxRails> up_{};
  std::array<bool, core::kMaxRails> gone_{};
  std::array<std::int64_t, core::kMaxRails> moved_until_{};
  std::array<bool, core::kMaxRails> moved_{};  // at the last look
  RailsReport local_;
};

}  // namespace fabric::host
