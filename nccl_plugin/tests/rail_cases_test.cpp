// The cases of tests/unit/shared/rail_cases.json: the same rules decide rails in the plugin, the
// prober and the daemon.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <linux/if_addr.h>
#include <linux/rtnetlink.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/types.h"
#include "host/address_choice.h"
#include "host/device_choice.h"
#include "host/rails.h"

using namespace fabric::host;
using nlohmann::json;

namespace {

const json& cases() {
  static const json all = json::parse(std::ifstream(FABRIC_RAIL_CASES));
  return all;
}

// Without a port; absent: the text is no address.
Address address_of(const std::string& text) {
  Address out;
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    out.ip[10] = out.ip[11] = 0xff;
    std::memcpy(out.ip.data() + 12, &v4, 4);
  } else if (::inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
    std::memcpy(out.ip.data(), &v6, 16);
  }
  return out;
}

std::vector<DeviceAddress> addresses_of(const json& list) {
  static const std::map<std::string, std::uint32_t> flags{
      {"secondary", IFA_F_SECONDARY},   {"temporary", IFA_F_TEMPORARY},
      {"optimistic", IFA_F_OPTIMISTIC}, {"dadfailed", IFA_F_DADFAILED},
      {"deprecated", IFA_F_DEPRECATED}, {"tentative", IFA_F_TENTATIVE}};
  static const std::map<std::string, std::uint8_t> scopes{
      {"", RT_SCOPE_UNIVERSE}, {"link", RT_SCOPE_LINK}, {"host", RT_SCOPE_HOST}};
  std::vector<DeviceAddress> out;
  for (const json& item : list) {
    DeviceAddress& each = out.emplace_back();
    each.address = address_of((item.is_string() ? item : item.at("ip")).get<std::string>());
    REQUIRE(each.address.present());
    if (item.is_object()) {
      each.scope = scopes.at(item.value("scope", ""));
      for (const json& flag : item.value("flags", json::array())) {
        each.flags |= flags.at(flag);
      }
    }
  }
  return out;
}

std::vector<NetDevice> devices_of(const json& list) {
  const auto index = [&](const std::string& name) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].at("name") == name) {
        return static_cast<int>(i + 1);
      }
    }
    return 0;
  };
  std::vector<NetDevice> out;
  for (const json& item : list) {
    NetDevice& device = out.emplace_back();
    device.name = item.at("name");
    device.ifindex = index(device.name);
    device.up = item.value("up", true);
    device.loopback = item.value("loopback", false);
    device.kind = item.value("kind", "");
    device.hardware = item.value("hardware", false);
    device.lower = index(item.value("lower", ""));
    device.master = index(item.value("master", ""));
    device.altnames = item.value("altnames", std::vector<std::string>());
    device.addresses = addresses_of(item.value("addresses", json::array()));
  }
  return out;
}

}  // namespace

TEST_CASE("rail cases: the address of a device") {
  REQUIRE(cases().at("choices").size() > 20);
  for (const json& item : cases().at("choices")) {
    CAPTURE(item.dump());
    const int family = item.value("family", 0);
    const AddressChoice choice =
        choose_address(addresses_of(item.at("addresses")),
                       family == 4   ? AddressFamily::v4
                       : family == 6 ? AddressFamily::v6
                                     : AddressFamily::any,
                       item.value("asked", false), address_of(item.value("current", "")));
    CHECK((choice.address.present() ? choice.address.host_text() : "") == item.value("want", ""));
    CHECK(choice.note == item.value("note", ""));
  }
}

TEST_CASE("rail cases: what a list lets through") {
  for (const json& item : cases().at("filters")) {
    CAPTURE(item.dump());
    for (const std::string name : item.at("names")) {
      CHECK(name_wanted(item.at("list"), name));
    }
    for (const std::string name : item.at("not")) {
      CHECK_FALSE(name_wanted(item.at("list"), name));
    }
  }
}

TEST_CASE("rail cases: the devices that become rails") {
  REQUIRE(cases().at("lists").size() > 20);
  for (const json& item : cases().at("lists")) {
    CAPTURE(item.at("what").get<std::string>());
    std::vector<HcaPort> hcas;
    for (const json& hca : item.value("hcas", json::array())) {
      hcas.push_back({hca.at("hca"), 1, hca.at("netdevs").get<std::set<std::string>>()});
    }
    const auto devices = devices_of(item.at("devices"));
    Params params;
    params.ifname = item.value("ifname", "");
    params.ib_hca = item.value("ib_hca", "");
    const DeviceChoice choice = choose_rails(devices, hcas, params);
    CHECK(choice.names == item.at("rails").get<std::vector<std::string>>());
    const auto says = [](const std::string& text, const json& parts) {
      CAPTURE(text);
      CHECK(text.empty() == parts.empty());
      for (const std::string part : parts) {
        CAPTURE(part);
        CHECK(text.find(part) != std::string::npos);
      }
    };
    says(choice.notes, item.value("notes", json::array()));
    says(choice.remarks, item.value("remarks", json::array()));
  }
}

TEST_CASE("rail cases: the address of one host") {
  for (const json& item : cases().at("addresses")) {
    Address address = address_of(item.at("text"));
    if (item.at("as") != "peer" || !address.present() || address.loopback() ||
        item.at("text").get<std::string>().starts_with("::ffff:")) {
      continue;  // of texts, which the plugin never reads; of loopback: address_test.cpp
    }
    CAPTURE(item.dump());
    address.port = 1;
    CHECK(address.reachable() == item.at("valid"));
  }
}

TEST_CASE(
    "a device is told apart by its port: IPoIB devices by their GUID, not by their queue pair") {
  NetDevice ethernet;
  ethernet.ifindex = 7;
  ethernet.hardware_address = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55};
  CHECK(guid_of(ethernet) == 0x554433221102ULL);
  const auto ipoib = [](std::uint8_t last) {
    NetDevice device;
    device.ifindex = last;
    // Flags and queue pair number, subnet prefix, port GUID (RFC 4391, section 9.1.1).
    device.hardware_address = {0x80, 0x00, 0x02, 0x08, 0xfe, 0x80, 0,    0,    0,    0,
                               0,    0,    0xb8, 0xce, 0xf6, 0x03, 0x00, 0x12, 0x34, last};
    return guid_of(device);
  };
  CHECK(ipoib(0x56) != ipoib(0x57));
  NetDevice child;  // ib0.8001: the same port under another partition and queue pair
  child.hardware_address = {0x80, 0x00, 0x02, 0x99, 0xfe, 0x80, 0,    0,    0,    0,
                            0,    0,    0xb8, 0xce, 0xf6, 0x03, 0x00, 0x12, 0x34, 0x56};
  CHECK(guid_of(child) == ipoib(0x56));
  NetDevice none;  // a tunnel
  none.ifindex = 9;
  CHECK(guid_of(none) == 9);
  none.hardware_address = {0, 0, 0, 0, 0, 0};
  CHECK(guid_of(none) == 9);
}
