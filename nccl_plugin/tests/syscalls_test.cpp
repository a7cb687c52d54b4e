// How often the plugin enters the kernel. The functions below stand before libc's: what it calls is
// counted by thread, so that the control threads' share can be told from the caller's.
#include <doctest/doctest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "host/monotonic.h"
#include "tests/comm_kit.h"
#include "tests/receiver_kit.h"

namespace {

thread_local int calls = 0;
std::atomic<int> calls_of_all{0};
// What TCP_INFO says instead of the truth: the host's own queue took nothing, and all has come
// back.
std::atomic<bool> held{false};
std::atomic<std::uint32_t> window{0};
std::atomic<int> pushes{0};

template <typename... Args>
ssize_t counted(long number, Args... args) {
  ++calls;
  calls_of_all.fetch_add(1);
  return ::syscall(number, args...);
}

}  // namespace

extern "C" {
ssize_t recv(int fd, void* data, std::size_t size, int flags) {
  return counted(SYS_recvfrom, fd, data, size, flags, nullptr, nullptr);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return counted(SYS_recvmsg, fd, message, flags);
}
ssize_t send(int fd, const void* data, std::size_t size, int flags) {
  return counted(SYS_sendto, fd, data, size, flags, nullptr, 0);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return counted(SYS_sendmsg, fd, message, flags);
}
ssize_t write(int fd, const void* data, std::size_t size) {
  return counted(SYS_write, fd, data, size);
}
ssize_t pwrite(int fd, const void* data, std::size_t size, off_t at) {
  return counted(SYS_pwrite64, fd, data, size, at);
}
ssize_t pread(int fd, void* data, std::size_t size, off_t at) {
  return counted(SYS_pread64, fd, data, size, at);
}
int getsockopt(int fd, int level, int option, void* value, socklen_t* length) noexcept {
  const auto result = static_cast<int>(counted(SYS_getsockopt, fd, level, option, value, length));
  if (level == IPPROTO_TCP && option == TCP_INFO && held.load()) {
    auto& info = *static_cast<tcp_info*>(value);
    info.tcpi_unacked = 0;
    info.tcpi_notsent_bytes = 100'000;
    info.tcpi_snd_wnd = window.load();
  }
  return result;
}
int setsockopt(int fd, int level, int option, const void* value, socklen_t length) noexcept {
  pushes.fetch_add(level == IPPROTO_TCP && option == TCP_NODELAY ? 1 : 0);
  return static_cast<int>(counted(SYS_setsockopt, fd, level, option, value, length));
}
int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  return static_cast<int>(counted(SYS_epoll_wait, fd, events, most, timeout));
}
int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  return static_cast<int>(counted(SYS_ioctl, fd, request, argument));
}
}

