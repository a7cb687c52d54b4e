// Table v10: adds the profiler's arguments (unused) and the traffic class in connect.
#include "abi/calls.h"
#include "abi/tables.h"

namespace fabric::abi {
namespace {

Status init_v10(LogFunction log, ProfilerCallback /*profiler*/) { return init(log); }

Status connect_v10(int device, CommConfig* config, void* handle, void** comm,
                   OffloadHandle** /*offload*/) {
  const int traffic_class = config != nullptr ? config->traffic_class : kTrafficClassUndefined;
  return connect(device, traffic_class, handle, comm);
}

Status isend_v10(void* comm, void* data, std::size_t size, int tag, void* region, void* /*profile*/,
                 void** request) {
  return isend_sized(comm, data, size, tag, region, request);
}

Status irecv_v10(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** regions,
                 void** /*profiles*/, void** request) {
  return irecv_sized(comm, count, data, sizes, tags, regions, request);
}

constexpr NetV10 make_table() {
  NetV10 table = common_table<NetV10>();
  table.init = init_v10;
  table.listen = listen;
  table.connect = connect_v10;
  table.isend = isend_v10;
  table.irecv = irecv_v10;
  return table;
}

}  // namespace
}  // namespace fabric::abi

FABRIC_EXPORT_TABLE(fabric::abi::NetV10, ncclNetPlugin_v10, fabric::abi::make_table());
