// Carrier counters of one device, from sysfs where /sys shows this network namespace, else from
// rtnetlink. A read of an open sysfs file costs about 0.3 us, an RTM_GETLINK about 5 us and it may
// wait for the kernel's RTNL lock.
#pragma once

#include <cstdint>
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
  bool read_netlink(CarrierReading& out);
  void close();

  std::string netdev_;
  Source source_ = Source::kNone;
  unsigned ifindex_ = 0;
  Fd changes_;
  Fd down_;
  Fd up_;
  Fd carrier_;
  Fd netlink_;
  std::uint32_t netlink_seq_ = 0;
  unsigned calls_ = 0;
  std::uint64_t changed_ = 0;  // as last read
  CarrierReading last_{};
};

}  // namespace fabric::prober
