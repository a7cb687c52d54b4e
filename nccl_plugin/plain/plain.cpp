// libnccl-net-plain.so: the plainest net plugin there can be, as something to compare with: one TCP
// connection per comm, on one device, no chunks, no acknowledgements, no failover. When the device
// goes, TCP sits it out. Table v11 only. NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY choose devices.
//
// A message is its size in 8 bytes and its payload; messages match receives in order.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/tables.h"

namespace {

using namespace fabric::abi;  // NOLINT(google-build-using-namespace): this file is one table

constexpr Status kOk = 0;
constexpr Status kSystem = 2;
constexpr Status kInvalid = 4;
constexpr Status kRemote = 6;
constexpr std::size_t kMaxRequests = 32;
constexpr int kWarn = 2;

struct Device {
  std::string name;
  sockaddr_storage address{};
  int speed_mbps = 10'000;
};

std::vector<Device> devices_found;
LogFunction logger = nullptr;

Status fail(Status status, const char* what, int error) {
  if (logger != nullptr) {
    logger(kWarn, 0x10, __FILE__, __LINE__, "NET/Plain: %s: %s", what,
           error == 0 ? "connection closed by the peer" : std::strerror(error));
  }
  return status;
}

struct Comm;

struct Request {
  Comm* comm;
  std::byte* data;
  std::size_t size;      // send: of the message; receive: room, then what came
  std::uint64_t header;  // the size as on the wire
  std::size_t moved;     // header and payload bytes so far
  bool done;
};

struct Comm {
  int fd = -1;
  bool sends = false;
  Status failed = kOk;
  std::deque<Request*> queue;  // not done, in order
  explicit Comm(int fd_, bool sends_) : fd(fd_), sends(sends_) {}
  ~Comm() {
    for (Request* r : queue) delete r;
    if (fd >= 0) ::close(fd);
  }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
};

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

socklen_t length_of(const sockaddr_storage& a) {
  return a.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

void set_port_zero(sockaddr_storage* a) {
  if (a->ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(a)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(a)->sin_port = 0;
  }
}

// NCCL's rule: comma list of prefixes; "=" exact names; "^" everything but.
bool wanted(const std::string& name) {
  const char* text = std::getenv("NCCL_SOCKET_IFNAME");
  if (text == nullptr || *text == '\0') return name != "lo";
  std::string list = text;
  const bool exclude = list.front() == '^';
  if (exclude) list.erase(0, 1);
  const bool exact = !list.empty() && list.front() == '=';
  if (exact) list.erase(0, 1);
  bool hit = false;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string item = list.substr(at, comma - at);
    hit |= !item.empty() && (exact ? name == item : name.starts_with(item));
    at = comma + 1;
  }
  return hit != exclude;
}

void find_devices() {
  devices_found.clear();
  const char* family_text = std::getenv("NCCL_SOCKET_FAMILY");
  const int family =
      family_text != nullptr && std::string(family_text) == "AF_INET6" ? AF_INET6 : AF_INET;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family ||
        (i->ifa_flags & IFF_UP) == 0 || !wanted(i->ifa_name)) {
      continue;
    }
    Device d;
    d.name = i->ifa_name;
    std::memcpy(&d.address, i->ifa_addr,
                family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&d.address);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
    if (!devices_found.empty() && devices_found.back().name == d.name) continue;
    std::ifstream speed("/sys/class/net/" + d.name + "/speed");
    int mbps = 0;
    if (speed >> mbps && mbps > 0) d.speed_mbps = mbps;
    devices_found.push_back(d);
  }
}

