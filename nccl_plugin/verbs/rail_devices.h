// Which RDMA device and port each rail of this process has. A rail is a network device; its RDMA
// device is the one with a GID of its address, or else of the network device. Looked for again when
// a rail has none or lost it: devices come and go (a driver is loaded, a NIC is plugged in).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"
#include "verbs/rail_port.h"

namespace fabric::verbs {

struct RailName {
  std::string name;  // of the network device
  int ifindex = 0;   // 0: not known
  Gid address{};     // the rail's own, as a GID has it
};

class RailDevices {
 public:
  RailDevices(const Functions& verbs, const GidRules& rules, const PathSettings& settings)
      : verbs_(verbs), rules_(rules), settings_(settings) {}

  // Opens what rails need that have none. Devices that rails have stay open and are not opened
  // again. `notes`: what was found, a line for each new one.
  void find(std::span<const RailName> rails, std::string& notes);
  // Null: this rail has no RDMA device now.
  [[nodiscard]] RailPort* port(std::size_t rail);
  // As found last, though it may be gone.
  [[nodiscard]] const RailPort* found(std::size_t rail) const { return ports_[rail].get(); }
  [[nodiscard]] std::vector<std::shared_ptr<Device>> devices() const;

  // Between two calls of find(), which takes milliseconds for each device: longer the longer a rail
  // has had none. ns.
  static constexpr std::int64_t kFindLeastNs = 1'000'000'000;
  static constexpr std::int64_t kFindMostNs = 60'000'000'000;
  static std::int64_t find_pause(std::int64_t missing_for) {
    return std::clamp(missing_for / 8, kFindLeastNs, kFindMostNs);
  }

 private:
  struct Port {
    std::shared_ptr<Device> device;
    std::uint8_t number = 1;
    bool ethernet = false;
    std::vector<GidEntry> table;
  };
  static void add_ports(const std::shared_ptr<Device>& device, std::vector<Port>& found);
  static bool belongs(const Port& port, const RailName& rail, bool by_address);

  const Functions& verbs_;
  const GidRules rules_;
  const PathSettings settings_;
  std::array<std::unique_ptr<RailPort>, core::kMaxRails> ports_;
};

}  // namespace fabric::verbs
