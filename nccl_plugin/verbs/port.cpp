#include "verbs/port.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace fabric::verbs {

namespace {

constexpr int kMostEntries = 4096;  // of a table; a driver that claims more is not believed

int lanes(std::uint8_t width) {
  switch (width) {
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 1;
  }
}

// Mbit/s of one lane.
int lane_speed(unsigned speed) {
  switch (speed) {
    case 1:
      return 2'500;  // SDR
    case 2:
      return 5'000;  // DDR
    case 4:          // QDR
    case 8:          // FDR10
      return 10'000;
    case 16:
      return 14'000;  // FDR
    case 32:
      return 25'000;  // EDR
    case 64:
      return 50'000;  // HDR
    case 128:
      return 100'000;  // NDR
    default:
      return 2'500;
  }
}

std::string port_directory(const Device& device, const std::string& name, std::uint8_t port) {
  return std::string(device.verbs().sysfs) + "/infiniband/" + name + "/ports/" +
         std::to_string(static_cast<int>(port));
}

GidType type_in_sysfs(const std::string& directory, int index) {
  std::ifstream file(directory + "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  std::getline(file, type);
  if (type == "RoCE v2") {
    return GidType::roce_v2;
  }
  return type == "IB/RoCE v1" ? GidType::roce_v1 : GidType::unknown;
}

std::vector<std::uint16_t> pkeys_in_sysfs(const std::string& directory, int count) {
  std::vector<std::uint16_t> table(static_cast<std::size_t>(count), 0);
  for (std::size_t index = 0; index < table.size(); ++index) {
    std::ifstream file(directory + "/pkeys/" + std::to_string(index));
    unsigned pkey = 0;  // "0xffff"
    if (file >> std::hex >> pkey) {
      table[index] = static_cast<std::uint16_t>(pkey);
    }
  }
  return table;
}

GidType type_of(std::uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return GidType::infiniband;
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::roce_v1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::roce_v2;
    default:
      return GidType::unknown;
  }
}

}  // namespace

std::optional<PortState> query_port(const Device& device, std::uint8_t port, Error& error) {
  ibv_port_attr found{};
  if (const int code = device.verbs().query_port(device.context(), port, &found); code != 0) {
    error =
        failed("ibv_query_port " + std::to_string(port), device.name(), code < 0 ? errno : code);
    return std::nullopt;
  }
  PortState state;
  state.active = found.state == IBV_PORT_ACTIVE;
  state.ethernet = found.link_layer == IBV_LINK_LAYER_ETHERNET;
  state.needs_grh = (found.flags & IBV_QPF_GRH_REQUIRED) != 0;
  state.lid = found.lid;
  state.mtu = found.active_mtu;
  state.gids = std::clamp(found.gid_tbl_len, 0, kMostEntries);
  state.pkeys = std::min<int>(found.pkey_tbl_len, kMostEntries);
  state.speed_mbps = lanes(found.active_width) * lane_speed(found.active_speed);
  return state;
}

std::vector<GidEntry> read_gids(const Device& device, std::uint8_t port, int count) {
  std::vector<GidEntry> table;
  const Functions& verbs = device.verbs();
  std::string directory;
  for (int index = 0; index < count; ++index) {
    GidEntry entry;
    entry.index = index;
    ibv_gid_entry found{};
    const int code =
        verbs.query_gid_ex(device.context(), port, static_cast<std::uint32_t>(index), &found);
    if (code == 0) {
      std::copy_n(found.gid.raw, entry.gid.size(), entry.gid.begin());
      entry.type = type_of(found.gid_type);
      entry.ifindex = static_cast<int>(found.ndev_ifindex);
    } else if (code == EOPNOTSUPP) {
      ibv_gid gid{};
      if (verbs.query_gid(device.context(), port, index, &gid) != 0) {
        continue;
      }
      std::copy_n(gid.raw, entry.gid.size(), entry.gid.begin());
      if (directory.empty()) {
        directory = port_directory(device, device.present_name(), port);
      }
      entry.type = type_in_sysfs(directory, index);
    } else {
      continue;
    }
    if (!is_zero(entry.gid)) {
      table.push_back(entry);
    }
  }
  return table;
}

std::vector<std::uint16_t> read_pkeys(const Device& device, std::uint8_t port, int count) {
  std::vector<std::uint16_t> table(static_cast<std::size_t>(count), 0);
  bool unreadable = false;
  for (int index = 0; index < count; ++index) {
    __be16 pkey = 0;
    if (device.verbs().query_pkey(device.context(), port, index, &pkey) == 0) {
      table[static_cast<std::size_t>(index)] = be16toh(pkey);
    } else {
      unreadable = true;
    }
  }
  if (const std::string name = unreadable ? device.present_name() : device.name();
      name != device.name()) {
    return pkeys_in_sysfs(port_directory(device, name, port), count);
  }
  return table;
}

std::optional<std::uint16_t> find_pkey(const std::vector<std::uint16_t>& table, std::uint16_t pkey,
                                       std::uint16_t index) {
  constexpr unsigned kFullMember = 0x8000;
  const auto same = [pkey](std::uint16_t other) {
    return other != 0 && ((other ^ pkey) & ~kFullMember) == 0;
  };
  if (index < table.size() && table[index] != 0 && (pkey == 0 || table[index] == pkey)) {
    return index;
  }
  if (pkey == 0) {
    return std::nullopt;
  }
  std::optional<std::uint16_t> found;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (same(table[i]) &&
        (!found || ((table[i] & kFullMember) != 0 && (table[*found] & kFullMember) == 0))) {
      found = static_cast<std::uint16_t>(i);
    }
  }
  return found;
}

}  // namespace fabric::verbs
