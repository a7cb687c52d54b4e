// What v11 and v12 share: a context per communicator, made by init and ended by finalize, which
// holds the communicator's traffic class.
#pragma once

#include <memory>

#include "abi/calls.h"
#include "abi/tables.h"

namespace fabric::abi {

struct Context {
  int traffic_class;
};

inline Status init_context(void** context, std::uint64_t /*communicator*/, CommConfig* config,
                           LogFunction log, ProfilerCallback /*profiler*/) noexcept {
  if (context == nullptr) return kInvalid;
  *context = nullptr;
  return guarded([&] {
    auto made = std::make_unique<Context>(
        Context{config != nullptr ? config->traffic_class : kTrafficClassUndefined});
    const std::uint32_t slot = handles().reserve();
    if (slot == HandleTable::kNone) return status(Result::system_error);
    const Status result = init(log);
    if (result != kSuccess) {
      handles().give_back(slot);
      return result;
    }
    *context = handles().publish(slot, Kind::context, made.release());
    return kSuccess;
  });
}

inline Status finalize_context(void* context) noexcept {
  if (handles().inherited(Kind::context, context)) return kSuccess;
  const std::unique_ptr<Context> ended(
      static_cast<Context*>(handles().release(Kind::context, context)));
  return ended == nullptr ? kInvalid : finalize();
}

inline Status listen_in(void* context, int device, void* handle, void** comm) noexcept {
  if (handles().find(Kind::context, context) == nullptr) return kInvalid;
  return listen(device, handle, comm);
}

inline Status connect_in(void* context, int device, void* handle, void** comm,
                         OffloadHandle** /*offload*/) noexcept {
  const auto* found = static_cast<const Context*>(handles().find(Kind::context, context));
  return found == nullptr ? kInvalid : connect(device, found->traffic_class, handle, comm);
}

inline Status isend_profiled(void* comm, void* data, std::size_t size, int tag, void* region,
                             void* /*profile*/, void** request) noexcept {
  return isend_sized(comm, data, size, tag, region, request);
}

inline Status irecv_profiled(void* comm, int count, void** data, std::size_t* sizes, int* tags,
                             void** regions, void** /*profiles*/, void** request) noexcept {
  return irecv_sized(comm, count, data, sizes, tags, regions, request);
}

template <typename Table>
constexpr Table context_table() {
  Table table = common_table<Table>();
  table.init = init_context;
  table.listen = listen_in;
  table.connect = connect_in;
  table.isend = isend_profiled;
  table.irecv = irecv_profiled;
  table.finalize = finalize_context;
  table.set_attributes = nullptr;  // a hint about flows that we have no use for
  return table;
}

}  // namespace fabric::abi
