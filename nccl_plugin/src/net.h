// The one internal interface behind every ABI version. abi/ translates NCCL's tables to this and
// nothing else; everything below it knows no NCCL type. Sizes in bytes, times in nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fabric {

// Same numbers as ncclResult_t.
enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

// Same numbers as ncclDebugLogLevel and the subsystem bit of NCCL_NET.
enum class LogLevel : int { none = 0, version = 1, warn = 2, info = 3, abort = 4, trace = 5 };
inline constexpr unsigned long kLogSubsystemNet = 0x10;
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

inline constexpr std::size_t kHandleSize = 128;             // NCCL_NET_HANDLE_MAXSIZE
inline constexpr int kMaxRequests = 32;                     // NCCL_NET_MAX_REQUESTS, per comm
inline constexpr int kMaxGroupedReceives = 8;               // our maxRecvs
inline constexpr std::uintptr_t kOptionalCompletion = 0x1;  // NCCL_NET_OPTIONAL_RECV_COMPLETION
// Kinds of memory; same bits as NCCL_PTR_HOST, NCCL_PTR_CUDA and NCCL_PTR_DMABUF.
inline constexpr int kMemoryHost = 0x1;
inline constexpr int kMemoryCuda = 0x2;
inline constexpr int kMemoryDmaBuf = 0x4;

struct DeviceProperties {
  std::string name;        // netdev name, or the verbs device's
  std::string pci_path;    // empty: no PCI device (veth, soft-RoCE)
  std::uint64_t guid = 0;  // equal guids: the same physical port
  int speed_mbps = 10'000;
  int port = 1;
  float latency_us = 0.0F;
  int max_comms = 65536;
  int max_receives = kMaxGroupedReceives;
  bool registration_is_global = false;
  int memory_kinds = kMemoryHost;  // bits: what a comm of this device reads and writes
  // -1: undefined. NCCL compares it with other hosts' (src/graph/search.cc of 2.30), so a number
  // would have to mean the same rail on each of them; the place in this host's list does not.
  std::int16_t rail_id = -1;
};

class Request;  // owned by its comm; freed by the test() that reports done
class ListenComm;
class SendComm;
class RecvComm;
class Region;  // registered memory; ended by deregister_memory

// Memory to be registered.
struct MemoryRange {
  void* data = nullptr;
  std::size_t size = 0;
  int kind = kMemoryHost;
  int dmabuf = -1;  // descriptor, with kMemoryDmaBuf; `data` is the address in that address space
  std::uint64_t dmabuf_offset = 0;
};

// What was received into device memory, for iflush.
struct FlushRange {
  void* data = nullptr;
  std::size_t size = 0;
  Region* region = nullptr;
};

// One receive of a group.
struct ReceiveSlot {
  void* data;
  std::size_t size;
  int tag;
  Region* region = nullptr;  // that `data` lies in; null: it was never registered
};

// A process has one Net. Every call returns at once; "not yet" is success with a null out-pointer
// (connect, accept, isend, irecv) or done = false. Calls for different comms may come from
// different threads at the same time; calls for one comm do not overlap.
class Net {
 public:
  virtual ~Net() = default;

  // Counts references: once per communicator in NCCL. An error makes NCCL fall back.
  virtual Result init(Logger logger) = 0;
  virtual Result finalize() = 0;
  virtual Result devices(int* count) = 0;
  virtual Result properties(int device, const DeviceProperties** out) = 0;

  virtual Result listen(int device, std::span<std::byte, kHandleSize> handle, ListenComm** out) = 0;
  virtual Result connect(int device, std::span<const std::byte, kHandleSize> handle,
                         int traffic_class, SendComm** out) = 0;
  virtual Result accept(ListenComm* comm, RecvComm** out) = 0;
  virtual Result close(ListenComm* comm) = 0;
  virtual Result close(SendComm* comm) = 0;  // cancels what is not done
  virtual Result close(RecvComm* comm) = 0;

  // invalid_argument: nothing here can use memory of that kind. Any thread.
  virtual Result register_memory(const MemoryRange& range, Region** out) = 0;
  virtual Result deregister_memory(Region* region) = 0;

  // `region`: that `data` lies in; null: it was never registered.
  virtual Result isend(SendComm* comm, const void* data, std::size_t size, int tag, Request** out,
                       Region* region = nullptr) = 0;
  // `optional_completion`: NCCL passed 0x1 in *request (LL protocols poll flags in the data).
  virtual Result irecv(RecvComm* comm, std::span<const ReceiveSlot> slots, bool optional_completion,
                       Request** out) = 0;
  // Makes what was received visible to the device that the memory is of. Null: it is already.
  virtual Result iflush(RecvComm* comm, std::span<const FlushRange> ranges, Request** out) = 0;
  // sizes: null, or one element per grouped receive (one for a send).
  virtual Result test(Request* request, bool* done, int* sizes) = 0;

  // Extension (exported as fabricWait_v1): blocks until some request of this process may have
  // progressed, or timeout_us passed. Lets fabric-perf ranks block rather than spin.
  virtual Result wait(int timeout_us) = 0;
  // Extension (fabricWake_v1): ends every wait() of this process, or the next one. From any thread.
  virtual Result wake() = 0;
};

Net& net();

}  // namespace fabric