void tune(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Moves what the socket takes or has now.
Status progress(Comm* c) {
  while (c->failed == kOk && !c->queue.empty()) {
    Request* r = c->queue.front();
    constexpr std::size_t kHeader = sizeof r->header;
    const bool in_header = r->moved < kHeader;
    auto* at = in_header ? reinterpret_cast<std::byte*>(&r->header) + r->moved
                         : r->data + (r->moved - kHeader);
    const std::size_t end = in_header ? kHeader : kHeader + r->header;
    if (r->moved < end) {
      const ssize_t n = c->sends ? ::send(c->fd, at, end - r->moved, MSG_DONTWAIT | MSG_NOSIGNAL)
                                 : ::recv(c->fd, at, end - r->moved, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return kOk;
      if (n <= 0) {
        c->failed = fail(kRemote, c->sends ? "send" : "receive", n < 0 ? errno : 0);
        return c->failed;
      }
      r->moved += static_cast<std::size_t>(n);
    }
    if (r->moved < kHeader) continue;
    if (r->header > r->size) {
      c->failed = fail(kRemote, "a message is longer than its receive", EMSGSIZE);
      return c->failed;
    }
    if (r->moved == kHeader + r->header) {
      r->size = r->header;
      r->done = true;
      c->queue.pop_front();
    }
  }
  return c->failed;
}

Status post(Comm* c, void* data, std::size_t size, void** out) {
  if (c == nullptr || out == nullptr) return kInvalid;
  *out = nullptr;
  if (c->failed != kOk) return c->failed;
  if (c->queue.size() >= kMaxRequests) return kOk;
  auto* r = new Request{c, static_cast<std::byte*>(data), size, c->sends ? size : 0, 0, false};
  c->queue.push_back(r);
  *out = r;
  return progress(c);
}

Status init(void** context, std::uint64_t, CommConfig*, LogFunction log, ProfilerCallback) {
  if (context == nullptr) return kInvalid;
  logger = log;
  find_devices();
  *context = &devices_found;
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

Status get_properties(int device, PropertiesV11* out) {
  if (out == nullptr || !known(device)) return kInvalid;
  Device& d = devices_found[static_cast<std::size_t>(device)];
  *out = {};
  out->name = d.name.data();
  out->guid = static_cast<std::uint64_t>(device);
  out->memory_kinds = kMemoryHost;
  out->speed_mbps = d.speed_mbps;
  out->port = 1;
  out->max_comms = 65536;
  out->max_receives = 1;
  out->members.count = 1;
  out->members.devices[0] = device;
  out->max_p2p_bytes = out->max_collective_bytes = kMaxMessage;
  out->max_multi_request = 1;
  return kOk;
}

Status listen(void*, int device, void* handle, void** comm) {
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

Status connect(void*, int device, void* handle, void** comm, OffloadHandle**) {
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

Status isend(void* comm, void* data, std::size_t size, int, void*, void*, void** request) {
  return post(static_cast<Comm*>(comm), data, size, request);
}

Status irecv(void* comm, int count, void** data, std::size_t* sizes, int*, void**, void**,
             void** request) {
  if (count != 1 || data == nullptr || sizes == nullptr) return kInvalid;
  return post(static_cast<Comm*>(comm), data[0], sizes[0], request);
}

Status iflush(void*, int, void**, int*, void**, void** request) {
  if (request == nullptr) return kInvalid;
  *request = nullptr;
  return kOk;
}

Status test(void* request, int* done, int* size) {
  if (request == nullptr || done == nullptr) return kInvalid;
  auto* r = static_cast<Request*>(request);
  *done = 0;
  if (!r->done) {
    const Status status = progress(r->comm);
    if (status != kOk) return status;
  }
  if (r->done) {
    *done = 1;
    if (size != nullptr) *size = static_cast<int>(r->size);
    delete r;
  }
  return kOk;
}

Status close(void* comm) {
  delete static_cast<Comm*>(comm);
  return comm == nullptr ? kInvalid : kOk;
}

Status finalize(void* context) { return context == nullptr ? kInvalid : kOk; }

}  // namespace

extern "C" __attribute__((visibility("default"))) NetV11 ncclNetPlugin_v11;
constinit NetV11 ncclNetPlugin_v11 = {
    .name = "PLAIN",
    .init = init,
    .devices = devices,
    .get_properties = get_properties,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .register_memory = register_memory,
    .register_dmabuf = register_dmabuf,
    .deregister_memory = deregister_memory,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close_send = close,
    .close_receive = close,
    .close_listen = close,
    .get_device_region = nullptr,
    .receive_consumed = nullptr,
    .make_virtual_device = nullptr,
    .finalize = finalize,
    .set_attributes = nullptr,
};
