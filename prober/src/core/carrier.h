// A link's carrier from its kernel counters. The counters are the truth: a flap that came and went
// between two readings is in them.
#pragma once

#include <cstdint>

#include "core/sink.h"
#include "core/stalls.h"

namespace fabric::prober {

struct CarrierReading {
  bool present = false;
  std::uint32_t ifindex = 0;
  bool carrier = false;
  std::uint64_t down_count = 0;
  std::uint64_t up_count = 0;
};

class CarrierTracker {
 public:
  // Puts a CARRIER record into `sink` when something changed since the last reading.
  void update(std::uint16_t link, const CarrierReading& now_reading, Nanos now, RecordSink& sink);

  const CarrierReading& reading() const { return reading_; }
  Nanos last_change() const { return last_change_; }
  Nanos read_at() const { return read_at_; }
  std::uint64_t downs() const { return downs_; }

 private:
  CarrierReading reading_{};
  bool known_ = false;
  Nanos last_change_ = 0;
  Nanos read_at_ = 0;
  std::uint64_t downs_ = 0;
};

}  // namespace fabric::prober
