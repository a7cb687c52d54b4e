// Reads fabric time off the clock page of the host (fabric/clock.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/fabric_time.h"
#include "core/windowed_min.h"

struct fabric_clock;

namespace fabric::prober {

class ClockPage {
 public:
  explicit ClockPage(std::string run_dir);
  ~ClockPage();
  ClockPage(const ClockPage&) = delete;
  ClockPage& operator=(const ClockPage&) = delete;

  // Fabric time beside CLOCK_MONOTONIC; nothing while there is none. No system call but once in a
  // second (is it still that file?), and every 100 ms while there is no page.
  std::optional<FabricReading> look(Nanos now);

 private:
  static constexpr Nanos kSame = 1'000'000'000;
  static constexpr Nanos kMissing = 100'000'000;
  // A reading during which we were interrupted says little; the last one is good for so long.
  static constexpr Nanos kWide = 5'000;
  static constexpr Nanos kKept = 100'000'000;
  static constexpr int kTries = 3;

  void open();
  void close();

  std::string run_dir_;
  std::unique_ptr<fabric_clock> clock_;  // null: there is no page
  std::uint64_t inode_ = 0;
  Nanos next_open_ = 0;
  Nanos read_ = 0;
  WindowedMin widths_{1'000'000'000};  // where clocks are slow to read no reading is short
  std::optional<FabricReading> last_;
};

}  // namespace fabric::prober
