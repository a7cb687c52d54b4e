// Types that the net plugin tables of all versions share. Our own declarations of NCCL's network
// plugin ABI: names are ours, order, widths and numbers are the ABI's (tests/abi_layout_test.cpp
// checks every offset). Integers of C's `int` stay int.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/net.h"

namespace fabric::abi {

using Status = int;  // ncclResult_t; the numbers are those of fabric::Result

// Bits of Properties::memory_kinds, and regMr's type.
using fabric::kMemoryCuda;
using fabric::kMemoryDmaBuf;
using fabric::kMemoryHost;
inline constexpr int kTrafficClassUndefined = -1;
inline constexpr std::int16_t kIdUndefined = -1;
inline constexpr std::size_t kDevicesPerNicV9 = 4;  // v9 to v11
inline constexpr std::size_t kDevicesPerNicV12 = 8;
inline constexpr int kOffloadNone = 0;  // the host drives the network
inline constexpr int kOffloadVersionNone = 0;
inline constexpr std::size_t kMaxMessage = std::size_t{1} << 40;    // 1 TiB, v9 and later
inline constexpr std::size_t kMaxMessageV8 = std::size_t{1} << 30;  // NCCL's bound for int sizes

using LogFunction = void (*)(int level, unsigned long subsystems, const char* file, int line,
                             const char* format, ...);
using ProfilerCallback = Status (*)(void** event, int type, void* parent, std::int64_t plugin_id,
                                    void* extra);

// What a device-offloading plugin hands to kernels; we never fill one in.
struct OffloadHandle {
  int type;
  int version;
  void* handle;
  std::size_t size;
  int needs_proxy_progress;
};

struct CommConfig {  // v10 and later
  int traffic_class;
};

template <std::size_t kDevices>
struct VirtualDevice {  // v9 and later
  int count;
  int devices[kDevices];
};

struct FlowAttributes {
  std::int32_t max_concurrent_peers;
  std::int32_t min_concurrent_peers;
  std::int32_t max_flows_per_peer;
  std::int32_t min_flows_per_peer;
};

struct NetAttributes {  // v11 and later
  FlowAttributes send;
  FlowAttributes receive;
  std::uint32_t operation;
  std::uint32_t algorithm;
  std::uint32_t protocol;
};

}  // namespace fabric::abi
