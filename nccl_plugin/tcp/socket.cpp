#include "tcp/socket.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "host/link.h"

namespace fabric::tcp {

namespace {

constexpr int kBacklog = 512;

void set(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

// Address and device: only with the device named does traffic leave by this rail whatever the
// routing table prefers. Unprivileged since Linux 5.7; loopback aliases of tests need none.
bool bind_to(int fd, const Rail& rail, std::uint16_t port) {
  if (rail.name != "lo") {
    ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, rail.name.c_str(),
                 static_cast<socklen_t>(rail.name.size()));
  }
  Address local = rail.address;
  local.port = port;
  sockaddr_storage storage{};
  const socklen_t length = local.to(storage, rail.ifindex);
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0;
}

Fd tcp_socket(const Address& address) {
  return Fd::opened([&] {
    return ::socket(address.v4() ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                    IPPROTO_TCP);
  });
}

}  // namespace

Address far_end(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  const auto* address = reinterpret_cast<sockaddr*>(&storage);
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) == 0
             ? Address::from(address)
             : Address{};
}

Fd listen_on(Rail& rail, std::string& error) {
  Fd fd = tcp_socket(rail.address);
  bool bound = false;
  if (fd.open() && rail.address.port != 0) {
    // Connections of the last listener may still be there.
    set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    bound = bind_to(fd.get(), rail, rail.address.port);
  }
  if (fd.open() && !bound) {
    set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 0);
    bound = bind_to(fd.get(), rail, 0);
    // Inherited by the connections, so that this port can be had again.
    set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  }
  if (!bound || ::listen(fd.get(), kBacklog) != 0) {
    error = rail.name + " " + rail.address.text() + ": " + std::strerror(errno);
    return {};
  }
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length);
  rail.address.port = Address::from(reinterpret_cast<const sockaddr*>(&storage)).port;
  return fd;
}

Fd start_connect(const Rail& rail, const Address& to, const Params& params) {
  if (to.v4() != rail.address.v4()) {
    errno = EAFNOSUPPORT;
    return {};
  }
  Fd fd = tcp_socket(to);
  if (!fd.open()) {
    return {};
  }
  if (params.socket_buffer > 0) {
    // Before connect: the window scale is agreed in the SYN.
    set(fd.get(), SOL_SOCKET, SO_RCVBUF, params.socket_buffer);
    set(fd.get(), SOL_SOCKET, SO_SNDBUF, params.socket_buffer);
  }
  if (!bind_to(fd.get(), rail, 0)) {
    return {};
  }
  sockaddr_storage storage{};
  const socklen_t length = to.to(storage, rail.ifindex);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0 &&
      errno != EINPROGRESS) {
    const int saved = errno;
    fd.reset();
    errno = saved;
  }
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

void tune(int fd, Purpose purpose, const Params& params) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (purpose == Purpose::data) {
    set_unsent_limit(fd, host::kUnsentLimit);
  }
  if (!params.failover) {
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, params.user_timeout_ms);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);  // the receiving end has nothing unacknowledged
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  }
}

void reset_on_close(int fd) {
  const linger off{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof off);
}

void set_unsent_limit(int fd, std::size_t bytes) {
  set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(bytes));
}

void set_low_water(int fd, std::size_t bytes) {
  set(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

std::optional<core::PathSample> sample(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
    return std::nullopt;
  }
  const bool told = length >= offsetof(tcp_info, tcpi_snd_wnd) + sizeof info.tcpi_snd_wnd;
  const std::uint32_t window = told ? info.tcpi_snd_wnd : 0;  // before Linux 5.4
  core::PathSample sample;
  sample.unacknowledged = info.tcpi_unacked;
  sample.acknowledged_bytes = info.tcpi_bytes_acked;
  sample.since_ack_ns = std::int64_t{info.tcpi_last_ack_recv} * 1'000'000;
  sample.ack_due_ns = 2 * (std::int64_t{info.tcpi_rtt} + 4 * std::int64_t{info.tcpi_rttvar}) * 1000;
  sample.window = std::uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss + host::kUnsentLimit;
  sample.held = info.tcpi_unacked == 0 && info.tcpi_notsent_bytes != 0 &&
                window >= std::min(info.tcpi_notsent_bytes, info.tcpi_snd_mss);
  if (sample.held) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  }
  return sample;
}

void acknowledge(int fd) {
  // Even: once, and then as before. Where nothing was due it leaves the interactive mode
  // ("pingpong") for good, in which reading does not acknowledge; zero goes back to it
  // (__tcp_sock_set_quickack and tcp_cleanup_rbuf in net/ipv4/tcp.c).
  for (const int value : {2, 0}) {
    ::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &value, sizeof value);
  }
}

std::size_t waiting_bytes(int fd) {
  int queued = 0;
  return ::ioctl(fd, SIOCOUTQ, &queued) == 0 && queued > 0 ? static_cast<std::size_t>(queued) : 0;
}

}  // namespace fabric::tcp