namespace fabric::host::loopback {

namespace {

// Segments that the connection from this address which sent the most has on the way.
unsigned unacknowledged_from(const std::string& ip) {
  tcp_info most{};
  each_connection([&](int fd, const std::string& local) {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (local == ip && ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
        info.tcpi_bytes_acked > most.tcpi_bytes_acked) {
      most = info;
    }
  });
  return most.tcpi_unacked;
}

template <typename Call>
int calls_in(Call call) {
  const int before = calls;
  call();
  return calls - before;
}

}  // namespace

TEST_CASE("small messages: one call to the kernel each way, and none for what is done") {
  const auto a = net_of(1, 1);
  const auto b = net_of(2, 1);
  const Ends ends = open(*a, *b);
  REQUIRE(carries(*a, *b, ends, 100'000, 1));
  // The first ticks of both ends: from then on small messages go before their CTS.
  const auto until = Clock::now() + milliseconds(20'000);
  int cts_calls = 1;
  while (cts_calls != 0 && Clock::now() < until) {
    Receive receive = receive_of(ends.receive, {8});
    cts_calls = calls_in([&] { REQUIRE(push(*b, receive)); }) - 1;  // one to look for the message
    std::vector<Send> sends(1);
    sends[0].comm = ends.send;
    sends[0].bytes = contents(8, 2);
    std::vector<Receive> receives;  // moved, not copied: the request writes to its buffers
    receives.push_back(std::move(receive));
    REQUIRE(run(*a, sends, *b, receives));
  }
  REQUIRE(cts_calls == 0);

  const std::vector<std::byte> from = contents(8, 3);
  auto last = Clock::now();
  int prompt = 0;
  for (int round = 0; round < 40; ++round) {
    std::array<std::array<std::byte, 8>, 2> to{};
    std::array<Request*, 2> receives{};
    Request* send = nullptr;
    bool done = false;
    int size = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const ReceiveSlot slot{to[i].data(), to[i].size(), 0};
      CHECK(calls_in([&] { receives[i] = post(*b, ends.receive, {&slot, 1}); }) == 0);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const int took = calls_in([&] { send = post(*a, ends.send, from); });
      // After a pause (another process had the core) the control thread rests, and has to be woken.
      const bool paused = Clock::now() - last > milliseconds(1);
      CHECK(took >= 1);
      CHECK(took <= (paused ? 2 : 1));
      prompt += paused ? 0 : 1;
      last = Clock::now();
      done = false;
      while (!done && Clock::now() < until) {
        CHECK(calls_in([&] { REQUIRE(a->test(send, &done, &size) == Result::success); }) == 0);
      }
      CHECK(done);
    }
    done = false;
    while (!done && Clock::now() < until) {
      CHECK(calls_in([&] { REQUIRE(b->test(receives[1], &done, &size) == Result::success); }) <= 1);
    }
    REQUIRE(done);
    // The first came before it.
    CHECK(calls_in([&] { REQUIRE(b->test(receives[0], &done, &size) == Result::success); }) == 0);
    CHECK(done);
    CHECK(std::equal(from.begin(), from.end(), to[0].begin()));
  }
  CHECK(prompt >= 40);
  close(*a, *b, ends);
}

// Else every second one is acknowledged while it is read, and its answer goes out so much later.
TEST_CASE("TCP acknowledges a small message when its receiver finds nothing more to read") {
  Pair pair(1);
  REQUIRE(exchange(pair, milliseconds(50), 5).intact);
  const std::vector<std::byte> from = contents(8, 1);
  int owed = 0;  // how often one was left for later
  for (int round = 0; round < 30; ++round) {
    std::array<std::array<std::byte, 8>, 2> to{};
    std::array<Request*, 2> receives{};
    for (std::size_t i = 0; i < 2; ++i) {
      const ReceiveSlot slot{to[i].data(), to[i].size(), 0};
      receives[i] = post(*pair.b, pair.receive, {&slot, 1});
    }
    for (std::size_t i = 0; i < 2; ++i) {
      Request* const send = post(*pair.a, pair.send, from);
      for (Request* request : {send, receives[i]}) {
        Net& net = request == send ? *pair.a : *pair.b;
        bool done = false;
        const auto until = Clock::now() + milliseconds(5000);
        while (!done && Clock::now() < until) {
          REQUIRE(net.test(request, &done, nullptr) == Result::success);
        }
        REQUIRE(done);
      }
      owed += unacknowledged_from("127.0.10.1") != 0 ? 1 : 0;
      if (i == 0) {
        bool done = false;
        REQUIRE(pair.b->test(receives[1], &done, nullptr) == Result::success);
        REQUIRE(!done);
        CHECK(unacknowledged_from("127.0.10.1") == 0);
      }
    }
  }
  CHECK(owed != 0);
}

TEST_CASE("64 comms on which nothing passes cost next to nothing, and carry at once again") {
  constexpr int kComms = 64;
  constexpr int kMost = 400;  // calls a second, both ends; ticks as with traffic take thousands
  const auto a = net_of(1, 1);
  const auto b = net_of(2, 1);
  std::vector<Ends> comms;
  for (int i = 0; i < kComms; ++i) {
    comms.push_back(open(*a, *b));
    REQUIRE(carries(*a, *b, comms.back(), 8, 1));
    REQUIRE(carries(*a, *b, comms.back(), 100'000, 1));
  }
  const auto until = Clock::now() + milliseconds(60'000);
  int taken = 0;
  do {  // they come to rest a second after the last message
    const int before = calls_of_all.load();
    std::this_thread::sleep_for(milliseconds(1'000));
    taken = calls_of_all.load() - before;
  } while (taken > kMost && Clock::now() < until);
  MESSAGE("calls in a second: " << taken);
  CHECK(taken <= kMost);
  for (const Ends& ends : comms) {
    CHECK(carries(*a, *b, ends, 8, 2));
    CHECK(carries(*a, *b, ends, 100'000, 2));
    close(*a, *b, ends);
  }
}

TEST_CASE("what the host's own queue did not take is pushed; a closed window is waited for") {
  const auto a = net_of(1, 1);
  const auto b = net_of(2, 1);
  const Ends ends = open(*a, *b);
  REQUIRE(carries(*a, *b, ends, 100'000, 1));
  const auto pushed_in = [&](std::uint32_t open_by, int rounds) {
    window.store(open_by);
    held.store(true);
    const int before = pushes.load();
    const auto until = Clock::now() + milliseconds(20'000);
    for (int round = 0; round < rounds && Clock::now() < until && pushes.load() == before;
         ++round) {
      CHECK(carries(*a, *b, ends, 100'000, 2));
      std::this_thread::sleep_for(milliseconds(10));
    }
    held.store(false);
    return pushes.load() - before;
  };
  CHECK(pushed_in(0, 30) == 0);
  CHECK(pushed_in(1'000'000, 2'000) > 0);
  close(*a, *b, ends);
}

TEST_CASE("chunks that were promised are read on end, also when another path carries some") {
  constexpr std::size_t kChunks = 24;
  constexpr std::size_t kBatch = 8;
  One one(kSmallChunk);
  std::array<Stream, 2> streams;
  streams[0].fd = std::move(one.peer);
  streams[1].fd = one.connect(kOther);
  const auto message = contents(kChunks * kSmallChunk, 1);
  std::vector<std::byte> buffer(message.size());
  const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
  core::GroupId group = 0;
  const auto reads = [&](std::size_t other, bool promised) {
    REQUIRE(one.post({&slot, 1}, group));
    for (std::size_t i = 0; i < kChunks; ++i) {
      const std::size_t follow = promised && i >= other ? kBatch - 1 - i % kBatch : 0;
      streams[i < other ? 1 : 0].chunk(group, 0, message, i, static_cast<std::uint8_t>(follow));
    }
    for (Stream& stream : streams) {
      stream.write(stream.bytes.size());
      REQUIRE(stream.at == stream.bytes.size());
    }
    std::ranges::fill(buffer, kUntouched);
    bool done = false;
    const int took = calls_in([&] {
      // A path that has carried nothing of late is looked at now and then only.
      for (int i = 0; i < 1000 && !done; ++i) {
        REQUIRE(one.test(group, done) == Result::success);
      }
    });
    REQUIRE(done);
    CHECK(buffer == message);
    return took;
  };
  for (const std::size_t other : {0UL, 3UL}) {
    const int singly = reads(other, false);
    const int on_end = reads(other, true);
    MESSAGE(singly << " calls without a promise, " << on_end << " with it");
    CHECK(3 * on_end <= 2 * singly);
  }
}

}  // namespace fabric::host::loopback
