// Reads the page on which the clock service asks for source ports (fabric/clock_ports.h).
#pragma once

#include <string>
#include <vector>

#include "core/ports.h"
#include "fabric/clock_ports.h"
#include "shell/latch_reader.h"

namespace fabric::prober {

class ClockPorts {
 public:
  explicit ClockPorts(std::string path)
      : page_(std::move(path), clock_ports::kMagic, clock_ports::kVersion, clock_ports::kFileSize,
              clock_ports::kSalt) {}

  // Looks at the page; true when wishes() may be others than before. They stay when the service
  // dies, and when the page goes.
  bool look(Nanos now) {
    const auto record = page_.look(now);
    if (record) wishes_ = parse_ports(*record);
    return record.has_value();
  }
  const std::vector<PortWish>& wishes() const { return wishes_; }

 private:
  LatchReader<clock_ports::Page> page_;
  std::vector<PortWish> wishes_;
};

}  // namespace fabric::prober
