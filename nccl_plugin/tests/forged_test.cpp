// Ends of bare sockets that hold the secret: what a process answers to what no plugin of ours would
// say just then, and what it does when it has no descriptor for them.
#include <sys/resource.h>
#include <time.h>

#include "tests/bare_peer.h"
#include "tests/comm_kit.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

std::int64_t cpu_ms() {
  timespec spent{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return std::int64_t{spent.tv_sec} * 1000 + spent.tv_nsec / 1'000'000;
}

}  // namespace

TEST_CASE("whoever speaks of a comm that is no more is told that it is closed") {
  const Pair pair(1);
  const auto handle = decode_handle(pair.handle);
  REQUIRE(handle);
  const int link = dial(handle->listeners[0]);
  CHECK(greet(link, hello_for(*handle, HelloKind::control, 4242), handle->secret).status ==
        WelcomeStatus::ok);
  Bytes words;
  SUBCASE("a receiver that is alone") { append_state(words, 999, {}); }
  SUBCASE("one that gave its connection up") {
    append_state(words, 999, {PathEpoch{0, 1, 0}, {}}, FrameType::retired);
  }
  SUBCASE("a sender that fences") { append_path(words, FrameType::fence, 999, {0, 1, 0}); }
  REQUIRE(say(link, words));
  CHECK(next_of(link, FrameType::close) == 999);
  ::close(link);
}

TEST_CASE(
    "a receiver says its state to a link that comes up: a close that was lost is said again") {
  const Pair pair(1);
  const auto handle = decode_handle(pair.handle);
  REQUIRE(handle);
  constexpr std::uint64_t kProcess = 4242;
  constexpr std::uint64_t kComm = 777;
  const int link = dial(handle->listeners[0]);
  greet(link, hello_for(*handle, HelloKind::control, kProcess), handle->secret);
  Hello hello = hello_for(*handle, HelloKind::data, kProcess);
  hello.comm = kComm;
  hello.epoch = 1;
  ListenComm* listener = nullptr;
  std::array<std::byte, kHandleSize> bytes{};
  REQUIRE(pair.b->listen(0, bytes, &listener) == Result::success);
  const auto own = decode_handle(bytes);
  REQUIRE(own);
  hello.listen_id = own->listen_id;
  const int data = dial(handle->listeners[0]);
  CHECK(greet(data, hello, own->secret).status == WelcomeStatus::ok);
  RecvComm* receive = accept(*pair.b, listener);
  std::array<std::byte, 8> room{};
  const ReceiveSlot slot{room.data(), room.size(), 0};
  Request* const request = post(*pair.b, receive, {&slot, 1});
  // The sender closes, and its links are gone before they can tell.
  ::close(link);
  std::this_thread::sleep_for(milliseconds(50));
  const int again = dial(handle->listeners[0]);
  greet(again, hello_for(*handle, HelloKind::control, kProcess), handle->secret);
  CHECK(next_of(again, FrameType::state) == kComm);
  Bytes words;
  append_frame(words, FrameType::close, kComm);
  REQUIRE(say(again, words));
  ::close(data);
  bool done = false;
  CHECK(end_of(*pair.b, request, done) == Result::remote_error);
  CHECK(pair.b->close(receive) == Result::success);
  CHECK(pair.b->close(listener) == Result::success);
  ::close(again);
}

TEST_CASE("a comm is joined only by the process and the secret that it was opened with") {
  const Pair pair(1);
  std::array<std::array<std::byte, kHandleSize>, 2> bytes{};
  std::array<ListenComm*, 2> listeners{};
  std::array<Handle, 2> handles{};
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE(pair.b->listen(0, bytes[i], &listeners[i]) == Result::success);
    handles[i] = decode_handle(bytes[i]).value();
  }
  const auto join = [&](std::size_t which, std::uint64_t process, core::Epoch epoch) {
    Hello hello = hello_for(handles[which], HelloKind::data, process);
    hello.comm = 777;
    hello.epoch = epoch;
    const int fd = dial(handles[which].listeners[0]);
    const Welcome welcome = greet(fd, hello, handles[which].secret);
    return std::pair(fd, welcome.status);
  };
  const auto first = join(0, 1, 1);
  CHECK(first.second == WelcomeStatus::ok);
  RecvComm* receive = accept(*pair.b, listeners[0]);
  const auto elsewhere = join(1, 1, 2);  // a secret of the same process, not this comm's
  CHECK(elsewhere.second == WelcomeStatus::closed);
  const auto other = join(0, 2, 2);  // this comm's secret, another process
  CHECK(other.second == WelcomeStatus::closed);
  const auto again = join(0, 1, 2);
  CHECK(again.second == WelcomeStatus::ok);
  for (const auto& [fd, status] : {first, elsewhere, other, again}) {
    ::close(fd);
  }
  CHECK(pair.b->close(receive) == Result::success);
  for (ListenComm* listener : listeners) {
    CHECK(pair.b->close(listener) == Result::success);
  }
}

TEST_CASE("without a descriptor for whoever connects nothing spins, and later they are heard") {
  const Pair pair(1);
  const auto handle = decode_handle(pair.handle);
  REQUIRE(handle);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_storage storage{};
  const socklen_t length = handle->listeners[0].to(storage);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const int connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&storage), length);
  const std::int64_t spent = cpu_ms();
  std::this_thread::sleep_for(milliseconds(1000));
  const std::int64_t took = cpu_ms() - spent;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(connected == 0);
  CHECK(took < 500);
  CHECK(greet(fd, hello_for(*handle, HelloKind::control, 1), handle->secret).status ==
        WelcomeStatus::ok);
  ::close(fd);
}
