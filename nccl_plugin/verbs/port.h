// A port of a device as it is now: state, addresses, keys. Nothing of it is kept between two dials.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verbs/device.h"
#include "verbs/gid_choice.h"

namespace fabric::verbs {

struct PortState {
  bool active = false;
  bool ethernet = false;       // RoCE
  bool needs_grh = false;      // InfiniBand across subnets
  std::uint16_t lid = 0;       // InfiniBand
  ibv_mtu mtu = IBV_MTU_1024;  // active
  int gids = 0;                // size of the table
  int pkeys = 0;
  int speed_mbps = 0;
};

// nullopt: `error` says why.
std::optional<PortState> query_port(const Device& device, std::uint8_t port, Error& error);

// Every entry of the table that can be read and is not empty. Containers may read only their own
// (EINVAL) and tables have holes (ENODATA, zeros): both are left out. Where libibverbs does not
// tell the type of an entry, sysfs does.
std::vector<GidEntry> read_gids(const Device& device, std::uint8_t port, int count);

// The P_Keys of the table, in host order; 0: an empty or unreadable entry. libibverbs reads them in
// sysfs by the name that the device had when it was opened: under another name now, they are read
// there.
std::vector<std::uint16_t> read_pkeys(const Device& device, std::uint8_t port, int count);

// Where `pkey` is now: at `index` if it is still there, else wherever it moved. `pkey` 0, not known
// yet: whatever is at `index`. The membership bit (0x8000) does not count; a full member is
// preferred. nullopt: it is not in the table.
std::optional<std::uint16_t> find_pkey(const std::vector<std::uint16_t>& table, std::uint16_t pkey,
                                       std::uint16_t index);

}  // namespace fabric::verbs
