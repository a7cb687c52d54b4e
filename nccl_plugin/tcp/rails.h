// The rails of this host: network devices that can carry the collective.
//
// Facts come from getifaddrs and ioctl, which see the process's own network namespace; /sys may
// show another one's and is asked only for decoration (PCI path), after its ifindex was compared,
// and for what NCCL_IB_HCA means.
#pragma once

#include <net/if.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/schedule.h"
#include "tcp/address.h"
#include "tcp/device_choice.h"
#include "tcp/params.h"

namespace fabric::tcp {

struct Rail {
  std::string name;
  int ifindex = 0;
  Address address;  // port: its listener's, once there is one
  int speed_mbps = 10'000;
  std::uint64_t guid = 0;  // from the MAC address
  std::string pci_path;
};

// Devices that are administratively up with a global address, in order of their names (numbers in
// names compared as numbers), at most kMaxRails, as tcp/device_choice.h chooses. A device without
// carrier counts. `notes`: what was asked for and is not here.
std::vector<Rail> find_rails(const Params& params, std::string& notes);

// Where a rail is now.
struct RailNow {
  bool present = false;  // the device is there, administratively up, and has an address
  int ifindex = 0;
  Address address;  // the rail's own if it still has it; without a port
};
// In the order of `rails`; nothing when the kernel gave no answer.
std::optional<std::vector<RailNow>> rails_now(const Params& params, const std::vector<Rail>& rails);

// Moves the standby rails of `standby` ("eth0/eth4,eth1/eth5") behind the others, which keep their
// order, and says by index whom each stands for. Returns what was wrong with it, or "".
std::string set_standby(const std::string& standby, std::vector<Rail>& rails,
                        std::array<std::uint8_t, core::kMaxRails>& stands_for, std::size_t& shown);

// Reads the carrier of devices; one per thread.
class CarrierReader {
 public:
  CarrierReader();
  ~CarrierReader();
  CarrierReader(const CarrierReader&) = delete;
  CarrierReader& operator=(const CarrierReader&) = delete;
  // False: no carrier, or administratively down, or gone.
  bool up(const Rail& rail);

 private:
  int fd_ = -1;
};

}  // namespace fabric::tcp
