// The rails of this host: network devices that can carry the collective.
//
// Facts come from rtnetlink and ioctl, which see the process's own network namespace; /sys may
// show another one's and is asked only for decoration (PCI path), after its ifindex was compared,
// and for RDMA devices.
#pragma once

#include <net/if.h>

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/schedule.h"
#include "host/address.h"
#include "host/device_choice.h"
#include "host/fd.h"
#include "host/params.h"

namespace fabric::host {

struct Rail {
  std::string name;
  int ifindex = 0;
  Address address;          // port: its listener's, once there is one
  int speed_mbps = 10'000;  // as NCCL's own sockets say where the driver says none
  int mtu = 0;              // bytes; 0: not known
  std::uint64_t guid = 0;   // of guid_of
  std::string pci_path;
};

// The rails of a process, in an order that stays. One thread adds while others read: what is there
// stays where it is.
class RailList {
 public:
  void assign(const std::vector<Rail>& rails);  // nobody else reads yet
  void push_back(const Rail& rail) {
    const std::size_t index = size();
    assert(index < core::kMaxRails);
    rails_[index] = rail;
    count_.store(index + 1, std::memory_order_release);
  }
  [[nodiscard]] std::size_t size() const { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  Rail& operator[](std::size_t index) { return rails_[index]; }
  const Rail& operator[](std::size_t index) const { return rails_[index]; }
  [[nodiscard]] const Rail* begin() const { return rails_.data(); }
  [[nodiscard]] const Rail* end() const { return rails_.data() + size(); }
  [[nodiscard]] std::span<const Rail> all() const { return {rails_.data(), size()}; }

  // Addresses of this host's devices, rails or not, as they were last listed. Control thread, once
  // it runs.
  void set_own_addresses(std::vector<Address> own) { own_ = std::move(own); }
  // Is that IP address one of them, or a rail's?
  [[nodiscard]] bool is_own(const Address& address) const;

 private:
  std::vector<Address> own_;
  std::array<Rail, core::kMaxRails> rails_;
  std::atomic<std::size_t> count_{0};
};

// Tells physical ports apart: the MAC address, or IPoIB's port GUID. Devices of one port share it.
std::uint64_t guid_of(const NetDevice& device);

// What these devices become, at most kMaxRails: host/device_choice.h, with host/address_choice.h
// for their addresses. Pure.
DeviceChoice choose_rails(const std::vector<NetDevice>& devices, const std::vector<HcaPort>& hcas,
                          const Params& params);

struct FoundRails {
  std::vector<Rail> rails;
  std::vector<Address> own_addresses;  // of all devices; without ports
  std::string notes;                   // for a warning, may be empty: as of DeviceChoice
  std::string remarks;                 // for the log, may be empty: as of DeviceChoice
};

// Devices that are administratively up and have an address, as choose_rails chooses and orders
// them. A device without carrier counts.
FoundRails find_rails(const Params& params);

// Where a rail is now.
struct RailNow {
  bool present = false;  // the device is there, administratively up, and has an address
  int ifindex = 0;
  int mtu = 0;      // bytes; 0: not known
  Address address;  // the rail's own if it still has it; without a port
};
struct RailsNow {
  std::vector<RailNow> rails;          // in the order of the rails that were asked for
  std::vector<Address> own_addresses;  // of all devices; without ports
};
// Nothing when the kernel gave no answer.
std::optional<RailsNow> rails_now(const Params& params, std::span<const Rail> rails);

// Devices that came after `rails` were found, and that NCCL_SOCKET_IFNAME or NCCL_IB_HCA names:
// what a host makes for other purposes meanwhile (bridges, containers) is not taken for a rail. As
// many as there is room for. Only with an address of the kind that those have: from one of another
// family, or a link-local one, no path would lead to the peers' rails.
std::vector<Rail> rails_come(const Params& params, std::span<const Rail> rails);

// Moves the standby rails of `standby` ("eth0/eth4,eth1/eth5") behind the others, which keep their
// order, and says by index whose backup each is. Returns what was wrong with it, or "".
std::string set_standby(const std::string& standby, std::vector<Rail>& rails,
                        std::array<std::uint8_t, core::kMaxRails>& backup_of, std::size_t& shown);

// Reads the carrier of devices; one per thread.
class CarrierReader {
 public:
  CarrierReader();
  // False: no carrier, or administratively down, or gone.
  bool up(const Rail& rail);

 private:
  Fd fd_;
};

}  // namespace fabric::host
