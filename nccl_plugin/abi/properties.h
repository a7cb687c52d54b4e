// What a plugin says of one device, per table version.
#pragma once

#include "abi/types.h"

namespace fabric::abi {

struct PropertiesV8 {
  char* name;
  char* pci_path;      // null: no PCI device
  std::uint64_t guid;  // equal guids: the same physical port
  int memory_kinds;    // kMemory bits that regMr takes
  int registration_is_global;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;  // of one grouped receive
  int offload_type;
  int offload_version;
};

struct PropertiesV9 {  // v10 is the same
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int memory_kinds;
  int registration_is_global;
  int force_flush;  // 1: flush even where NCCL thinks it can do without
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int offload_type;
  int offload_version;
  VirtualDevice<kDevicesPerNicV9> members;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
};

struct PropertiesV11 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int memory_kinds;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int offload_type;
  int offload_version;
  VirtualDevice<kDevicesPerNicV9> members;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
  int max_multi_request;
};

struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int memory_kinds;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int offload_type;
  int offload_version;
  VirtualDevice<kDevicesPerNicV12> members;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
  int max_multi_request;
  std::int16_t rail_id;
  std::int16_t plane_id;
};

}  // namespace fabric::abi
