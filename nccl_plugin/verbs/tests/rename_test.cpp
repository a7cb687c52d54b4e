// A device that udev renames after it was opened: sysfs has it under its new name.
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "verbs/rail_devices.h"
#include "verbs/rail_port.h"
#include "verbs/tests/kit.h"

using namespace fabric::verbs;

namespace {

constexpr unsigned kAlways = 1000;

// An InfiniBand NIC, opened as `a0`, and what the kernel shows of it.
struct Renamed {
  std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("rename." + std::to_string(::getpid()));
  std::string sysfs = root.string();
  Functions verbs = fake::Network::functions();
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  std::shared_ptr<Device> device;

  Renamed() {
    verbs.sysfs = sysfs.c_str();
    nic.node_guid = 0x0002'c903'0045'a1f0;
    nic.ports[0].ethernet = false;
    nic.ports[0].pkeys = {0xffff, 0x8001, 0};
    device = test::open("a0", verbs);
    write("infiniband_verbs/uverbs0/ibdev", "a0");
  }
  ~Renamed() { std::filesystem::remove_all(root); }
  Renamed(const Renamed&) = delete;
  Renamed& operator=(const Renamed&) = delete;

  void write(const std::string& path, const std::string& line) const {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << line << "\n";
  }
  void rename(const std::string& guid = "0002:c903:0045:a1f0") {
    write("infiniband_verbs/uverbs0/ibdev", "ibp1s0");
    write("infiniband/ibp1s0/node_guid", guid);
    write("infiniband/ibp1s0/ports/1/pkeys/0", "0x7fff");
    write("infiniband/ibp1s0/ports/1/pkeys/1", "0x8001");
    write("infiniband/ibp1s0/ports/1/pkeys/2", "0x0000");
    nic.fail(fake::Call::query_pkey, ENOENT, kAlways);  // libibverbs looks under the old name
  }
};

}  // namespace

TEST_CASE("rename: the uverbs device tells the name that a device has now") {
  Renamed renamed;
  CHECK(renamed.device->present_name() == "a0");
  SUBCASE("renamed") {
    renamed.rename();
    CHECK(renamed.device->present_name() == "ibp1s0");
    CHECK(renamed.device->name() == "a0");  // as the log has had it
  }
  SUBCASE("unplugged, and another device has its number") {
    renamed.rename("0002:c903:0045:a1f1");
    CHECK(renamed.device->present_name() == "a0");
  }
  SUBCASE("no such files") {
    std::filesystem::remove_all(renamed.root);
    CHECK(renamed.device->present_name() == "a0");
  }
}

TEST_CASE("rename: P_Keys of an InfiniBand port are read under the name that it has now") {
  Renamed renamed;
  const PathSettings second{.pkey_index = 1};
  RailPort port(renamed.device, 1, GidRules{}, second);
  Error error;
  auto reading = port.read(error);
  REQUIRE(reading);
  CHECK(reading->terms.pkey == 0x8001);
  SUBCASE("renamed") {
    renamed.rename();
    CHECK(read_pkeys(*renamed.device, 1, 3) == std::vector<std::uint16_t>{0x7fff, 0x8001, 0});
    reading = port.read(error);
    REQUIRE(reading);
    CHECK(reading->terms.pkey == 0x8001);
  }
  SUBCASE("unreadable, for another reason") {
    renamed.nic.fail(fake::Call::query_pkey, ENOENT, kAlways);
    CHECK(read_pkeys(*renamed.device, 1, 3) == std::vector<std::uint16_t>{0, 0, 0});
    CHECK_FALSE(port.read(error));
    CHECK(error.text == "a0:1: its P_Key is not in the table");
  }
}

TEST_CASE("rename: the rail of an InfiniBand port is found under the name that it has now") {
  Renamed renamed;
  renamed.rename();
  renamed.write("net/ib0/dev_port", "0");
  std::filesystem::create_directories(renamed.root / "net/ib0/device/infiniband/ibp1s0");
  RailDevices devices(renamed.verbs, GidRules{}, PathSettings{});
  const std::vector<RailName> rails{{"ib0", 1, {}}};
  std::string notes;
  devices.find(rails, notes);
  CHECK(notes == "ib0 a0:1");
  REQUIRE(devices.port(0) != nullptr);
}
