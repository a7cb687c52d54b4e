// Which network devices become rails: NCCL_SOCKET_IFNAME, NCCL_IB_HCA, and what they mean together.
//
// - NCCL_IB_HCA that names something here decides alone: it is how users say which NICs carry data,
//   while NCCL_SOCKET_IFNAME then often names the management device for NCCL's bootstrap.
// - NCCL_IB_HCA that excludes ("^") takes its devices out of NCCL_SOCKET_IFNAME's choice.
// - NCCL_IB_HCA of which nothing is here is said so, and NCCL_SOCKET_IFNAME decides: one setting
// for
//   a whole cluster must not leave hosts without RDMA devices without rails.
#pragma once

#include <set>
#include <string>
#include <vector>

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

struct Candidate {
  std::string name;
  bool loopback = false;
};

struct DeviceChoice {
  std::set<std::string> names;
  std::string notes;  // what was asked for and is not here; for the log
};

// One device name as NCCL_SOCKET_IFNAME sees it: "" takes all but loopback and docker devices,
// "eth,ib" prefixes, "=eth0,eth1" exact names, "^docker,lo" everything else.
bool name_wanted(const std::string& filter, const std::string& name);

// `ib_hca`: "mlx5_0,mlx5_1:1" prefixes with or without a port, "=" exact, "^" all but these; names
// of network devices are taken, too.
DeviceChoice choose_devices(const std::string& ifname, const std::string& ib_hca,
                            const std::vector<HcaPort>& hcas,
                            const std::vector<Candidate>& candidates);

}  // namespace fabric::host
