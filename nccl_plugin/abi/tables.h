// The function tables that NCCL finds by dlsym("ncclNetPlugin_v8") ... ("ncclNetPlugin_v12").
// Order is the ABI; members named alike mean the same in every version. Every call returns at once:
// connect and accept say "not yet" with a null comm, isend and irecv with a null request.
#pragma once

#include "abi/properties.h"

namespace fabric::abi {

struct NetV8 {
  using Properties = PropertiesV8;
  using Size = int;
  const char* name;
  Status (*init)(LogFunction log);
  Status (*devices)(int* count);
  Status (*get_properties)(int device, PropertiesV8* out);
  Status (*listen)(int device, void* handle, void** listen_comm);
  Status (*connect)(int device, void* handle, void** send_comm, OffloadHandle** offload);
  Status (*accept)(void* listen_comm, void** receive_comm, OffloadHandle** offload);
  Status (*register_memory)(void* comm, void* data, std::size_t size, int kind, void** region);
  Status (*register_dmabuf)(void* comm, void* data, std::size_t size, int kind,
                            std::uint64_t offset, int fd, void** region);
  Status (*deregister_memory)(void* comm, void* region);
  Status (*isend)(void* comm, void* data, int size, int tag, void* region, void** request);
  Status (*irecv)(void* comm, int count, void** data, int* sizes, int* tags, void** regions,
                  void** request);
  Status (*iflush)(void* comm, int count, void** data, int* sizes, void** regions, void** request);
  Status (*test)(void* request, int* done, int* sizes);
  Status (*close_send)(void* comm);
  Status (*close_receive)(void* comm);
  Status (*close_listen)(void* comm);
  Status (*get_device_region)(void* comm, void* region, void** device_region);
  Status (*receive_consumed)(void* comm, int count, void* request);
};

struct NetV9 {  // sizes become size_t
  using Properties = PropertiesV9;
  using Size = std::size_t;
  const char* name;
  Status (*init)(LogFunction log);
  Status (*devices)(int* count);
  Status (*get_properties)(int device, PropertiesV9* out);
  Status (*listen)(int device, void* handle, void** listen_comm);
  Status (*connect)(int device, void* handle, void** send_comm, OffloadHandle** offload);
  Status (*accept)(void* listen_comm, void** receive_comm, OffloadHandle** offload);
  Status (*register_memory)(void* comm, void* data, std::size_t size, int kind, void** region);
  Status (*register_dmabuf)(void* comm, void* data, std::size_t size, int kind,
                            std::uint64_t offset, int fd, void** region);
  Status (*deregister_memory)(void* comm, void* region);
  Status (*isend)(void* comm, void* data, std::size_t size, int tag, void* region, void** request);
  Status (*irecv)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** regions,
                  void** request);
  Status (*iflush)(void* comm, int count, void** data, int* sizes, void** regions, void** request);
  Status (*test)(void* request, int* done, int* sizes);
  Status (*close_send)(void* comm);
  Status (*close_receive)(void* comm);
  Status (*close_listen)(void* comm);
  Status (*get_device_region)(void* comm, void* region, void** device_region);
  Status (*receive_consumed)(void* comm, int count, void* request);
  Status (*make_virtual_device)(int* device, VirtualDevice<kDevicesPerNicV9>* members);
};

struct NetV10 {  // profiler, per-operation profiler handles, traffic class in connect
  using Properties = PropertiesV9;
  using Size = std::size_t;
  const char* name;
  Status (*init)(LogFunction log, ProfilerCallback profiler);
  Status (*devices)(int* count);
  Status (*get_properties)(int device, PropertiesV9* out);
  Status (*listen)(int device, void* handle, void** listen_comm);
  Status (*connect)(int device, CommConfig* config, void* handle, void** send_comm,
                    OffloadHandle** offload);
  Status (*accept)(void* listen_comm, void** receive_comm, OffloadHandle** offload);
  Status (*register_memory)(void* comm, void* data, std::size_t size, int kind, void** region);
  Status (*register_dmabuf)(void* comm, void* data, std::size_t size, int kind,
                            std::uint64_t offset, int fd, void** region);
  Status (*deregister_memory)(void* comm, void* region);
  Status (*isend)(void* comm, void* data, std::size_t size, int tag, void* region, void* profile,
                  void** request);
  Status (*irecv)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** regions,
                  void** profiles, void** request);
  Status (*iflush)(void* comm, int count, void** data, int* sizes, void** regions, void** request);
  Status (*test)(void* request, int* done, int* sizes);
  Status (*close_send)(void* comm);
  Status (*close_receive)(void* comm);
  Status (*close_listen)(void* comm);
  Status (*get_device_region)(void* comm, void* region, void** device_region);
  Status (*receive_consumed)(void* comm, int count, void* request);
  Status (*make_virtual_device)(int* device, VirtualDevice<kDevicesPerNicV9>* members);
};

// v11 and v12 differ in their properties alone: init runs once per communicator and makes a
// context, the traffic class moves from connect to init, finalize ends the context.
template <typename PropertiesType, std::size_t kDevices>
struct NetWithContext {
  using Properties = PropertiesType;
  using Size = std::size_t;
  const char* name;
  Status (*init)(void** context, std::uint64_t communicator, CommConfig* config, LogFunction log,
                 ProfilerCallback profiler);
  Status (*devices)(int* count);
  Status (*get_properties)(int device, PropertiesType* out);
  Status (*listen)(void* context, int device, void* handle, void** listen_comm);
  Status (*connect)(void* context, int device, void* handle, void** send_comm,
                    OffloadHandle** offload);
  Status (*accept)(void* listen_comm, void** receive_comm, OffloadHandle** offload);
  Status (*register_memory)(void* comm, void* data, std::size_t size, int kind, void** region);
  Status (*register_dmabuf)(void* comm, void* data, std::size_t size, int kind,
                            std::uint64_t offset, int fd, void** region);
  Status (*deregister_memory)(void* comm, void* region);
  Status (*isend)(void* comm, void* data, std::size_t size, int tag, void* region, void* profile,
                  void** request);
  Status (*irecv)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** regions,
                  void** profiles, void** request);
  Status (*iflush)(void* comm, int count, void** data, int* sizes, void** regions, void** request);
  Status (*test)(void* request, int* done, int* sizes);
  Status (*close_send)(void* comm);
  Status (*close_receive)(void* comm);
  Status (*close_listen)(void* comm);
  Status (*get_device_region)(void* comm, void* region, void** device_region);
  Status (*receive_consumed)(void* comm, int count, void* request);
  Status (*make_virtual_device)(int* device, VirtualDevice<kDevices>* members);
  Status (*finalize)(void* context);
  Status (*set_attributes)(void* context, NetAttributes* attributes);
};

using NetV11 = NetWithContext<PropertiesV11, kDevicesPerNicV9>;
using NetV12 = NetWithContext<PropertiesV12, kDevicesPerNicV12>;

// Our extension: blocks until some request of this process may have progressed, or timeout_us.
using WaitV1 = int (*)(int timeout_us);
inline constexpr char kWaitSymbol[] = "fabricWait_v1";
// Ends every such wait of this process, or the next one; from any thread.
using WakeV1 = int (*)();
inline constexpr char kWakeSymbol[] = "fabricWake_v1";
// closeSend without a wait for acknowledgements: nothing is read from the sender's memory any more.
using CancelSendV1 = int (*)(void* comm);
inline constexpr char kCancelSendSymbol[] = "fabricCancelSend_v1";

}  // namespace fabric::abi
