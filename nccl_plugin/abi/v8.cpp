// Table v8: sizes are int; init runs once per process and nothing ends it.
#include "abi/calls.h"
#include "abi/tables.h"

namespace fabric::abi {
namespace {

using Size = NetV8::Size;

Status connect_v8(int device, void* handle, void** comm, OffloadHandle** /*offload*/) {
  return connect(device, kTrafficClassUndefined, handle, comm);
}

Status isend_v8(void* comm, void* data, Size size, int tag, void* region, void** request) {
  return isend_sized(comm, data, size, tag, region, request);
}

Status irecv_v8(void* comm, int count, void** data, Size* sizes, int* tags, void** regions,
                void** request) {
  return irecv_sized(comm, count, data, sizes, tags, regions, request);
}

constexpr NetV8 make_table() {
  NetV8 table = common_table<NetV8>();
  table.init = init;
  table.listen = listen;
  table.connect = connect_v8;
  table.isend = isend_v8;
  table.irecv = irecv_v8;
  return table;
}

}  // namespace
}  // namespace fabric::abi

FABRIC_EXPORT_TABLE(fabric::abi::NetV8, ncclNetPlugin_v8, fabric::abi::make_table());
