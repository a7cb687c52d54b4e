// Which network devices become rails: NCCL_SOCKET_IFNAME, NCCL_IB_HCA, and what they mean together.
// Pure, but for read_hcas. tests/unit/shared/rail_cases.json has cases.
//
// - NCCL_IB_HCA that names something here decides alone: it is how users say which NICs carry data,
//   while NCCL_SOCKET_IFNAME then often names the management device for NCCL's bootstrap.
// - NCCL_IB_HCA that excludes ("^") takes its devices out of NCCL_SOCKET_IFNAME's choice.
// - NCCL_IB_HCA of which nothing is here is said so, and NCCL_SOCKET_IFNAME decides: one setting
//   for a whole cluster must not leave hosts without RDMA devices without rails.
// - Without either, NICs are the rails. Bridges and tunnels are, where there is no NIC.
// - NICs come first, then what may stand for one (veth, VLAN, bond), then bridges and tunnels, and
//   last what containers and hypervisors make. Within a rank devices go by name, numbers as
//   numbers.
#pragma once

#include <compare>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "host/net_devices.h"

namespace fabric::host {

// A port of an RDMA device with its network devices.
struct HcaPort {
  std::string hca;
  int port = 1;
  std::set<std::string> netdevs;
};

// From sysfs: the devices of the port's GIDs, and for those without (InfiniBand) the netdevs of the
// same PCI function.
std::vector<HcaPort> read_hcas(const std::string& sysfs = "/sys/class");

// How much a device is like a NIC; lower comes first.
enum class DeviceRank {
  nic,      // hardware or an RDMA port is below it, also below its ports (a bond's, a bridge's)
  standin,  // virtual, and may well be all that a container has: veth, VLAN, macvlan, bond
  bridge,   // bridges and tunnels
  foreign,  // one that is named as container engines and hypervisors name theirs: br-…, virbr…
};

// In the order of `devices`.
std::vector<DeviceRank> rank_devices(std::span<const NetDevice> devices,
                                     const std::vector<HcaPort>& hcas);

struct Candidate {
  std::string name;
  bool loopback = false;
  DeviceRank rank = DeviceRank::nic;
  std::vector<std::string> altnames;
  std::string fault;        // why it can be no rail ("is down"); empty: it can
  bool link_local = false;  // with a link-local address alone: a rail where a list names it
};

struct DeviceChoice {
  std::vector<std::string> names;  // kernel names, in the order of the rails; `limit` at most
  std::string notes;    // what was asked for and is not had, and what there is no room for; to warn
  std::string remarks;  // what is left out as it should be; for the log
};

// One device name as NCCL_SOCKET_IFNAME sees it: "" takes all but loopback and docker devices,
// "eth,ib" prefixes, "=eth0,eth1" exact names, "^docker,lo" everything else.
bool name_wanted(const std::string& filter, const std::string& name);

// Before another one by name: "rail9" before "rail10".
bool natural_less(const std::string& a, const std::string& b);

// `ifname`: as of name_wanted; an item may be an altname of a device, in full. Blanks around items
// are dropped, and so is what follows a colon (NCCL reads a port there).
// `ib_hca`: "mlx5_0,mlx5_1:1" prefixes with or without a port, "=" exact, "^" all but these; names
// of network devices are taken, too.
DeviceChoice choose_devices(const std::string& ifname, const std::string& ib_hca,
                            const std::vector<HcaPort>& hcas,
                            const std::vector<Candidate>& candidates, std::size_t limit);

}  // namespace fabric::host
