// NCCL_SOCKET_IFNAME and NCCL_IB_HCA: which devices they choose, and that an empty choice is said.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "host/device_choice.h"

using namespace fabric::host;

namespace {

using Names = std::set<std::string>;

std::vector<Candidate> devices() {
  std::vector<Candidate> made;
  for (const char* name :
       {"lo", "eth0", "docker0", "ens1f0", "ens1f1", "ens10f0", "ib0", "bond0"}) {
    Candidate& device = made.emplace_back();
    device.name = name;
    device.loopback = device.name == "lo";
  }
  return made;
}

const std::vector<HcaPort> kHcas{{"mlx5_0", 1, {"ens1f0"}},   {"mlx5_1", 1, {"ens1f1"}},
                                 {"mlx5_10", 1, {"ens10f0"}}, {"mlx5_bond_0", 1, {"bond0"}},
                                 {"mlx4_0", 1, {"ens1f0"}},   {"mlx4_0", 2, {"ib0"}},
                                 {"mlx5_7", 1, {"elsewhere"}}};

struct Chosen {
  Names names;
  std::string notes;
};

Chosen choose(const std::string& ifname, const std::string& ib_hca) {
  const DeviceChoice choice = choose_devices(ifname, ib_hca, kHcas, devices(), 8);
  return {{choice.names.begin(), choice.names.end()}, choice.notes};
}

class Tree {
 public:
  Tree() {
    std::array<char, 64> name{"/tmp/fabric-sysfs-XXXXXX"};
    root = ::mkdtemp(name.data());
  }
  ~Tree() { std::filesystem::remove_all(root); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << "\n";
  }
  void folder(const std::string& path) const { std::filesystem::create_directories(root / path); }
  std::filesystem::path root;
};

}  // namespace

TEST_CASE("NCCL_IB_HCA takes prefixes, exact names, ports, and names of network devices") {
  CHECK(choose("", "mlx5_1").names == Names{"ens1f1", "ens10f0"});  // a prefix, as NCCL has it
  CHECK(choose("", "=mlx5_1").names == Names{"ens1f1"});
  CHECK(choose("", "=mlx5_0,mlx5_10").names == Names{"ens1f0", "ens10f0"});
  CHECK(choose("", "mlx4_0").names == Names{"ens1f0", "ib0"});
  CHECK(choose("", "mlx4_0:2").names == Names{"ib0"});
  CHECK(choose("", "=mlx4_0:1").names == Names{"ens1f0"});
  CHECK(choose("", "mlx5_bond").names == Names{"bond0"});
  CHECK(choose("", "ens1").names == Names{"ens1f0", "ens1f1", "ens10f0"});
  CHECK(choose("", "=ib0").names == Names{"ib0"});
  CHECK(choose("", "=lo").names == Names{"lo"});  // by its name
  CHECK(choose("", "=mlx5_0,mlx5_1").notes.empty());
}

TEST_CASE("an including NCCL_IB_HCA decides alone, an excluding one takes away") {
  CHECK(choose("=eth0", "=mlx5_0").names == Names{"ens1f0"});
  CHECK(choose("nosuch", "=mlx5_0").names == Names{"ens1f0"});
  CHECK(choose("nosuch", "=mlx5_0").notes.empty());
  CHECK(choose("", "^=mlx5_0").names == Names{"eth0", "ens1f1", "ens10f0", "ib0", "bond0"});
  CHECK(choose("ens1", "^mlx5_1").names == Names{"ens1f0"});
  CHECK(choose("ens1", "^mlx4_0:2").names == Names{"ens1f0", "ens1f1", "ens10f0"});
  CHECK(choose("", "^eth0,bond0,ib0").names == Names{"ens1f0", "ens1f1", "ens10f0"});
  CHECK(choose("^eth,bond,ib", "").names == Names{"docker0", "ens1f0", "ens1f1", "ens10f0"});
}

TEST_CASE("what is not here is said, and never chooses nothing in silence") {
  const Chosen missing = choose("ens1f", "mlx5_9");
  CHECK(missing.names == Names{"ens1f0", "ens1f1"});  // a setting of another kind of host
  CHECK(missing.notes.find("nothing here is mlx5_9") != std::string::npos);
  CHECK(missing.notes.find("mlx5_0:1") != std::string::npos);
  const Chosen elsewhere = choose("", "mlx5_7");  // its netdev is in another namespace
  CHECK(elsewhere.names.contains("eth0"));
  CHECK_FALSE(elsewhere.notes.empty());
  const Chosen some = choose("", "=mlx5_0,mlx5_9");
  CHECK(some.names == Names{"ens1f0"});
  CHECK(some.notes.find("mlx5_9") != std::string::npos);
  CHECK(choose("", "mlx4_0:3").notes.find("mlx4_0:3") != std::string::npos);
  CHECK(choose("", "mlx4_0:x").notes.find("mlx4_0:x") != std::string::npos);
  const Chosen none = choose("=rail0", "");
  CHECK(none.names.empty());
  CHECK(none.notes.find("NCCL_SOCKET_IFNAME=rail0") == std::string::npos);
  CHECK(none.notes.find("NCCL_SOCKET_IFNAME==rail0 leaves no device") != std::string::npos);
  CHECK(none.notes.find("eth0") != std::string::npos);
  const Chosen all = choose("ens1", "^ens");
  CHECK(all.names.empty());
  CHECK(all.notes.find("NCCL_IB_HCA=^ens leaves no device") != std::string::npos);
  CHECK(choose("", "").notes.empty());
  CHECK(choose("", "^").names == choose("", "").names);
  CHECK(choose("", ",,").names == choose("", "").names);
}

TEST_CASE("RDMA ports and their network devices come from sysfs") {
  const Tree tree;
  // RoCE: the GIDs name the device (a bond, a VLAN, soft-RoCE's parent); an unused GID reads empty.
  tree.file("infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond0");
  tree.file("infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/1", "bond0");
  tree.file("infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/2", "");
  // InfiniBand, two ports of one function.
  tree.folder("infiniband/mlx4_0/ports/1");
  tree.folder("infiniband/mlx4_0/ports/2");
  tree.folder("infiniband/mlx4_0/device/net/ib0");
  tree.folder("infiniband/mlx4_0/device/net/ib1");
  tree.file("net/ib0/dev_port", "0");
  tree.file("net/ib1/dev_port", "1");
  // One port whose function has one device, whatever its number says.
  tree.folder("infiniband/mlx5_3/ports/1");
  tree.folder("infiniband/mlx5_3/device/net/ens3");
  tree.file("net/ens3/dev_port", "1");
  std::set<std::string> found;
  for (const HcaPort& hca : read_hcas(tree.root.string())) {
    std::string text = hca.hca + ":" + std::to_string(hca.port);
    for (const std::string& netdev : hca.netdevs) {
      text += " " + netdev;
    }
    found.insert(text);
  }
  CHECK(found == std::set<std::string>{"mlx5_bond_0:1 bond0", "mlx4_0:1 ib0", "mlx4_0:2 ib1",
                                       "mlx5_3:1 ens3"});
  CHECK(read_hcas("/nonexistent").empty());
}
