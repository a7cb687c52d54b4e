// From which UDP source port a path's probes are to leave (fabric/clock_ports.h). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/stalls.h"
#include "core/wire.h"
#include "fabric/clock_ports.h"

namespace fabric::prober {

struct PortWish {
  Address own{};  // of the link; its port means nothing
  Address peer{};
  std::uint32_t host_id = 0;
  std::uint16_t port = 0;
  friend bool operator==(const PortWish&, const PortWish&) = default;
};

// What a record asks for. Entries without a host or with a port that others may own are left out.
std::vector<PortWish> parse_ports(const clock_ports::Record& record);

// The source port of one path: that of its link (0) or another. Another one is tried first, with
// the first packets of trains, which the clock throws away anyway; the others follow once the peer
// has heard one of these. So a port that the fabric does not let through costs no packet that
// detection waits for.
class SourcePort {
 public:
  // `port` 0: the link's own, at once.
  void want(std::uint16_t port);
  // Whether the peer takes packets of this path from other ports too (kWireRoams). One that does
  // not gets all from the link's own.
  void peer_roams(bool roams);
  // For the next packet; `train` as on the wire.
  std::uint16_t next(std::uint8_t train, Nanos now);
  // The peer heard a packet that left from there.
  void heard(std::uint16_t port);
  bool validating() const { return wanted_ != used_ && !refused_ && attempts_ != 0; }
  // The peer misses packets from this port: back to the link's own.
  void missed();

  std::uint16_t used() const { return used_; }
  std::uint16_t wanted() const { return wanted_; }
  // What is wanted cannot be had: the peer is too old, or does not hear it. Of a peer that has not
  // spoken yet nothing is known.
  bool refused() const { return refused_ || (wanted_ != used_ && told_ && !roams_); }

 private:
  static constexpr std::uint32_t kAttempts = 2;  // more would count as loss if none came through
  static constexpr Nanos kAttemptWait = 250'000'000;  // after the last one

  std::uint16_t wanted_ = 0;
  std::uint16_t used_ = 0;
  bool refused_ = false;
  bool told_ = false;  // whether it does
  bool roams_ = false;
  std::uint32_t attempts_ = 0;
  Nanos last_attempt_ = 0;
};

}  // namespace fabric::prober
