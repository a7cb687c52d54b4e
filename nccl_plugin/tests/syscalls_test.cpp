// How often the caller's thread enters the kernel. The functions below stand before libc's: what
// the plugin calls is counted by thread, so the control thread's share stays out.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/comm_kit.h"

namespace {

thread_local int calls = 0;

template <typename... Args>
ssize_t counted(long number, Args... args) {
  ++calls;
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
}

namespace fabric::tcp::loopback {

namespace {

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
  // The first ticks of both ends: from then on small messages go ahead of their grants.
  const auto until = Clock::now() + milliseconds(20'000);
  int granted = 1;
  while (granted != 0 && Clock::now() < until) {
    Receive receive = receive_of(ends.receive, {8});
    granted = calls_in([&] { REQUIRE(push(*b, receive)); }) - 1;  // one to look for the message
    std::vector<Send> sends(1);
    sends[0].comm = ends.send;
    sends[0].bytes = contents(8, 2);
    std::vector<Receive> receives{std::move(receive)};
    REQUIRE(run(*a, sends, *b, receives));
  }
  REQUIRE(granted == 0);

  const std::vector<std::byte> from = contents(8, 3);
  for (int round = 0; round < 40; ++round) {
    std::array<std::array<std::byte, 8>, 2> to{};
    std::array<Request*, 2> receives{};
    Request* send = nullptr;
    bool done = false;
    int size = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const ReceiveSlot slot{to[i].data(), to[i].size(), 0};
      CHECK(calls_in([&] {
              REQUIRE(b->irecv(ends.receive, {&slot, 1}, false, &receives[i]) == Result::success);
            }) == 0);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(calls_in([&] {
              REQUIRE(a->isend(ends.send, from.data(), from.size(), 0, &send) == Result::success);
            }) == 1);
      REQUIRE(send != nullptr);
      CHECK(calls_in([&] { REQUIRE(a->test(send, &done, &size) == Result::success); }) == 0);
      CHECK(done);
    }
    done = false;
    while (!done && Clock::now() < until) {
      CHECK(calls_in([&] { REQUIRE(b->test(receives[1], &done, &size) == Result::success); }) == 1);
    }
    REQUIRE(done);
    // The first came before it.
    CHECK(calls_in([&] { REQUIRE(b->test(receives[0], &done, &size) == Result::success); }) == 0);
    CHECK(done);
    CHECK(std::equal(from.begin(), from.end(), to[0].begin()));
  }
  close(*a, *b, ends);
}

}  // namespace fabric::tcp::loopback
