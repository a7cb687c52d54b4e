// Two transports in one process over 127.0.0.x, for tests: a pair with one comm, and what moves
// over it. doctest's REQUIRE is used inside.
#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host/handle.h"
#include "host/host_net.h"
#include "host/wire.h"
#include "src/assembly.h"

namespace fabric::host::loopback {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline Rail rail_of(std::size_t host, std::size_t rail) {
  Rail made;
  made.name = "lo";
  made.address.ip[10] = 0xff;
  made.address.ip[11] = 0xff;
  made.address.ip[12] = 127;
  made.address.ip[14] = static_cast<std::uint8_t>(10 + host);
  made.address.ip[15] = static_cast<std::uint8_t>(1 + rail);
  return made;
}

// A bare connection, with nothing said on it.
inline int dial(const Address& to) {
  sockaddr_storage storage{};
  const socklen_t length = to.to(storage);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0);
  return fd;
}

struct Pair {
  std::unique_ptr<Net> a;
  std::unique_ptr<Net> b;
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
  std::array<std::byte, kHandleSize> handle{};

  static Params usual() {
    Params params;
    params.run_dir = "/nonexistent/fabric";
    params.chunk_size = 32 * 1024;
    params.hold_ns = 50'000'000;
    params.deadline_ns = 20'000'000'000;
    return params;
  }
  explicit Pair(std::size_t rails, const Params& params = usual()) : Pair(rails, params, params) {}
  Pair(std::size_t rails, const Params& of_a, const Params& of_b) {
    std::vector<Rail> rails_a;
    std::vector<Rail> rails_b;
    for (std::size_t i = 0; i < rails; ++i) {
      rails_a.push_back(rail_of(0, i));
      rails_b.push_back(rail_of(1, i));
    }
    a = make_net(of_a, rails_a);
    b = make_net(of_b, rails_b);
    open();
  }
  Pair(std::unique_ptr<Net> of_a, std::unique_ptr<Net> of_b)
      : a(std::move(of_a)), b(std::move(of_b)) {
    open();
  }
  // Both ends of the comm.
  void open() {
    REQUIRE(a->init(nullptr) == Result::success);
    REQUIRE(b->init(nullptr) == Result::success);
    ListenComm* listener = nullptr;
    REQUIRE(b->listen(0, handle, &listener) == Result::success);
    REQUIRE(a->connect(0, handle, 0, &send) == Result::success);
    const auto until = Clock::now() + milliseconds(5000);
    while (receive == nullptr && Clock::now() < until) {
      REQUIRE(b->accept(listener, &receive) == Result::success);
      b->wait(1000);
    }
    REQUIRE(receive != nullptr);
    REQUIRE(b->close(listener) == Result::success);  // as NCCL does, right after accept
  }
  ~Pair() {
    if (send != nullptr) {
      a->close(send);
    }
    if (receive != nullptr) {
      b->close(receive);
    }
    a->finalize();
    b->finalize();
  }
  // What a request that an exchange left in flight may still touch, until its comm is closed.
  std::vector<std::byte> sent;
  std::vector<std::byte> received;
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
};

// Calls with each established IPv4 connection of this process: its descriptor and its own address.
template <typename Call>
void each_connection(Call call) {
  DIR* directory = ::opendir("/proc/self/fd");
  for (const dirent* entry = ::readdir(directory); entry != nullptr; entry = ::readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_in name{};
    socklen_t length = sizeof name;
    sockaddr_in peer{};
    socklen_t peer_length = sizeof peer;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0 ||
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0 ||
        name.sin_family != AF_INET) {
      continue;
    }
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &name.sin_addr, text.data(), text.size());
    call(fd, std::string(text.data()));
  }
  ::closedir(directory);
}

// Shuts down every established socket of this process whose own address is `ip`.
inline int kill_connections(const std::string& ip) {
  int killed = 0;
  each_connection([&](int fd, const std::string& local) {
    if (ip == local) {
      ::shutdown(fd, SHUT_RDWR);
      ++killed;
    }
  });
  return killed;
}

