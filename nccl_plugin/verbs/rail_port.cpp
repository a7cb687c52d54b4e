#include "verbs/rail_port.h"

#include <algorithm>
#include <cerrno>

namespace fabric::verbs {

namespace {

constexpr std::uint16_t kDefaultPkey = 0xffff;

}  // namespace

std::optional<RailPort::Reading> RailPort::read(Error& error) {
  const std::string where =
      device_->name() + ":" + std::to_string(static_cast<int>(settings_.port)) + ": ";
  if (device_->gone()) {
    error = {EIO, where + "the device is gone"};
    return std::nullopt;
  }
  const auto state = query_port(*device_, settings_.port, error);
  if (!state) {
    return std::nullopt;
  }
  if (!state->active) {
    error = {ENETDOWN, where + "the port is not active"};
    return std::nullopt;
  }
  Reading reading;
  reading.settings = settings_;
  reading.settings.grh = state->needs_grh;
  reading.terms.ethernet = state->ethernet;
  reading.terms.mtu = static_cast<std::uint8_t>(state->mtu);
  reading.terms.lid = state->lid;
  reading.terms.reads = 1;
  const auto table = read_gids(*device_, settings_.port, state->gids);
  if (state->ethernet) {
    const GidChoice choice = choose_gid(table, rules_);
    if (!choice.entry) {
      error = {EADDRNOTAVAIL, where + choice.why_not};
      return std::nullopt;
    }
    reading.terms.gid = choice.entry->gid;
    reading.settings.gid_index = static_cast<std::uint8_t>(choice.entry->index);
  } else {
    const int index = rules_.index < 0 ? 0 : rules_.index;
    for (const GidEntry& entry : table) {
      if (entry.index == index) {
        reading.terms.gid = entry.gid;
        reading.settings.gid_index = static_cast<std::uint8_t>(index);
      }
    }
  }
  auto pkeys = read_pkeys(*device_, settings_.port, state->pkeys);
  const bool unreadable =
      std::all_of(pkeys.begin(), pkeys.end(), [](auto key) { return key == 0; });
  if (state->ethernet && unreadable) {
    // RoCE has no other. The table may be out of reach though the device is there: a container may
    // not show it.
    pkeys = {kDefaultPkey};
  }
  const auto index = find_pkey(pkeys, pkey_, settings_.pkey_index);
  if (!index) {
    error = {ENOENT, where + "its P_Key is not in the table"};
    return std::nullopt;
  }
  pkey_ = pkeys[*index];
  reading.settings.pkey_index = *index;
  reading.terms.pkey = pkey_;
  return reading;
}

}  // namespace fabric::verbs
