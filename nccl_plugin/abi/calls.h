// From the tables' C calls to fabric::Net: what all versions share. Every function checks what the
// caller passed, lets no exception through, and answers invalid_argument where a pointer, a count
// or a handle cannot be right.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "abi/handle_table.h"
#include "abi/types.h"
#include "src/net.h"

namespace fabric::abi {

inline constexpr char kName[] = "FABRIC";

constexpr Status status(Result result) { return static_cast<Status>(result); }
inline constexpr Status kSuccess = status(Result::success);
inline constexpr Status kInvalid = status(Result::invalid_argument);

// Runs `body` and turns what it throws into internal_error: nothing may unwind into NCCL.
template <typename Body>
Status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return status(Result::internal_error);
  }
}

Status init(LogFunction log) noexcept;
Status finalize() noexcept;
Status devices(int* count) noexcept;
// Null when there is no such device.
const DeviceProperties* device_properties(int device, Status* result) noexcept;
Status listen(int device, void* handle, void** comm) noexcept;
Status connect(int device, int traffic_class, void* handle, void** comm) noexcept;
Status accept(void* listen_comm, void** comm, OffloadHandle** offload) noexcept;
Status register_memory(void* comm, void* data, std::size_t size, int kind, void** region) noexcept;
Status register_dmabuf(void* comm, void* data, std::size_t size, int kind, std::uint64_t offset,
                       int fd, void** region) noexcept;
Status deregister_memory(void* comm, void* region) noexcept;
Status isend(void* comm, const void* data, std::size_t size, int tag, void* region,
             void** request) noexcept;
Status irecv(void* comm, int count, const ReceiveSlot* slots, void** request) noexcept;
Status iflush(void* comm, int count, void** data, int* sizes, void** regions,
              void** request) noexcept;
Status test(void* request, int* done, int* sizes) noexcept;
Status close_send(void* comm) noexcept;
Status close_receive(void* comm) noexcept;
Status close_listen(void* comm) noexcept;

template <typename Properties>
Status get_properties(int device, Properties* out) noexcept {
  if (out == nullptr) return kInvalid;
  Status result = kSuccess;
  const DeviceProperties* from = device_properties(device, &result);
  if (from == nullptr) return result;
  *out = Properties{};
  // The ABI's char* is read-only by custom; the strings live as long as the Net.
  out->name = const_cast<char*>(from->name.c_str());
  out->pci_path = from->pci_path.empty() ? nullptr : const_cast<char*>(from->pci_path.c_str());
  out->guid = from->guid;
  out->memory_kinds = from->memory_kinds;
  out->registration_is_global = from->registration_is_global ? 1 : 0;
  out->speed_mbps = from->speed_mbps;
  out->port = from->port;
  out->latency_us = from->latency_us;
  out->max_comms = from->max_comms;
  out->max_receives = from->max_receives;
  out->offload_type = kOffloadNone;
  out->offload_version = kOffloadVersionNone;
  if constexpr (requires { out->members; }) {
    out->members.count = 1;
    out->members.devices[0] = device;
    out->max_p2p_bytes = kMaxMessage;
    out->max_collective_bytes = kMaxMessage;
  }
  if constexpr (requires { out->max_multi_request; }) out->max_multi_request = 1;
  if constexpr (requires { out->rail_id; }) {
    out->rail_id = from->rail_id;
    out->plane_id = kIdUndefined;
  }
  return kSuccess;
}

template <std::integral Size>
Status isend_sized(void* comm, void* data, Size size, int tag, void* region,
                   void** request) noexcept {
  if constexpr (std::signed_integral<Size>) {
    if (size < 0) return kInvalid;
  }
  return isend(comm, data, static_cast<std::size_t>(size), tag, region, request);
}

template <std::integral Size>
Status irecv_sized(void* comm, int count, void** data, const Size* sizes, const int* tags,
                   void** regions, void** request) noexcept {
  if (count < 1 || count > kMaxGroupedReceives || data == nullptr || sizes == nullptr ||
      tags == nullptr) {
    return kInvalid;
  }
  ReceiveSlot slots[kMaxGroupedReceives];
  for (int i = 0; i < count; ++i) {
    if constexpr (std::signed_integral<Size>) {
      if (sizes[i] < 0) return kInvalid;
    }
    slots[i] = {data[i], static_cast<std::size_t>(sizes[i]), tags[i],
                regions == nullptr ? nullptr : static_cast<Region*>(regions[i])};
  }
  return irecv(comm, count, slots, request);
}

// The part of a table that is the same in every version.
template <typename Table>
constexpr Table common_table() {
  Table table{};
  table.name = kName;
  table.devices = devices;
  table.get_properties = get_properties<typename Table::Properties>;
  table.accept = accept;
  table.register_memory = register_memory;
  table.register_dmabuf = register_dmabuf;
  table.deregister_memory = deregister_memory;
  table.iflush = iflush;
  table.test = test;
  table.close_send = close_send;
  table.close_receive = close_receive;
  table.close_listen = close_listen;
  table.get_device_region = nullptr;
  table.receive_consumed = nullptr;
  // Null: NCCL takes the devices as they are. Paths are joined inside a comm, not by fused NICs.
  if constexpr (requires { table.make_virtual_device; }) table.make_virtual_device = nullptr;
  return table;
}

}  // namespace fabric::abi

// Symbols that NCCL looks up by name. A table is declared before it is defined: extern "C" on a
// definition with a value would be a declaration with one. Not const: NCCL holds it as non-const.
#define FABRIC_EXPORT extern "C" __attribute__((visibility("default")))
#define FABRIC_EXPORT_TABLE(type, symbol, ...) \
  FABRIC_EXPORT type symbol;                   \
  constinit type symbol = __VA_ARGS__
