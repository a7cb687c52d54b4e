// tcp-pingpong: the fastest ping-pong that plain sockets can do, as something to compare with. Two
// TCP connections, each carrying bytes one way, as a pair of NCCL comms does; no headers; both ends
// poll without ever sleeping. One end listens, the other dials.
//
//   tcp-pingpong ADDRESS PORT listen|dial SIZE ROUND_TRIPS
//
// ADDRESS is the listener's. The dialler prints {"latency_us": {min, p50, p99, count}}, half round
// trips, as fabric-perf does.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "perf/clock.h"
#include "perf/pingpong.h"

namespace {

constexpr std::int64_t kReceiveTimeoutNs =
    20'000'000'000;  // for the other end to appear, or to answer

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd_ < 0) fail("socket");
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Socket tuned(int fd) {
  Socket made(fd);
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("TCP_NODELAY");
  return made;
}

Socket dial(const sockaddr_in& to, std::int64_t deadline_ns) {
  while (true) {
    Socket s = tuned(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(s.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return s;
    if (errno != ECONNREFUSED || fabric::perf::monotonic_ns() > deadline_ns) fail("connect");
    ::usleep(10'000);
  }
}

// Moves all of `data`, polling.
template <typename Call>
void move_all(std::vector<char>& data, const char* what, Call call) {
  const std::int64_t deadline = fabric::perf::monotonic_ns() + kReceiveTimeoutNs;
  unsigned polls = 0;
  for (std::size_t at = 0; at < data.size();) {
    const ssize_t n = call(data.data() + at, data.size() - at);
    if (n == 0) throw std::runtime_error("the other end closed");
    if (n < 0 && errno != EAGAIN && errno != EINTR) fail(what);
    if (n > 0) at += static_cast<std::size_t>(n);
    if ((++polls & 0xFFFFU) == 0 && fabric::perf::monotonic_ns() > deadline) {
      throw std::runtime_error("the other end is silent");
    }
  }
}

void put(const Socket& s, std::vector<char>& data) {
  move_all(data, "send", [&](char* at, std::size_t n) {
    return ::send(s.get(), at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}
void take(const Socket& s, std::vector<char>& data) {
  move_all(data, "receive",
           [&](char* at, std::size_t n) { return ::recv(s.get(), at, n, MSG_DONTWAIT); });
}

void listen_side(const sockaddr_in& at, std::vector<char>& data, int round_trips) {
  const Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const timeval timeout{kReceiveTimeoutNs / 1'000'000'000, 0};
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(listener.get(), 2) != 0) {
    fail("listen");
  }
  const Socket in = tuned(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const Socket out = tuned(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  for (int i = 0; i < round_trips; ++i) {
    take(in, data);
    put(out, data);
  }
}

void dial_side(const sockaddr_in& to, std::vector<char>& data, int round_trips) {
  const std::int64_t deadline = fabric::perf::monotonic_ns() + kReceiveTimeoutNs;
  const Socket out = dial(to, deadline);
  const Socket in = dial(to, deadline);
  std::vector<double> samples;
  samples.reserve(static_cast<std::size_t>(round_trips));
  for (int i = 0; i < round_trips; ++i) {
    const std::int64_t sent_ns = fabric::perf::monotonic_ns();
    put(out, data);
    take(in, data);
    samples.push_back(static_cast<double>(fabric::perf::monotonic_ns() - sent_ns) / 2000.0);
  }
  const fabric::perf::Latency l = fabric::perf::summarize(std::move(samples));
  std::printf("{\"latency_us\": {\"min\": %.3f, \"p50\": %.3f, \"p99\": %.3f, \"count\": %zu}}\n",
              l.min, l.p50, l.p99, l.count);
}

int number(const char* text, int high) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < 1 || value > high) {
    throw std::invalid_argument(std::string(text) + " is not a number from 1 to " +
                                std::to_string(high));
  }
  return value;
}

int run(char** argv) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (::inet_pton(AF_INET, argv[1], &at.sin_addr) != 1) {
    throw std::invalid_argument(std::string(argv[1]) + " is no IPv4 address");
  }
  at.sin_port = htons(static_cast<std::uint16_t>(number(argv[2], 65535)));
  const std::string side = argv[3];
  std::vector<char> data(static_cast<std::size_t>(number(argv[4], 1 << 20)), 'x');
  const int round_trips = number(argv[5], 100'000'000);
  if (side == "listen") {
    listen_side(at, data, round_trips);
  } else if (side == "dial") {
    dial_side(at, data, round_trips);
  } else {
    throw std::invalid_argument(side + ": listen or dial");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: tcp-pingpong ADDRESS PORT listen|dial SIZE ROUND_TRIPS\n", stderr);
    return 2;
  }
  try {
    return run(argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "tcp-pingpong: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tcp-pingpong: %s\n", error.what());
    return 1;
  }
}
