// Table v9: sizes are size_t; init runs once per process and nothing ends it.
#include "abi/calls.h"
#include "abi/tables.h"

namespace fabric::abi {
namespace {

using Size = NetV9::Size;

Status connect_v9(int device, void* handle, void** comm, OffloadHandle** /*offload*/) {
  return connect(device, kTrafficClassUndefined, handle, comm);
}

Status isend_v9(void* comm, void* data, Size size, int tag, void* region, void** request) {
  return isend_sized(comm, data, size, tag, region, request);
}

Status irecv_v9(void* comm, int count, void** data, Size* sizes, int* tags, void** regions,
                void** request) {
  return irecv_sized(comm, count, data, sizes, tags, regions, request);
}

constexpr NetV9 make_table() {
  NetV9 table = common_table<NetV9>();
  table.init = init;
  table.listen = listen;
  table.connect = connect_v9;
  table.isend = isend_v9;
  table.irecv = irecv_v9;
  return table;
}

}  // namespace
}  // namespace fabric::abi

FABRIC_EXPORT_TABLE(fabric::abi::NetV9, ncclNetPlugin_v9, fabric::abi::make_table());
