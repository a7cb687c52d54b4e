#include "verbs/gid_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace fabric::verbs {

namespace {

constexpr int kMappedBits = 96;  // ::ffff:0:0/96

bool in_prefix(const Gid& gid, const Gid& prefix, int bits) {
  for (int bit = 0; bit < bits; ++bit) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    const auto mask = static_cast<std::uint8_t>(0x80U >> static_cast<unsigned>(bit % 8));
    if ((gid[byte] & mask) != (prefix[byte] & mask)) {
      return false;
    }
  }
  return true;
}

// Why this entry may not be used; empty: it may.
std::string refusal(const GidEntry& entry, const GidRules& rules) {
  if (is_zero(entry.gid)) {
    return "empty";
  }
  if (is_link_local(entry.gid)) {
    return "link-local";
  }
  const GidType wanted = rules.roce_version == 1 ? GidType::roce_v1 : GidType::roce_v2;
  if (entry.type != wanted) {
    return rules.roce_version == 1 ? "not RoCE v1" : "not RoCE v2";
  }
  if (!in_prefix(entry.gid, rules.range, rules.range_bits)) {
    return "outside NCCL_IB_ADDR_RANGE";
  }
  return {};
}

int preference(const GidEntry& entry, const GidRules& rules) {
  if (rules.address && entry.gid == *rules.address) {
    return 2;
  }
  const bool wanted =
      rules.family == GidFamily::any || (rules.family == GidFamily::ipv4) == is_ipv4(entry.gid);
  return wanted ? 1 : 0;
}

}  // namespace

bool is_ipv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

bool is_link_local(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0U) == 0x80; }

bool is_zero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

std::string text_of(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET6, gid.data(), text.data(), text.size());
  return text.data();
}

GidChoice choose_gid(std::span<const GidEntry> table, const GidRules& rules) {
  GidChoice choice;
  int best = -1;
  std::string refused;
  for (const GidEntry& entry : table) {
    if (rules.index >= 0 && entry.index != rules.index) {
      continue;
    }
    // An operator who names an index means it, whatever the entry's type or range.
    const std::string why = rules.index >= 0 && !is_zero(entry.gid) ? "" : refusal(entry, rules);
    if (!why.empty()) {
      refused += (refused.empty() ? "" : ", ") + std::to_string(entry.index) + " " + why;
      continue;
    }
    if (const int rank = preference(entry, rules); rank > best) {
      best = rank;
      choice.entry = entry;
    }
  }
  if (!choice.entry) {
    choice.why_not = rules.index >= 0 ? "no GID at index " + std::to_string(rules.index)
                                      : "no usable GID" + (refused.empty() ? ": the table is empty"
                                                                           : " (" + refused + ")");
  }
  return choice;
}

bool parse_range(const std::string& text, GidRules& rules) {
  const std::size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  Gid prefix{};
  int most = 128;
  if (::inet_pton(AF_INET6, address.c_str(), prefix.data()) != 1) {
    prefix = {};
    prefix[10] = prefix[11] = 0xff;
    if (::inet_pton(AF_INET, address.c_str(), prefix.data() + 12) != 1) {
      return false;
    }
    most = 32;
  }
  int bits = most;
  if (slash != std::string::npos) {
    const char* first = text.data() + slash + 1;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, bits);
    if (error != std::errc{} || end != last || bits < 0 || bits > most) {
      return false;
    }
  }
  rules.range = prefix;
  rules.range_bits = most == 32 ? kMappedBits + bits : bits;
  return true;
}

}  // namespace fabric::verbs