inline std::uint64_t moved(const Net& net, std::size_t rail) {
  return stats_of(net).rails[rail].tx_bytes;
}

// Waits until the path of this rail is there (connected, or connected again).
inline bool connected(const Net& net, std::size_t rail) {
  const auto until = Clock::now() + milliseconds(5000);
  while (Clock::now() < until) {
    if (stats_of(net).rails[rail].live_paths != 0) {
      return true;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

// Offers it until it is taken: the control thread may be inside the comm.
inline Request* post(Net& net, SendComm* comm, std::span<const std::byte> bytes, int tag = 0) {
  Request* made = nullptr;
  const auto until = Clock::now() + milliseconds(5000);
  while (made == nullptr && Clock::now() < until) {
    REQUIRE(net.isend(comm, bytes.data(), bytes.size(), tag, &made) == Result::success);
  }
  REQUIRE(made != nullptr);
  return made;
}
inline Request* post(Net& net, RecvComm* comm, std::span<const ReceiveSlot> slots,
                     bool optional = false) {
  Request* made = nullptr;
  const auto until = Clock::now() + milliseconds(5000);
  while (made == nullptr && Clock::now() < until) {
    REQUIRE(net.irecv(comm, slots, optional, &made) == Result::success);
  }
  REQUIRE(made != nullptr);
  return made;
}

struct Outcome {
  int messages = 0;
  Result result = Result::success;
  bool intact = true;
};

inline std::vector<std::byte> contents(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

inline std::size_t size_of(int i) {
  constexpr std::array<std::size_t, 5> kSizes{8, 300'000, 8192, 1'000'000, 40'000};
  return kSizes[static_cast<std::size_t>(i) % kSizes.size()];
}

// One message after the other, each end on its own thread, until the time is over or one end fails.
// A message of one byte is the last.
// `nap_us`: how long a caller blocks at most.
inline Outcome exchange(Pair& pair, milliseconds time, int at_least = 0, int nap_us = 2000) {
  std::atomic<bool> failed{false};
  Outcome outcome;
  std::thread sender([&] {
    const auto until = Clock::now() + time;
    bool last = false;
    for (int i = 0; !last; ++i) {
      last = i >= at_least && Clock::now() >= until;
      std::vector<std::byte> bytes =
          last ? std::vector<std::byte>(1) : contents(size_of(i), static_cast<std::uint64_t>(i));
      Request* request = nullptr;
      bool done = false;
      Result result = Result::success;
      while (!done && !failed && result == Result::success) {
        if (request == nullptr) {
          result = pair.a->isend(pair.send, bytes.data(), bytes.size(), 0, &request);
        } else {
          result = pair.a->test(request, &done, nullptr);
        }
        if (!done) {
          pair.a->wait(nap_us);
        }
      }
      if (!done) {
        failed = true;
        pair.sent = std::move(bytes);
        return;
      }
    }
  });
  std::vector<std::byte> buffer(1 << 20);
  int size = 0;
  for (int i = 0; size != 1 && outcome.result == Result::success && !failed; ++i) {
    const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
    Request* request = nullptr;
    bool done = false;
    while (!done && !failed && outcome.result == Result::success) {
      outcome.result = request == nullptr ? pair.b->irecv(pair.receive, {&slot, 1}, false, &request)
                                          : pair.b->test(request, &done, &size);
      if (!done) {
        pair.b->wait(nap_us);
      }
    }
    if (!done) {
      break;
    }
    if (size != 1) {
      const std::vector<std::byte> want = contents(size_of(i), static_cast<std::uint64_t>(i));
      outcome.intact = outcome.intact && static_cast<std::size_t>(size) == want.size() &&
                       std::memcmp(buffer.data(), want.data(), want.size()) == 0;
      ++outcome.messages;
    }
  }
  failed = failed || size != 1;
  sender.join();
  pair.received = std::move(buffer);
  return outcome;
}

}  // namespace fabric::host::loopback
