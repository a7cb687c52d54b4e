// Choice of a GID, and the tables it is made from.
#include "verbs/gid_choice.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "verbs/tests/kit.h"

using namespace fabric::verbs;

namespace {

Gid mapped(std::uint8_t last) {
  Gid gid{};
  gid[10] = gid[11] = 0xff;
  gid[12] = 10;
  gid[15] = last;
  return gid;
}
Gid of(std::uint8_t first, std::uint8_t second, std::uint8_t last) {
  Gid gid{};
  gid[0] = first;
  gid[1] = second;
  gid[15] = last;
  return gid;
}

const std::vector<GidEntry> kTable{
    {0, of(0xfe, 0x80, 1), GidType::roce_v2, 2}, {1, mapped(1), GidType::roce_v1, 2},
    {2, mapped(1), GidType::roce_v2, 2},         {4, of(0xfd, 0, 9), GidType::roce_v2, 2},
    {7, mapped(2), GidType::roce_v2, 3},
};

int chosen(const GidRules& rules, std::span<const GidEntry> table = kTable) {
  const GidChoice choice = choose_gid(table, rules);
  CHECK(choice.entry.has_value() == choice.why_not.empty());
  return choice.entry ? choice.entry->index : -1;
}

}  // namespace

TEST_CASE("gid: version, family, range and the rail's own address decide") {
  CHECK(chosen({}) == 2);
  CHECK(chosen({.roce_version = 1}) == 1);
  CHECK(chosen({.family = GidFamily::ipv6}) == 4);
  CHECK(chosen({.address = mapped(2)}) == 7);
  GidRules range;
  REQUIRE(parse_range("10.0.0.2/32", range));
  CHECK(chosen(range) == 7);
  REQUIRE(parse_range("fd00::/8", range));
  CHECK(chosen(range) == 4);
}

TEST_CASE("gid: the other family, when the wanted one is not there") {
  const std::vector<GidEntry> ipv6{kTable[0], kTable[3]};
  CHECK(chosen({.family = GidFamily::ipv4}, ipv6) == 4);
}

TEST_CASE("gid: link-local alone is none, and the reason names each entry") {
  const std::vector<GidEntry> local{kTable[0], kTable[1]};
  const GidChoice choice = choose_gid(local, {});
  CHECK(!choice.entry);
  CHECK(choice.why_not == "no usable GID (0 link-local, 1 not RoCE v2)");
  CHECK(choose_gid({}, {}).why_not == "no usable GID: the table is empty");
}

TEST_CASE("gid: an index that was asked for is taken, or nothing is") {
  CHECK(chosen({.index = 1}) == 1);  // whatever its version
  CHECK(chosen({.index = 3}) == -1);
}

TEST_CASE("gid: ranges") {
  GidRules rules;
  CHECK(!parse_range("10.0.0.0/33", rules));
  CHECK(!parse_range("10.0.0.0/", rules));
  CHECK(!parse_range("fd00::/129", rules));
  CHECK(!parse_range("rail0", rules));
  CHECK(!parse_range("10.0.0.0/8x", rules));
  CHECK(rules.range_bits == 0);
  CHECK(parse_range("10.0.0.0/8", rules));
  CHECK(rules.range_bits == 104);
}

TEST_CASE("gid: a table with holes, entries that may not be read, and one that moved") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  const auto device = test::open("a0");
  std::vector<fake::GidRow>& rows = nic.ports[0].gids;
  rows.push_back({mapped(9), GidType::roce_v2, EINVAL});
  rows.push_back({Gid{}, GidType::roce_v2, ENODATA});
  rows.push_back({Gid{}, GidType::roce_v2, 0});
  auto table = read_gids(*device, 1, static_cast<int>(rows.size()));
  CHECK(table.size() == 2);
  CHECK(chosen({}, table) == 1);
  std::swap(rows[1], rows[4]);  // as after a flap
  table = read_gids(*device, 1, static_cast<int>(rows.size()));
  CHECK(chosen({}, table) == 4);
  rows[4].error = ENODATA;  // and gone: no valid one is there until the address is back
  CHECK(chosen({}, read_gids(*device, 1, static_cast<int>(rows.size()))) == -1);
}

TEST_CASE("gid: a libibverbs without query_gid_ex has types from sysfs") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  nic.old_library = true;
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("gids." + std::to_string(::getpid()));
  const std::string sysfs = root.string();
  Functions verbs = fake::Network::functions();
  verbs.sysfs = sysfs.c_str();
  const auto device = test::open("a0", verbs);
  const auto types = root / "infiniband/a0/ports/1/gid_attrs/types";
  std::filesystem::create_directories(types);
  std::ofstream(types / "0") << "IB/RoCE v1\n";
  std::ofstream(types / "1") << "RoCE v2\n";
  const auto table = read_gids(*device, 1, 2);
  std::filesystem::remove_all(root);
  REQUIRE(table.size() == 2);
  CHECK(table[0].type == GidType::roce_v1);
  CHECK(table[1].type == GidType::roce_v2);
}

TEST_CASE("pkey: found where it is now") {
  using Table = std::vector<std::uint16_t>;
  CHECK(find_pkey(Table{0xffff, 0x8001}, 0, 1) == 1);       // first dial: whatever is there
  CHECK(find_pkey(Table{0xffff, 0x8001}, 0x8001, 1) == 1);  // still there
  CHECK(find_pkey(Table{0x8001, 0xffff}, 0x8001, 1) == 0);  // moved
  CHECK(find_pkey(Table{0x0001, 0x8001}, 0x8001, 0) == 1);  // the full member
  CHECK(find_pkey(Table{0, 0x0001}, 0x8001, 0) == 1);       // a limited one will do
  CHECK(!find_pkey(Table{0xffff}, 0x8001, 0));
  CHECK(!find_pkey(Table{0xffff, 0}, 0, 1));
  CHECK(!find_pkey(Table{}, 0, 0));
}
