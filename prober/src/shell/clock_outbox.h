// Reads the page on which the clock service leaves its messages (fabric/clock_outbox.h).
#pragma once

#include <string>
#include <vector>

#include "core/stalls.h"
#include "core/wire.h"
#include "fabric/clock_outbox.h"
#include "shell/latch_reader.h"

namespace fabric::prober {

class ClockOutbox {
 public:
  explicit ClockOutbox(std::string path);

  // Looks at the page; true when messages() differs from before.
  bool look(Nanos now);
  // Empty without a service: what one said that has been silent for a second is not told on.
  const std::vector<ClockMessage>& messages() const { return messages_; }
  // One more for the paths of each link, by its index; all zero: none. Empty without a service.
  const std::vector<ClockMessage>& links() const { return links_; }

 private:
  static constexpr Nanos kStale = 1'000'000'000;

  bool clear();

  LatchReader<fabric::clock_outbox::Page> page_;
  Nanos written_ = 0;
  std::vector<ClockMessage> messages_;
  std::vector<ClockMessage> links_;
};

}  // namespace fabric::prober
