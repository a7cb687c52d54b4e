// Rendezvous over TCP: rank 0 listens, gathers one frame per rank and sends all of them to all.
// A frame is a length and that many bytes; a connection opens with kGreeting and the rank. Who says
// anything else is dropped, so that a port scan does not end a job.

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "perf/rendezvous.h"

namespace fabric::perf {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint32_t kGreeting = 0x56525046;  // "FPRV"
constexpr std::uint32_t kMaxFrame = 64U << 20U;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

struct Addresses {
  addrinfo* list = nullptr;
  Addresses() = default;
  ~Addresses() {
    if (list != nullptr) freeaddrinfo(list);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
};

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(std::string host, std::uint16_t port, const RendezvousConfig& config)
      : host_(std::move(host)), port_(port), config_(config) {
    deadline_ = Clock::now() + config_.timeout;
    if (config_.rank == 0) {
      gather_peers();
    } else {
      reach_root();
    }
  }

  std::vector<std::string> all_gather(const std::string& name, const std::string& mine) override {
    deadline_ = Clock::now() + config_.timeout;
    std::vector<std::string> all(static_cast<std::size_t>(config_.world));
    const auto root_of = [&](std::size_t rank) {
      return "rank " + std::to_string(rank) + " in '" + name + "'";
    };
    if (config_.rank == 0) {
      all[0] = mine;
      for (std::size_t r = 1; r < all.size(); ++r) all[r] = receive_frame(peers_[r], root_of(r));
      for (std::size_t r = 1; r < all.size(); ++r) {
        for (const std::string& blob : all) send_frame(peers_[r], blob, root_of(r));
      }
    } else {
      send_frame(root_, mine, root_of(0));
      for (std::string& blob : all) blob = receive_frame(root_, root_of(0));
    }
    return all;
  }

 private:
  [[noreturn]] static void fail(const std::string& text) {
    throw TransportError("rendezvous", 0, text);
  }

  void check(const std::string& what) const {
    if (config_.cancelled != nullptr && config_.cancelled()) {
      fail("interrupted while waiting for " + what);
    }
    if (Clock::now() > deadline_) fail("timed out waiting for " + what);
  }

  // Waits in short turns, so that a signal and the deadline are seen.
  void await(int fd, short events, const std::string& what) const {
    while (true) {
      check(what);
      pollfd entry{fd, events, 0};
      if (::poll(&entry, 1, 50) > 0) return;
    }
  }

  // True when all `size` bytes came; false when the peer went away.
  bool receive(const Socket& socket, void* data, std::size_t size, const std::string& what) const {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
      await(socket.get(), POLLIN, what);
      const ssize_t got = ::recv(socket.get(), at, size, MSG_DONTWAIT);
      if (got == 0) return false;
      if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) continue;
        return false;
      }
      at += got;
      size -= static_cast<std::size_t>(got);
    }
    return true;
  }

  void send(const Socket& socket, const void* data, std::size_t size,
            const std::string& what) const {
    const auto* at = static_cast<const char*>(data);
    while (size > 0) {
      await(socket.get(), POLLOUT, what);
      const ssize_t sent = ::send(socket.get(), at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EAGAIN || errno == EINTR) continue;
        fail("lost " + what + ": " + std::strerror(errno));
      }
      at += sent;
      size -= static_cast<std::size_t>(sent);
    }
  }

  void send_frame(const Socket& socket, const std::string& blob, const std::string& what) const {
    const auto size = static_cast<std::uint32_t>(blob.size());
    send(socket, &size, sizeof size, what);
    send(socket, blob.data(), blob.size(), what);
  }

  std::string receive_frame(const Socket& socket, const std::string& what) const {
    std::uint32_t size = 0;
    if (!receive(socket, &size, sizeof size, what)) fail("lost " + what);
    if (size > kMaxFrame) fail("garbage from " + what);
    std::string blob(size, '\0');
    if (!receive(socket, blob.data(), blob.size(), what)) fail("lost " + what);
    return blob;
  }

  void resolve(Addresses* out, bool passive) const {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = passive ? AI_PASSIVE : 0;
    const int rc = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &out->list);
    if (rc != 0) fail("cannot resolve " + host_ + ": " + gai_strerror(rc));
  }

  Socket listen_here() const {
    Addresses addresses;
    resolve(&addresses, true);
    const addrinfo* a = addresses.list;
    Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!socket || ::bind(socket.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        ::listen(socket.get(), 128) != 0) {
      fail("cannot listen on " + host_ + ":" + std::to_string(port_) + ": " + std::strerror(errno));
    }
    return socket;
  }

  void gather_peers() {
    const Socket listener = listen_here();
    peers_.resize(static_cast<std::size_t>(config_.world));
    for (int found = 1; found < config_.world;) {
      const std::string what = std::to_string(config_.world - found) + " more ranks";
      await(listener.get(), POLLIN, what);
      Socket peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer) continue;
      std::array<std::uint32_t, 2> greeting{};
      pollfd entry{peer.get(), POLLIN, 0};
      if (::poll(&entry, 1, 1000) <= 0 ||
          ::recv(peer.get(), greeting.data(), sizeof greeting, MSG_DONTWAIT) !=
              static_cast<ssize_t>(sizeof greeting) ||
          greeting[0] != kGreeting || greeting[1] == 0 ||
          greeting[1] >= static_cast<std::uint32_t>(config_.world)) {
        continue;
      }
      Socket& place = peers_[greeting[1]];
      if (!place) ++found;
      place = std::move(peer);
    }
  }

  void reach_root() {
    while (true) {
      check("rank 0");
      Addresses addresses;
      resolve(&addresses, false);
      for (const addrinfo* a = addresses.list; a != nullptr; a = a->ai_next) {
        Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!socket) continue;
        if (::connect(socket.get(), a->ai_addr, a->ai_addrlen) != 0) {
          if (errno != EINPROGRESS) continue;
          pollfd entry{socket.get(), POLLOUT, 0};
          int error = 0;
          socklen_t length = sizeof error;
          if (::poll(&entry, 1, 500) <= 0 ||
              ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 ||
              error != 0) {
            continue;
          }
        }
        root_ = std::move(socket);
        const std::array<std::uint32_t, 2> greeting{kGreeting,
                                                    static_cast<std::uint32_t>(config_.rank)};
        send(root_, greeting.data(), sizeof greeting, "rank 0");
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::string host_;
  std::uint16_t port_;
  RendezvousConfig config_;
  Clock::time_point deadline_;
  std::vector<Socket> peers_;  // rank 0: by rank
  Socket root_;                // others
};

}  // namespace

std::unique_ptr<Rendezvous> make_tcp_rendezvous(const std::string& host, std::uint16_t port,
                                                const RendezvousConfig& config) {
  return std::make_unique<TcpRendezvous>(host, port, config);
}

}  // namespace fabric::perf
