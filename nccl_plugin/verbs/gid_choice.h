// Which entry of a port's GID table a RoCE path uses. Pure.
//
// Tables are sparse, differ between hosts and change: an entry moves after a flap, and a container
// sees entries that it may not read. So the whole table is read at each dial, and nothing is kept.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace fabric::verbs {

using Gid = std::array<std::uint8_t, 16>;  // network order

enum class GidType : std::uint8_t { unknown, infiniband, roce_v1, roce_v2 };

struct GidEntry {
  int index = 0;
  Gid gid{};
  GidType type = GidType::unknown;
  int ifindex = 0;  // of the network device; 0: not known
};

enum class GidFamily : std::uint8_t { any, ipv4, ipv6 };

// What the operator asked for.
struct GidRules {
  int index = -1;                     // this entry and no other; below 0: choose
  int roce_version = 2;               // 1 or 2
  GidFamily family = GidFamily::any;  // preferred, not required
  Gid range{};                        // with range_bits: only addresses in this prefix
  int range_bits = 0;                 // of a Gid: an IPv4 prefix counts from 96
  std::optional<Gid> address = {};    // the rail's own, preferred to any other
};

// An IPv4 address as a GID holds it: ::ffff:a.b.c.d.
[[nodiscard]] bool is_ipv4(const Gid& gid);
// fe80::/10; of no use between subnets, and the first that tables have.
[[nodiscard]] bool is_link_local(const Gid& gid);
[[nodiscard]] bool is_zero(const Gid& gid);
// "::ffff:192.0.2.1"
[[nodiscard]] std::string text_of(const Gid& gid);

struct GidChoice {
  std::optional<GidEntry> entry;
  std::string why_not;  // when there is none
};

// The best of `table`: of the rail's own address, else of the wanted family, else any; among equals
// the lowest index. Never a link-local one, never one of another RoCE version; with an index, that
// entry or none.
GidChoice choose_gid(std::span<const GidEntry> table, const GidRules& rules);

// "10.0.0.0/8" or "fd00::/16" into `rules`. False: it is no prefix.
bool parse_range(const std::string& text, GidRules& rules);

}  // namespace fabric::verbs
