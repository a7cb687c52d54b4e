// Where traffic goes and whom we talk to, over real sockets: striping, standby rails, the trial of
// a path that came back, versions of the wire.
#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "tests/loopback_pair.h"

using namespace fabric;
using namespace fabric::tcp;
using namespace fabric::tcp::loopback;

namespace {

std::uint64_t moved(const Net& net, std::size_t rail) { return stats_of(net).rails[rail].tx_bytes; }

// Waits until the path of this rail is there (connected, or connected again).
bool connected(const Net& net, std::size_t rail) {
  const auto until = Clock::now() + milliseconds(5000);
  while (Clock::now() < until) {
    if (stats_of(net).rails[rail].live_paths != 0) {
      return true;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

// A log that a test reads.
std::mutex log_mutex;
std::string log_text;
void keep_log(int, unsigned long, const char*, int, const char* format, ...) {
  std::array<char, 1024> line{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  const std::scoped_lock lock(log_mutex);
  log_text += line.data();
  log_text += '\n';
}
std::string logged() {
  const std::scoped_lock lock(log_mutex);
  return log_text;
}

// A small message before its receive is posted: did it go out? Then it is received.
bool goes_out_early(Pair& pair) {
  const auto chunks = [&] {
    return stats_of(*pair.a).rails[0].tx_chunks + stats_of(*pair.a).rails[1].tx_chunks;
  };
  std::this_thread::sleep_for(milliseconds(50));  // a tick: it knows the version
  const auto before = chunks();
  std::array<std::byte, 8> bytes{};
  std::array<std::byte, 8> room{};
  Request* sent = nullptr;
  const auto until = Clock::now() + milliseconds(5000);
  while (sent == nullptr && Clock::now() < until) {
    REQUIRE(pair.a->isend(pair.send, bytes.data(), bytes.size(), 0, &sent) == Result::success);
  }
  std::this_thread::sleep_for(milliseconds(100));
  const bool early = chunks() != before;
  const ReceiveSlot slot{room.data(), room.size(), 0};
  Request* received = nullptr;
  REQUIRE(pair.b->irecv(pair.receive, {&slot, 1}, false, &received) == Result::success);
  bool gone = false;
  bool here = false;
  while (!(gone && here) && Clock::now() < until) {
    CHECK((gone || pair.a->test(sent, &gone, nullptr) == Result::success));
    CHECK((here || pair.b->test(received, &here, nullptr) == Result::success));
  }
  CHECK(gone);
  CHECK(here);
  return early;
}

}  // namespace

TEST_CASE("striping: one comm over all rails, and over those that are left") {
  Params params = Pair::usual();
  params.stripe = true;
  Pair pair(3, params);
  REQUIRE(connected(*pair.a, 2));
  CHECK(exchange(pair, milliseconds(200), 60).intact);
  const std::uint64_t most = std::max({moved(*pair.a, 0), moved(*pair.a, 1), moved(*pair.a, 2)});
  for (std::size_t rail = 0; rail < 3; ++rail) {
    CHECK(moved(*pair.a, rail) > most / 2);
  }
}

TEST_CASE("FABRIC_STANDBY: standby rails move behind the others") {
  std::vector<Rail> rails(3);
  for (std::size_t i = 0; i < 3; ++i) {
    rails[i].name = "n" + std::to_string(i);
  }
  std::array<std::uint8_t, core::kMaxRails> stands_for{};
  std::size_t shown = 0;
  CHECK(set_standby("n0/n1", rails, stands_for, shown).empty());
  CHECK(shown == 2);
  CHECK(rails[0].name == "n0");
  CHECK(rails[1].name == "n2");
  CHECK(rails[2].name == "n1");
  CHECK(stands_for[2] == 0);
  CHECK(stands_for[0] == core::kStandsForNone);
  for (const char* bad : {"n0", "n0/n9", "n0/n0", "/", "n0/", "n0/n1,n1/n2", "n0/n1,n2/n0"}) {
    CHECK_FALSE(set_standby(bad, rails, stands_for, shown).empty());
  }
  CHECK(set_standby("", rails, stands_for, shown).empty());
  CHECK(shown == 3);
}

TEST_CASE("a path that came back is tried before it is trusted") {
  Pair pair(2);
  REQUIRE(connected(*pair.a, 1));
  CHECK(exchange(pair, milliseconds(50), 5).intact);
  CHECK(kill_connections("127.0.10.1") > 0);
  const auto until = Clock::now() + milliseconds(10'000);
  const std::uint64_t before = moved(*pair.a, 0);
  while (moved(*pair.a, 0) == before && Clock::now() < until) {
    CHECK(exchange(pair, milliseconds(50), 5).intact);
  }
  CHECK(moved(*pair.a, 0) > before);
  CHECK(stats_of(*pair.a).rails[0].rejoins > 0);
  CHECK(stats_of(*pair.a).rails[0].trials > 0);
  CHECK(stats_of(*pair.a).errors == 0);
  // The trial is nobody's payload.
  CHECK(stats_of(*pair.b).rails[0].duplicate_bytes == 0);
}

TEST_CASE("wire version N works with N-1, either way") {
  Params newer = Pair::usual();
  Params older = Pair::usual();
  older.wire_max = kWireVersion - 1;
  {
    Pair pair(2);
    REQUIRE(connected(*pair.a, 1));
    CHECK(goes_out_early(pair));
  }
  for (const bool first : {true, false}) {
    Pair pair(2, first ? older : newer, first ? newer : older);
    REQUIRE(connected(*pair.a, 1));
    CHECK_FALSE(goes_out_early(pair));
    CHECK(exchange(pair, milliseconds(50), 10).intact);
    // What only the newer version has is refused here, which costs the connection.
    for (const Net* net : {pair.a.get(), pair.b.get()}) {
      for (std::size_t rail = 0; rail < 2; ++rail) {
        CHECK(stats_of(*net).rails[rail].failovers == 0);
      }
    }
    CHECK(kill_connections("127.0.10.1") > 0);
    const auto until = Clock::now() + milliseconds(10'000);
    const std::uint64_t before = moved(*pair.a, 0);
    while (moved(*pair.a, 0) == before && Clock::now() < until) {
      CHECK(exchange(pair, milliseconds(50), 5).intact);
    }
    CHECK(moved(*pair.a, 0) > before);  // back without a trial
    CHECK(stats_of(*pair.a).rails[0].trials == 0);
    CHECK(stats_of(*pair.a).errors + stats_of(*pair.b).errors == 0);
  }
}

TEST_CASE("a dialler without a common version is told so") {
  log_text.clear();
  Pair pair(1);
  const auto handle = decode_handle(pair.handle);
  REQUIRE(handle);
  Hello hello;
  hello.version_min = kWireVersion + 1;
  hello.version_max = kWireVersion + 2;
  hello.rails = 1;
  hello.listen_id = handle->listen_id;
  hello.acceptor = handle->incarnation;
  hello.nonce = 77;
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_storage storage{};
  const socklen_t length = handle->listeners[0].to(storage);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0);
  const HelloBytes bytes = encode(hello, handle->secret);
  REQUIRE(::send(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  WelcomeBytes answer{};
  REQUIRE(::recv(fd, answer.data(), answer.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(answer.size()));
  const auto welcome = decode_welcome(answer, handle->secret);
  REQUIRE(welcome);
  CHECK(welcome->status == WelcomeStatus::version);
  CHECK(welcome->version == kWireVersion);
  CHECK(welcome->version_min == kWireVersionMin);
  CHECK(welcome->nonce == 77);
  ::close(fd);
}

TEST_CASE("a peer without a common version is an error at once that names both") {
  log_text.clear();
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(0, 0)});
  REQUIRE(net->init(keep_log) == Result::success);
  // A listener of a plugin from the future.
  const int door = ::socket(AF_INET, SOCK_STREAM, 0);
  Rail there = rail_of(1, 0);
  sockaddr_storage storage{};
  socklen_t length = there.address.to(storage);
  REQUIRE(::bind(door, reinterpret_cast<const sockaddr*>(&storage), length) == 0);
  REQUIRE(::listen(door, 8) == 0);
  length = sizeof storage;
  ::getsockname(door, reinterpret_cast<sockaddr*>(&storage), &length);
  Handle handle;
  handle.listen_id = 1;
  handle.incarnation = 99;
  handle.rails = 1;
  handle.listeners[0] = Address::from(reinterpret_cast<const sockaddr*>(&storage));
  std::thread future([&] {
    const int fd = ::accept(door, nullptr, nullptr);
    HelloBytes bytes{};
    ::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL);
    const auto hello = decode_hello(bytes, handle.secret);
    Welcome welcome;
    welcome.status = WelcomeStatus::version;
    welcome.version = 9;
    welcome.version_min = 8;
    welcome.rails = 1;
    welcome.incarnation = 99;
    welcome.nonce = hello ? hello->nonce : 0;
    const WelcomeBytes answer = encode(welcome, handle.secret);
    ::send(fd, answer.data(), answer.size(), 0);
    ::close(fd);
  });
  std::array<std::byte, kHandleSize> bytes{};
  encode(handle, bytes);
  SendComm* comm = nullptr;
  REQUIRE(net->connect(0, bytes, 0, &comm) == Result::success);
  Request* request = nullptr;
  Result result = Result::success;
  const auto until = Clock::now() + milliseconds(5000);
  std::byte byte{};
  while (result == Result::success && Clock::now() < until) {
    bool done = false;
    result = request == nullptr ? net->isend(comm, &byte, 1, 0, &request)
                                : net->test(request, &done, nullptr);
    net->wait(2000);
  }
  CHECK(result == Result::remote_error);
  CHECK(logged().find("wire versions 8 to 9, this one 1 to 2") != std::string::npos);
  future.join();
  ::close(door);
  CHECK(net->close(comm) == Result::success);
  net->finalize();
}

TEST_CASE("a handle that is not ours is refused at once, with the reason") {
  log_text.clear();
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(0, 0)});
  REQUIRE(net->init(keep_log) == Result::success);
  std::array<std::byte, kHandleSize> bytes{};
  SendComm* comm = nullptr;
  CHECK(net->connect(0, bytes, 0, &comm) == Result::invalid_argument);
  CHECK(logged().find("not of this plugin") != std::string::npos);
  Handle handle;
  handle.rails = 1;
  handle.listeners[0] = rail_of(1, 0).address;
  encode(handle, bytes);
  bytes[4] = std::byte{200};
  CHECK(net->connect(0, bytes, 0, &comm) == Result::invalid_argument);
  CHECK(logged().find("handles of version 200") != std::string::npos);
  net->finalize();
}
