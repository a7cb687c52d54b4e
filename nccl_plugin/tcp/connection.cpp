#include "tcp/connection.h"

#include <sys/socket.h>

#include <cerrno>

#include "tcp/socket.h"

namespace fabric::tcp {

std::optional<std::size_t> TcpConnection::write(std::span<const std::byte> bytes) {
  while (true) {
    const ssize_t count =
        ::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      return static_cast<std::size_t>(count);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
      return 0;
    }
    if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

std::optional<std::size_t> TcpConnection::read(std::span<std::byte> room) {
  while (true) {
    const ssize_t count = ::recv(fd_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (count > 0) {
      return static_cast<std::size_t>(count);
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return 0;
    }
    if (count == 0 || errno != EINTR) {
      return std::nullopt;
    }
  }
}

std::optional<core::PathSample> TcpConnection::sample() { return tcp::sample(fd_.get()); }

std::size_t TcpConnection::backlog() const { return waiting_bytes(fd_.get()); }

void TcpConnection::discard() { reset_on_close(fd_.get()); }

host::Address TcpConnection::far_end() const { return tcp::far_end(fd_.get()); }

}  // namespace fabric::tcp
