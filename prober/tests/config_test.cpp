#include <doctest/doctest.h>

#include <fstream>
#include <functional>

#include "shell/address.h"
#include "shell/json_config.h"

using namespace fabric::prober;
using nlohmann::json;

namespace {

json good() {
  return json::parse(R"({
    "op": "configure", "host_id": 7, "link_interval_us": 10000, "misses": 3, "clock_train_hz": 100,
    "links": [{"index": 1, "netdev": "rail1", "address": "fd00:1::1", "port": 9200},
              {"index": 0, "netdev": "rail0", "address": "10.0.0.1", "port": 9200}],
    "paths": [{"index": 0, "link": 0, "address": "10.0.0.2", "port": 9200, "host_id": 8,
               "clock": true},
              {"index": 1, "link": 1, "address": "fd00:1::2", "port": 9200, "host_id": 8,
               "clock": false}]})");
}

std::string reason(const std::function<void(json&)>& change) {
  json request = good();
  change(request);
  try {
    parse_config(request);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("A good configuration") {
  const Config c = parse_config(good());
  CHECK(c.host_id == 7);
  CHECK(c.link_interval == 10'000'000);
  REQUIRE(c.links.size() == 2);
  CHECK(c.links[0].netdev == "rail0");
  CHECK(format_address(c.links[1].address) == "fd00:1::1");
  REQUIRE(c.paths.size() == 2);
  CHECK(c.paths[0].clock);
  CHECK(c.paths[1].host_id == 8);
  CHECK(c.dscp == 0);
  CHECK(c.synchronized);
}

TEST_CASE("Nothing to probe is a configuration too") {
  json request = good();
  request["links"] = json::array();
  request["paths"] = json::array();
  CHECK(parse_config(request).links.empty());
}

TEST_CASE("A bad one names the key and what is allowed") {
  CHECK(reason([](json& r) { r.erase("host_id"); }) ==
        "host_id: an integer from 0 to 4294967295 is needed");
  CHECK(reason([](json& r) { r["misses"] = 0; }) == "misses: 0 is not within 1..1000");
  CHECK(reason([](json& r) { r["misses"] = -1; }).find("misses: ") == 0);
  CHECK(reason([](json& r) { r["misses"] = 2.5; }).find("misses: ") == 0);
  CHECK(reason([](json& r) { r["synchronized"] = 1; }) == "synchronized: true or false is needed");
  CHECK(reason([](json& r) { r["dscp"] = 64; }).find("dscp: ") == 0);
  CHECK(reason([](json& r) { r["links"] = 5; }).find("links: a list") == 0);
  CHECK(reason([](json& r) { r["links"][0] = 5; }).find("links: its elements") == 0);
  CHECK(reason([](json& r) { r["links"][0]["index"] = 2; }).find("links[0].index: ") == 0);
  CHECK(reason([](json& r) { r["links"][0]["index"] = 0; }) == "links: index 1 is missing");
  CHECK(reason([](json& r) { r["links"][0]["netdev"] = "a/b"; }).find("links[0].netdev") == 0);
  CHECK(reason([](json& r) {
          r["links"][0]["netdev"] = "sixteen-letters-";
        }).find("links[0].netdev") == 0);
  CHECK(reason([](json& r) {
          r["links"][0]["netdev"] = std::string("a\0b", 3);
        }).find("links[0].netdev") == 0);
  CHECK(reason([](json& r) { r["links"][0]["address"] = "10.0.0"; }) ==
        "links[0].address: '10.0.0' is neither IPv4 nor IPv6, or its zone is not rail1");
  CHECK(reason([](json& r) { r["links"][0]["port"] = 0; }).find("links[0].port: ") == 0);
  CHECK(reason([](json& r) { r["paths"][0]["link"] = 2; }).find("paths[0].link: ") == 0);
  CHECK(reason([](json& r) { r["paths"][0]["address"] = "fd00::2"; }) ==
        "paths[0].address: not of the same family as its link's");
  CHECK(reason([](json& r) {
          r["paths"][1] = r["paths"][0];
          r["paths"][1]["index"] = 1;
        }) == "paths[1].address: this path is there twice");
  CHECK(reason([](json& r) {
          r["links"][0] = r["links"][1];
          r["links"][0]["index"] = 1;
        }).find("is there twice") != std::string::npos);
  CHECK(reason([](json& r) { r["paths"][0]["clock"] = 1; }).find("paths[0].clock: ") == 0);
  CHECK(reason([](json& r) { r["links"] = json::array(); }) == "paths: there is no link for them");
  CHECK(reason([](json& r) {
          for (int i = 0; i < 70; ++i) r["links"].push_back(r["links"][0]);
        }) == "links: a list of at most 64 is needed");
}

TEST_CASE("Verbs ports stand beside links") {
  json request = good();
  request["rdma"] = json::parse(R"([{"link": 1, "device": "mlx5_1", "port": 2}])");
  const Config c = parse_config(request);
  CHECK(c.udp_links() == 2);
  CHECK(c.udp_paths() == 2);
  REQUIRE(c.links.size() == 3);
  CHECK(c.links[2].udp_link == 1);
  CHECK(c.links[2].device == "mlx5_1");
  REQUIRE(c.paths.size() == 3);
  CHECK(c.paths[2].link == 2);
  const auto refused = [&](const char* ports) {
    return reason([&](json& r) { r["rdma"] = json::parse(ports); });
  };
  CHECK(refused("7") == "rdma: a list of at most 64 is needed");
  CHECK(refused(R"([{"link": 2, "device": "a", "port": 1}])").find("rdma[0].link: ") == 0);
  CHECK(refused(R"([{"link": 0, "device": "", "port": 1}])").find("rdma[0].device: ") == 0);
  CHECK(refused(R"([{"link": 0, "device": "a", "port": 0}])").find("rdma[0].port: ") == 0);
  CHECK(refused(R"([{"link": 0, "device": "a", "port": 1}, {"link": 0, "device": "b", "port": 1}])")
            .find("is there twice") != std::string::npos);
}

TEST_CASE("Names and addresses: the cases that daemon and plugin are tested with, too") {
  const json cases = json::parse(std::ifstream(FABRIC_RAIL_CASES));
  REQUIRE(cases.at("names").size() > 15);
  for (const json& item : cases.at("names")) {
    CAPTURE(item.dump());
    json request = good();
    request["links"][1]["netdev"] = item.at("name");
    const std::string why = reason([&](json& r) { r = request; });
    CHECK(why.empty() == item.at("valid"));
    if (!why.empty()) CHECK(why.find("links[1].netdev: ") == 0);
  }
  REQUIRE(cases.at("addresses").size() > 35);
  for (const json& item : cases.at("addresses")) {
    CAPTURE(item.dump());
    const bool peer = item.at("as") == "peer";
    json request = json::parse(R"({"op": "configure", "host_id": 7, "link_interval_us": 10000,
      "misses": 3, "links": [{"index": 0, "netdev": "rail0", "address": "10.0.0.1", "port": 9200}],
      "paths": []})");
    if (peer) {
      request["links"][0]["address"] = item.value("of", "10.0.0.1");
      request["paths"].push_back(
          {{"index", 0}, {"link", 0}, {"address", item.at("text")}, {"port", 9200}});
    } else {
      request["links"][0]["address"] = item.at("text");
    }
    const std::string why = reason([&](json& r) { r = request; });
    CHECK(why.empty() == item.at("valid"));
    if (!why.empty()) {
      CHECK(why.find(peer ? "paths[0].address: " : "links[0].address: ") == 0);
      continue;
    }
    const Config made = parse_config(request);
    CHECK(format_address(peer ? made.paths[0].peer : made.links[0].address) ==
          item.value("is", item.at("text").get<std::string>()));
  }
}

TEST_CASE("A link without an address yet") {
  json request = good();
  request["links"][1]["address"] = "0.0.0.0";
  CHECK(reason([&](json& r) { r = request; }).empty());
}

TEST_CASE("Addresses of both families there and back") {
  for (const char* text : {"10.1.2.3", "fd00::1", "fe80::1"}) {
    const auto a = parse_address(text, 9200);
    REQUIRE(a);
    CHECK(format_address(*a) == text);
    sockaddr_storage sa{};
    CHECK(to_sockaddr(*a, 3, sa) > 0);
    CHECK(from_sockaddr(sa) == *a);
  }
  CHECK_FALSE(parse_address("::ffff:10.0.0.1", 1));
  CHECK_FALSE(parse_address("host", 1));
  CHECK_FALSE(parse_address(std::string("10.0.0.1\0x", 10), 1));
}
