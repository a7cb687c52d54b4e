// libnccl-net-plain.so: the plainest net plugin there can be, as something to compare with: one TCP
// connection per comm, on one device, no chunks, no acknowledgements, no failover. When the device
// goes, TCP sits it out. Tables v8 to v12. NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY choose
// devices.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "abi/tables.h"
#include "plain/comm.h"
#include "plain/devices.h"

namespace {

// NOLINTBEGIN(google-build-using-namespace): this file is one table
using namespace fabric::abi;
using namespace fabric::plain;
// NOLINTEND(google-build-using-namespace)

std::vector<Device> devices_found;

// Inside NCCL's 128 bytes; `pending` is the caller's own between two calls of connect.
struct Handle {
  sockaddr_storage address_part() const {
    sockaddr_storage out{};
    std::memcpy(&out, raw, sizeof raw);
    return out;
  }
  unsigned char raw[sizeof(sockaddr_in6)];
  Comm* pending;
};
static_assert(sizeof(Handle) <= 128);

void set_port_zero(sockaddr_storage* a) {
  if (a->ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(a)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(a)->sin_port = 0;
  }
}

void tune(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Status init(LogFunction log) {
  log_to(log);
  devices_found = find_devices();
  return devices_found.empty() ? fail(kSystem, "no device", ENODEV) : kOk;
}

Status devices(int* count) {
  if (count == nullptr) return kInvalid;
  *count = static_cast<int>(devices_found.size());
  return kOk;
}

bool known(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < devices_found.size();
}

template <typename Properties>
Status get_properties(int device, Properties* out) {
  if (out == nullptr || !known(device)) return kInvalid;
  Device& d = devices_found[static_cast<std::size_t>(device)];
  *out = {};
  out->name = d.name.data();
  out->guid = static_cast<std::uint64_t>(device);
  out->memory_kinds = kMemoryHost;
  out->speed_mbps = d.speed_mbps;
  out->port = 1;
  out->max_comms = 65536;
  out->max_receives = static_cast<int>(kMaxGroup);
  if constexpr (requires { out->members; }) {
    out->members.count = 1;
    out->members.devices[0] = device;
    out->max_p2p_bytes = out->max_collective_bytes = kMaxMessage;
  }
  if constexpr (requires { out->max_multi_request; }) out->max_multi_request = 1;
  if constexpr (requires { out->rail_id; }) out->rail_id = out->plane_id = kIdUndefined;
  return kOk;
}

Status listen(int device, void* handle, void** comm) {
  if (handle == nullptr || comm == nullptr || !known(device)) return kInvalid;
  sockaddr_storage address = devices_found[static_cast<std::size_t>(device)].address;
  set_port_zero(&address);
  const int fd = ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  auto listener = std::make_unique<Comm>(fd, false);
  socklen_t length = length_of(address);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(fd, 16) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return fail(kSystem, "listen", errno);
  }
  Handle h{};
  std::memcpy(h.raw, &address, sizeof h.raw);
  std::memcpy(handle, &h, sizeof h);
  *comm = listener.release();
  return kOk;
}

Status connect(int device, void* handle, void** comm) {
  if (handle == nullptr || comm == nullptr || !known(device)) return kInvalid;
  *comm = nullptr;
  auto* h = static_cast<Handle*>(handle);
  const sockaddr_storage to = h->address_part();
  if (h->pending == nullptr) {
    sockaddr_storage from = devices_found[static_cast<std::size_t>(device)].address;
    set_port_zero(&from);
    const int fd = ::socket(from.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return fail(kSystem, "socket", errno);
    auto c = std::make_unique<Comm>(fd, true);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&from), length_of(from)) != 0 ||
        (::connect(fd, reinterpret_cast<const sockaddr*>(&to), length_of(to)) != 0 &&
         errno != EINPROGRESS)) {
      return fail(kSystem, "connect", errno);
    }
    h->pending = c.release();
  }
  // A connected socket has a peer; one that failed has an error.
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(h->pending->fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    delete std::exchange(h->pending, nullptr);
    return fail(kRemote, "connect", error);
  }
  sockaddr_storage peer{};
  length = sizeof peer;
  if (::getpeername(h->pending->fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return kOk;
  tune(h->pending->fd);
  *comm = std::exchange(h->pending, nullptr);
  return kOk;
}

Status accept(void* listener, void** comm, OffloadHandle**) {
  if (listener == nullptr || comm == nullptr) return kInvalid;
  *comm = nullptr;
  const int fd =
      ::accept4(static_cast<Comm*>(listener)->fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return errno == EAGAIN || errno == EINTR ? kOk : fail(kSystem, "accept", errno);
  tune(fd);
  *comm = new Comm(fd, false);
  return kOk;
}

Status register_memory(void*, void* data, std::size_t, int kind, void** region) {
  if (region == nullptr || kind != kMemoryHost) return kInvalid;
  *region = data;
  return kOk;
}
Status register_dmabuf(void*, void*, std::size_t, int, std::uint64_t, int, void**) {
  return kInvalid;
}
Status deregister_memory(void*, void*) { return kOk; }

template <typename Size>
Status isend(void* comm, void* data, Size size, int tag, void** request) {
  const Slot slot{static_cast<std::byte*>(data), static_cast<std::size_t>(size), tag};
  return post(static_cast<Comm*>(comm), std::span(&slot, 1), request);
}

template <typename Size>
Status irecv(void* comm, int count, void** data, const Size* sizes, const int* tags,
             void** request) {
  if (count < 1 || count > static_cast<int>(kMaxGroup) || data == nullptr || sizes == nullptr ||
      tags == nullptr) {
    return kInvalid;
  }
  std::array<Slot, kMaxGroup> slots{};
  for (int i = 0; i < count; ++i) {
    slots[static_cast<std::size_t>(i)] = {static_cast<std::byte*>(data[i]),
                                          static_cast<std::size_t>(sizes[i]), tags[i]};
  }
  return post(static_cast<Comm*>(comm), std::span(slots).first(static_cast<std::size_t>(count)),
              request);
}

Status iflush(void*, int, void**, int*, void**, void** request) {
  if (request == nullptr) return kInvalid;
  *request = nullptr;
  return kOk;
}

Status test(void* request, int* done, int* sizes) {
  if (request == nullptr || done == nullptr) return kInvalid;
  auto* r = static_cast<Request*>(request);
  *done = 0;
  if (!r->done) {
    const Status status = progress(r->comm);
    if (status != kOk) return status;
  }
  if (r->done) {
    *done = 1;
    for (std::size_t i = 0; sizes != nullptr && i < r->count; ++i) {
      sizes[i] = static_cast<int>(r->slots[i].size);
    }
    release(r);
  }
  return kOk;
}

Status close(void* comm) {
  delete static_cast<Comm*>(comm);
  return comm == nullptr ? kInvalid : kOk;
}

// The calls whose arguments differ between versions.
template <typename Table>
constexpr Table make_table() {
  constexpr bool kContext = requires(Table t) { t.finalize; };
  constexpr bool kProfiles = kContext || std::is_same_v<Table, NetV10>;
  using Size = typename Table::Size;
  Table t{};
  t.name = "PLAIN";
  t.devices = devices;
  t.get_properties = get_properties<typename Table::Properties>;
  t.accept = accept;
  t.register_memory = register_memory;
  t.register_dmabuf = register_dmabuf;
  t.deregister_memory = deregister_memory;
  t.iflush = iflush;
  t.test = test;
  t.close_send = t.close_receive = t.close_listen = close;
  if constexpr (kContext) {
    t.init = [](void** context, std::uint64_t, CommConfig*, LogFunction log, ProfilerCallback) {
      if (context == nullptr) return kInvalid;
      *context = &devices_found;
      return init(log);
    };
    t.listen = [](void*, int device, void* handle, void** comm) {
      return listen(device, handle, comm);
    };
    t.connect = [](void*, int device, void* handle, void** comm, OffloadHandle**) {
      return connect(device, handle, comm);
    };
    t.finalize = [](void* context) { return context == nullptr ? kInvalid : kOk; };
  } else {
    t.listen = listen;
  }
  if constexpr (std::is_same_v<Table, NetV10>) {
    t.init = [](LogFunction log, ProfilerCallback) { return init(log); };
    t.connect = [](int device, CommConfig*, void* handle, void** comm, OffloadHandle**) {
      return connect(device, handle, comm);
    };
  } else if constexpr (!kContext) {
    t.init = init;
    t.connect = [](int device, void* handle, void** comm, OffloadHandle**) {
      return connect(device, handle, comm);
    };
  }
  if constexpr (kProfiles) {
    t.isend = [](void* comm, void* data, Size size, int tag, void*, void*, void** request) {
      return isend(comm, data, size, tag, request);
    };
    t.irecv = [](void* comm, int count, void** data, Size* sizes, int* tags, void**, void**,
                 void** request) { return irecv(comm, count, data, sizes, tags, request); };
  } else {
    t.isend = [](void* comm, void* data, Size size, int tag, void*, void** request) {
      return isend(comm, data, size, tag, request);
    };
    t.irecv = [](void* comm, int count, void** data, Size* sizes, int* tags, void**,
                 void** request) { return irecv(comm, count, data, sizes, tags, request); };
  }
  return t;
}

}  // namespace

// A table is declared before it is defined: extern "C" on a definition would be a declaration.
#define PLAIN_TABLE(type, symbol)                                \
  extern "C" __attribute__((visibility("default"))) type symbol; \
  constinit type symbol = make_table<type>()

PLAIN_TABLE(NetV8, ncclNetPlugin_v8);
PLAIN_TABLE(NetV9, ncclNetPlugin_v9);
PLAIN_TABLE(NetV10, ncclNetPlugin_v10);
PLAIN_TABLE(NetV11, ncclNetPlugin_v11);
PLAIN_TABLE(NetV12, ncclNetPlugin_v12);
