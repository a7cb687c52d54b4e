#include "abi/calls.h"

#include <array>
#include <span>

#include "src/cancel.h"

namespace fabric::abi {
namespace {

std::span<std::byte, kHandleSize> handle_bytes(void* handle) {
  return std::span<std::byte, kHandleSize>(static_cast<std::byte*>(handle), kHandleSize);
}

template <typename Object>
Object* find(Kind kind, const void* handle) noexcept {
  return static_cast<Object*>(handles().find(kind, handle));
}

bool known_comm(const void* comm) noexcept {
  return handles().find(Kind::send, comm) != nullptr ||
         handles().find(Kind::receive, comm) != nullptr;
}

bool inherited_comm(const void* comm) noexcept {
  return handles().inherited(Kind::send, comm) || handles().inherited(Kind::receive, comm);
}

// Calls `make(Object**)` and hands its object out under a key. A null object is NCCL's "not yet".
// `full`: the result where the table is full.
template <typename Object, typename Make>
Status hand_out(Kind kind, void** out, Make&& make, const void* owner = nullptr,
                Result full = Result::system_error) {
  *out = nullptr;
  const std::uint32_t slot = handles().reserve();
  if (slot == HandleTable::kNone) return status(full);
  Object* object = nullptr;
  Result result = Result::internal_error;
  try {
    result = make(&object);
  } catch (...) {
    handles().give_back(slot);
    throw;
  }
  if (result != Result::success || object == nullptr) {
    handles().give_back(slot);
    return status(result);
  }
  *out = handles().publish(slot, kind, object, owner);
  return kSuccess;
}

// Closing what is an ancestor's does nothing, and succeeds: its connections are not the child's to
// end.
template <typename Comm>
Status close(Kind kind, void* handle) noexcept {
  if (handles().inherited(kind, handle)) return kSuccess;
  auto* comm = static_cast<Comm*>(handles().release(kind, handle));
  if (comm == nullptr) return kInvalid;
  if (kind != Kind::listen) handles().end_owned(handle);
  return guarded([&] { return status(net().close(comm)); });
}

}  // namespace

HandleTable& handles() noexcept {
  // Never destroyed: NCCL's threads may still call while the process exits.
  static constinit HandleTable table;
  return table;
}

Status init(LogFunction log) noexcept {
  checked_fork_depth();
  return guarded([&] { return status(net().init(log)); });
}

Status finalize() noexcept {
  return guarded([] { return status(net().finalize()); });
}

Status devices(int* count) noexcept {
  if (count == nullptr) return kInvalid;
  return guarded([&] { return status(net().devices(count)); });
}

const DeviceProperties* device_properties(int device, Status* result) noexcept {
  const DeviceProperties* properties = nullptr;
  *result = guarded([&] {
    int count = 0;
    const Result counted = net().devices(&count);
    if (counted != Result::success) return status(counted);
    if (device < 0 || device >= count) return kInvalid;
    return status(net().properties(device, &properties));
  });
  if (*result != kSuccess) return nullptr;
  if (properties == nullptr) *result = status(Result::internal_error);
  return properties;
}

Status listen(int device, void* handle, void** comm) noexcept {
  if (handle == nullptr || comm == nullptr) return kInvalid;
  return guarded([&] {
    return hand_out<ListenComm>(Kind::listen, comm, [&](ListenComm** out) {
      return net().listen(device, handle_bytes(handle), out);
    });
  });
}

Status connect(int device, int traffic_class, void* handle, void** comm) noexcept {
  if (handle == nullptr || comm == nullptr) return kInvalid;
  return guarded([&] {
    return hand_out<SendComm>(Kind::send, comm, [&](SendComm** out) {
      return net().connect(device, handle_bytes(handle), traffic_class, out);
    });
  });
}

Status accept(void* listen_comm, void** comm, OffloadHandle** /*offload*/) noexcept {
  auto* listener = find<ListenComm>(Kind::listen, listen_comm);
  if (listener == nullptr || comm == nullptr) return kInvalid;
  return guarded([&] {
    return hand_out<RecvComm>(Kind::receive, comm,
                              [&](RecvComm** out) { return net().accept(listener, out); });
  });
}

Status register_range(void* comm, const MemoryRange& range, void** region) {
  if (region == nullptr) return kInvalid;
  *region = nullptr;
  if (!known_comm(comm) || (range.data == nullptr && range.size != 0)) return kInvalid;
  return guarded([&] {
    Region* made = nullptr;
    const Result result = net().register_memory(range, &made);
    *region = made;
    return status(result);
  });
}

Status register_memory(void* comm, void* data, std::size_t size, int kind, void** region) noexcept {
  return register_range(comm, {data, size, kind, -1, 0}, region);
}

Status register_dmabuf(void* comm, void* data, std::size_t size, int /*kind*/, std::uint64_t offset,
                       int fd, void** region) noexcept {
  return register_range(comm, {data, size, kMemoryDmaBuf, fd, offset}, region);
}

Status deregister_memory(void* comm, void* region) noexcept {
  if (inherited_comm(comm)) return kSuccess;
  if (!known_comm(comm) || region == nullptr) return kInvalid;
  return guarded([&] { return status(net().deregister_memory(static_cast<Region*>(region))); });
}

Status isend(void* comm, const void* data, std::size_t size, int tag, void* region,
             void** request) noexcept {
  auto* sender = find<SendComm>(Kind::send, comm);
  if (sender == nullptr || request == nullptr || (data == nullptr && size != 0) ||
      size > kMaxMessage) {
    return kInvalid;
  }
  return guarded([&] {
    return hand_out<Request>(
        Kind::request, request,
        [&](Request** out) {
          return net().isend(sender, data, size, tag, out, static_cast<Region*>(region));
        },
        comm, Result::success);
  });
}

Status irecv(void* comm, int count, const ReceiveSlot* slots, void** request) noexcept {
  auto* receiver = find<RecvComm>(Kind::receive, comm);
  if (receiver == nullptr || request == nullptr) return kInvalid;
  for (int i = 0; i < count; ++i) {
    if ((slots[i].data == nullptr && slots[i].size != 0) || slots[i].size > kMaxMessage) {
      return kInvalid;
    }
  }
  const bool optional = reinterpret_cast<std::uintptr_t>(*request) == kOptionalCompletion;
  return guarded([&] {
    return hand_out<Request>(
        Kind::request, request,
        [&](Request** out) {
          return net().irecv(receiver, {slots, static_cast<std::size_t>(count)}, optional, out);
        },
        comm, Result::success);
  });
}

Status iflush(void* comm, int count, void** data, int* sizes, void** regions,
              void** request) noexcept {
  auto* receiver = find<RecvComm>(Kind::receive, comm);
  if (receiver == nullptr || request == nullptr || count < 1 || count > kMaxGroupedReceives) {
    return kInvalid;
  }
  *request = nullptr;
  FlushRange ranges[kMaxGroupedReceives];
  for (int i = 0; i < count && data != nullptr && sizes != nullptr; ++i) {
    ranges[i] = {data[i], static_cast<std::size_t>(sizes[i] < 0 ? 0 : sizes[i]),
                 regions == nullptr ? nullptr : static_cast<Region*>(regions[i])};
  }
  // A null request is "done" here: a full table is an error.
  return guarded([&] {
    return hand_out<Request>(
        Kind::request, request,
        [&](Request** out) {
          return net().iflush(receiver, {ranges, static_cast<std::size_t>(count)}, out);
        },
        comm);
  });
}

Status test(void* request, int* done, int* sizes) noexcept {
  auto* object = find<Request>(Kind::request, request);
  if (object == nullptr || done == nullptr) return kInvalid;
  *done = 0;
  return guarded([&] {
    bool finished = false;
    const Result result = net().test(object, &finished, sizes);
    if (result != Result::success) return status(result);
    if (finished) {
      handles().release(Kind::request, request);
      *done = 1;
    }
    return kSuccess;
  });
}

Status close_send(void* comm) noexcept { return close<SendComm>(Kind::send, comm); }
Status close_receive(void* comm) noexcept { return close<RecvComm>(Kind::receive, comm); }
Status close_listen(void* comm) noexcept { return close<ListenComm>(Kind::listen, comm); }

}  // namespace fabric::abi

FABRIC_EXPORT int fabricCancelSend_v1(void* comm) {
  using namespace fabric::abi;  // NOLINT(google-build-using-namespace)
  if (handles().inherited(Kind::send, comm)) return kSuccess;
  auto* sender = static_cast<fabric::SendComm*>(handles().release(Kind::send, comm));
  if (sender == nullptr) return kInvalid;
  handles().end_owned(comm);
  return guarded([&] { return status(fabric::cancel(sender)); });
}

FABRIC_EXPORT int fabricWake_v1() {
  return fabric::abi::guarded([] { return fabric::abi::status(fabric::net().wake()); });
}

FABRIC_EXPORT int fabricWait_v1(int timeout_us) {
  if (timeout_us < 0) return fabric::abi::kInvalid;
  return fabric::abi::guarded([&] { return fabric::abi::status(fabric::net().wait(timeout_us)); });
}
