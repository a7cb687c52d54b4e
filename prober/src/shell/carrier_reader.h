// Carrier counters of one device, from sysfs where /sys shows this network namespace, else from
// rtnetlink. A read of an open sysfs file of counters costs about 0.3 us, an RTM_GETLINK about 5
// us. That waits for the kernel's RTNL lock, which others hold for hundreds of milliseconds now and
// then; so does the sysfs file `carrier` (net/core/net-sysfs.c, seen in Linux 6.18). It
// is read once; from then on the counters say what became of it, and an ioctl that takes no lock
// whether the device is administratively up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/carrier.h"
#include "shell/fd.h"

namespace fabric::prober {

class CarrierReader {
 public:
  enum class Source : std::uint8_t { kNone = 0, kSysfs = 1, kNetlink = 2 };

  explicit CarrierReader(std::string netdev) : netdev_(std::move(netdev)) {}
  CarrierReading read();
  Source source() const { return source_; }

 private:
  bool open_sysfs(unsigned ifindex);
  bool read_sysfs(CarrierReading& out);
  // What the counters made of the carrier since it was last known.
  void follow(std::uint64_t down, std::uint64_t up);
  bool read_netlink(CarrierReading& out);
  void close();

  std::string netdev_;
  Source source_ = Source::kNone;
  unsigned ifindex_ = 0;
  Fd changes_;
  Fd down_;
  Fd up_;
  Fd carrier_;
  Fd query_;
  Fd netlink_;
  std::uint32_t netlink_seq_ = 0;
  unsigned calls_ = 0;
  std::uint64_t changed_ = 0;   // as last read
  std::optional<bool> lit_;     // carrier, whatever the administrator wants
  std::uint64_t lit_down_ = 0;  // the counters as of then
  std::uint64_t lit_up_ = 0;
  CarrierReading last_{};
};

}  // namespace fabric::prober
