#include "shell/clock_page.h"

#include <fabric/clock.h>
#include <sys/stat.h>

#include <cmath>

#include "shell/clock.h"

namespace fabric::prober {
namespace {

constexpr Nanos kLatest = Nanos{1} << 62;  // 2116: what is later cannot be calculated with

}  // namespace

ClockPage::ClockPage(std::string run_dir) : run_dir_(std::move(run_dir)) {}

ClockPage::~ClockPage() { close(); }

void ClockPage::close() {
  if (clock_) ::fabric_clock_close(clock_.get());
  clock_.reset();
  last_.reset();
}

void ClockPage::open() {
  struct stat info {};
  if (::stat((run_dir_ + "/clock").c_str(), &info) != 0) return close();
  if (clock_ && info.st_ino == inode_) return;
  close();
  auto clock = std::make_unique<fabric_clock>();
  if (::fabric_clock_open(clock.get(), run_dir_.c_str()) != 0) return;
  clock_ = std::move(clock);
  inode_ = info.st_ino;
}

std::optional<FabricReading> ClockPage::look(Nanos now) {
  if (now >= next_open_) {
    open();
    next_open_ = now + (clock_ ? kSame : kMissing);
  }
  if (!clock_) return std::nullopt;
  for (int i = 0; i < kTries; ++i) {
    fabric_time time{};
    const Nanos before = read_clock(CLOCK_MONOTONIC);
    const int error = ::fabric_clock_now(clock_.get(), &time);
    const Nanos width = read_clock(CLOCK_MONOTONIC) - before;
    if (error != 0 || time.ns < 0 || time.ns > kLatest) return last_ = std::nullopt;
    widths_.add(std::max<Nanos>(width, 1), now);
    if (width > std::max(kWide, 2 * widths_.get())) continue;
    const double most = static_cast<double>(FabricTime::kMostBound);
    const Nanos bound = std::llround(std::fmin(time.bound_ns, 2 * most)) + width / 2;
    last_ = FabricReading{time.ns - before - width / 2, bound, time.epoch};
    read_ = now;
    return last_;
  }
  return now - read_ <= kKept ? last_ : last_ = std::nullopt;
}

}  // namespace fabric::prober
