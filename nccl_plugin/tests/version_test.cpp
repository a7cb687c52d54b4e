// Peers that speak another version of the wire, and handles of those that speak none of ours: over
// real sockets.
#include <poll.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "tests/bare_peer.h"
#include "tests/loopback_pair.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

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

// A listener of a plugin of another release, played by the test.
class Door {
 public:
  Door() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    Rail there = rail_of(1, 0);
    sockaddr_storage storage{};
    socklen_t length = there.address.to(storage);
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&storage), length) == 0);
    REQUIRE(::listen(fd_, 8) == 0);
    length = sizeof storage;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&storage), &length);
    address_ = Address::from(reinterpret_cast<const sockaddr*>(&storage));
  }
  ~Door() { shut(); }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] Handle handle() const {
    Handle made;
    made.listen_id = 1;
    made.incarnation = 99;
    made.rails = 1;
    made.listeners[0] = address_;
    return made;
  }
  void shut() {
    if (fd_ >= 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }

 private:
  int fd_;
  Address address_;
};

// "wire versions 7 to 8, this one 1 to 6"
std::string versions(int min, int max, int own_min, int own_max) {
  return "wire versions " + std::to_string(min) + " to " + std::to_string(max) + ", this one " +
         std::to_string(own_min) + " to " + std::to_string(own_max);
}

// Offers up to this version, as a release that knew no more.
Params of_version(int highest) {
  Params params = Pair::usual();
  params.wire_max = highest;
  params.unproven = highest < kWireVersionChallenge;
  return params;
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
  Request* const sent = post(*pair.a, pair.send, bytes);
  const auto until = Clock::now() + milliseconds(5000);
  std::this_thread::sleep_for(milliseconds(100));
  const bool early = chunks() != before;
  const ReceiveSlot slot{room.data(), room.size(), 0};
  Request* const received = post(*pair.b, pair.receive, {&slot, 1});
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

// What connect() says to a listener that speaks these versions, when it offers up to `highest`
// itself. Nobody listens there: what is decided is decided by the handle.
Result connects(int highest, std::uint8_t min, std::uint8_t max) {
  const auto net = make_net(of_version(highest), std::vector<Rail>{rail_of(0, 0)});
  REQUIRE(net->init(keep_log) == Result::success);
  Handle handle;
  handle.rails = 1;
  handle.incarnation = 99;
  handle.listeners[0] = rail_of(1, 0).address;
  handle.listeners[0].port = 9;
  handle.wire_min = min;
  handle.wire_max = max;
  std::array<std::byte, kHandleSize> bytes{};
  encode(handle, bytes);
  SendComm* comm = nullptr;
  const Result result = net->connect(0, bytes, 0, &comm);
  CHECK((comm != nullptr) == (result == Result::success));
  if (comm != nullptr) {
    CHECK(net->close(comm) == Result::success);
  }
  net->finalize();
  return result;
}

}  // namespace

TEST_CASE("wire version N works with N-1, and with the oldest, either way") {
  {
    Pair pair(2);
    REQUIRE(connected(*pair.a, 1));
    CHECK(goes_out_early(pair));
  }
  static_assert(kWireVersion - 1 < kWireVersionChallenge);
  for (const int version : {kWireVersion - 1, int{kWireVersionEager}, int{kWireVersionMin}}) {
    for (const bool first : {true, false}) {
      CAPTURE(version);
      CAPTURE(first);
      const bool has_eager = version >= kWireVersionEager;  // and path validation
      Params newer = Pair::usual();
      const Params older = of_version(version);
      newer.unproven = older.unproven;  // as the operator says who has both
      Pair pair(2, first ? older : newer, first ? newer : older);
      REQUIRE(connected(*pair.a, 1));
      CHECK(goes_out_early(pair) == has_eager);
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
      CHECK(moved(*pair.a, 0) > before);
      CHECK((stats_of(*pair.a).rails[0].validations != 0) == has_eager);
      CHECK(stats_of(*pair.a).errors + stats_of(*pair.b).errors == 0);
    }
  }
}

TEST_CASE("a dialler without a common version is told so, and accept() returns an error") {
  log_text.clear();
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(1, 0)});
  REQUIRE(net->init(keep_log) == Result::success);
  std::array<std::byte, kHandleSize> own{};
  ListenComm* listener = nullptr;
  REQUIRE(net->listen(0, own, &listener) == Result::success);
  ListenComm* other = nullptr;
  std::array<std::byte, kHandleSize> unused{};
  REQUIRE(net->listen(0, unused, &other) == Result::success);
  const auto handle = decode_handle(own);
  REQUIRE(handle);
  Hello hello;
  hello.version_min = kWireVersion + 1;
  hello.version_max = kWireVersion + 2;
  hello.rails = 1;
  hello.listen_id = handle->listen_id;
  hello.acceptor = handle->incarnation;
  hello.nonce = 77;
  const int fd = dial(handle->listeners[0]);
  const HelloBytes bytes = encode(hello, handle->secret);
  REQUIRE(::send(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  WelcomeBytes answer{};
  REQUIRE(::recv(fd, answer.data(), answer.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(answer.size()));
  const auto welcome = decode_welcome(answer, handle->secret);
  REQUIRE(welcome);
  CHECK(welcome->status == WelcomeStatus::version);
  CHECK(welcome->version == kWireVersion);
  CHECK(welcome->version_min == kWireVersionChallenge);
  CHECK(welcome->nonce == 77);
  ::close(fd);
  CHECK(logged().find(versions(kWireVersion + 1, kWireVersion + 2, kWireVersionChallenge,
                               kWireVersion)) != std::string::npos);
  CHECK(logged().find("FABRIC_UNPROVEN=1") == std::string::npos);  // that would not help
  RecvComm* comm = nullptr;
  CHECK(net->accept(listener, &comm) == Result::remote_error);
  CHECK(comm == nullptr);
  CHECK(net->accept(other, &comm) == Result::success);  // nobody has come for that one
  CHECK(comm == nullptr);
  CHECK(net->close(listener) == Result::success);
  CHECK(net->close(other) == Result::success);
  net->finalize();
}

TEST_CASE("a peer without a common version is an error at once that names both") {
  log_text.clear();
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(0, 0)});
  REQUIRE(net->init(keep_log) == Result::success);
  Door door;
  const Handle handle = door.handle();
  std::thread future([&] {
    const int fd = ::accept(door.fd(), nullptr, nullptr);
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
  REQUIRE(net->connect(0, bytes, 0, &comm) == Result::success);  // the handle said otherwise
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
  CHECK(logged().find(versions(8, 9, kWireVersionMin, kWireVersion)) != std::string::npos);
  future.join();
  door.shut();
  // Now it is known: the next comm to that process is refused before there is one.
  log_text.clear();
  SendComm* next = nullptr;
  CHECK(net->connect(0, bytes, 0, &next) == Result::remote_error);
  CHECK(next == nullptr);
  CHECK(logged().find(versions(8, 9, kWireVersionMin, kWireVersion)) != std::string::npos);
  CHECK(net->close(comm) == Result::success);
  net->finalize();
}

TEST_CASE("connect() refuses a handle without a common version at once, and names both") {
  log_text.clear();
  CHECK(connects(kWireVersion, kWireVersion + 1, kWireVersion + 2) == Result::remote_error);
  CHECK(logged().find("connect: peer 127.0.11.1:9 runs a plugin that speaks " +
                      versions(kWireVersion + 1, kWireVersion + 2, kWireVersionMin,
                               kWireVersion)) != std::string::npos);
  log_text.clear();
  CHECK(connects(kWireVersion - 1, kWireVersion, kWireVersion) == Result::remote_error);
  CHECK(logged().find(versions(kWireVersion, kWireVersion, kWireVersionMin, kWireVersion - 1)) !=
        std::string::npos);
  // One in common is enough: the next release drops the oldest, the one before lacks the newest.
  CHECK(connects(kWireVersion, kWireVersion, kWireVersion + 1) == Result::success);
  CHECK(connects(kWireVersion, kWireVersionMin, kWireVersionUnsafe) == Result::success);
  CHECK(connects(kWireVersionUnsafe, kWireVersionMin, kWireVersion) == Result::success);
  // Version 2 lets messages land in the wrong buffer: it is none.
  CHECK(connects(kWireVersion, kWireVersionUnsafe, kWireVersionUnsafe) == Result::remote_error);
}

TEST_CASE("a peer that speaks 1 and 2 is offered 1") {
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(0, 0)});
  REQUIRE(net->init(nullptr) == Result::success);
  const Door door;
  Handle handle = door.handle();
  handle.wire_max = kWireVersionUnsafe;
  std::array<std::byte, kHandleSize> bytes{};
  encode(handle, bytes);
  SendComm* comm = nullptr;
  REQUIRE(net->connect(0, bytes, 0, &comm) == Result::success);
  const int fd = ::accept(door.fd(), nullptr, nullptr);
  HelloBytes said{};
  REQUIRE(::recv(fd, said.data(), said.size(), MSG_WAITALL) == static_cast<ssize_t>(said.size()));
  const auto hello = decode_hello(said, handle.secret);
  REQUIRE(hello);
  CHECK(hello->version_min == kWireVersionMin);
  CHECK(hello->version_max == kWireVersionUnsafe - 1);
  ::close(fd);
  CHECK(net->close(comm) == Result::success);
  net->finalize();
}

TEST_CASE("a handle says what its listener speaks") {
  for (const bool unproven : {false, true}) {
    for (const int highest : {int{kWireVersionMin}, int{kWireVersion}}) {
      CAPTURE(unproven);
      CAPTURE(highest);
      Params params = Pair::usual();
      params.wire_max = highest;
      params.unproven = unproven;
      log_text.clear();
      const auto net = make_net(params, std::vector<Rail>{rail_of(0, 0)});
      REQUIRE(net->init(keep_log) == Result::success);
      std::array<std::byte, kHandleSize> bytes{};
      ListenComm* listener = nullptr;
      REQUIRE(net->listen(0, bytes, &listener) == Result::success);
      const auto handle = decode_handle(bytes);
      REQUIRE(handle);
      CHECK(handle->wire_min == (unproven ? kWireVersionMin : kWireVersionChallenge));
      CHECK(handle->wire_max == (unproven ? highest : kWireVersion));
      CHECK((logged().find("FABRIC_UNPROVEN=1: peers that answer no challenge are let in") !=
             std::string::npos) == unproven);
      CHECK((logged().find("FABRIC_WIRE=1 has no challenge") != std::string::npos) ==
            (!unproven && highest == kWireVersionMin));
      CHECK(net->close(listener) == Result::success);
      net->finalize();
    }
  }
}

TEST_CASE("a peer of the release before is refused unless the operator lets it in; the log tells") {
  for (const bool unproven : {false, true}) {
    CAPTURE(unproven);
    Params params = Pair::usual();
    params.unproven = unproven;
    log_text.clear();
    const auto net = make_net(params, std::vector<Rail>{rail_of(1, 0)});
    REQUIRE(net->init(keep_log) == Result::success);
    std::array<std::byte, kHandleSize> own{};
    ListenComm* listener = nullptr;
    REQUIRE(net->listen(0, own, &listener) == Result::success);
    const auto handle = decode_handle(own);
    REQUIRE(handle);
    // By the handle, before it dials.
    CHECK((connects(kWireVersion - 1, handle->wire_min, handle->wire_max) == Result::success) ==
          unproven);
    CHECK((logged().find(versions(kWireVersionChallenge, kWireVersion, kWireVersionMin,
                                  kWireVersion - 1)) == std::string::npos) == unproven);
    // One that dials nevertheless.
    log_text.clear();
    for (int i = 0; i < 2; ++i) {
      Hello hello = hello_for(*handle, HelloKind::control, 4242);
      hello.version_max = kWireVersion - 1;
      const int fd = dial(handle->listeners[0]);
      const Welcome welcome = greet(fd, hello, handle->secret);
      CHECK(welcome.status == (unproven ? WelcomeStatus::ok : WelcomeStatus::version));
      CHECK(welcome.version == (unproven ? kWireVersion - 1 : kWireVersion));
      CHECK(welcome.version_min == (unproven ? 0 : kWireVersionChallenge));
      ::close(fd);
    }
    const std::string let_in = "answers no challenge (wire version 5) and is let in";
    CHECK((logged().find(let_in) != std::string::npos) == unproven);
    CHECK(logged().find(let_in) == logged().rfind(let_in));  // once for each process
    CHECK((logged().find("FABRIC_UNPROVEN=1 lets it in for the time of an upgrade") !=
           std::string::npos) != unproven);
    CHECK(stats_of(*net).refused_peers == (unproven ? 0 : 2));
    RecvComm* comm = nullptr;
    CHECK(net->accept(listener, &comm) == (unproven ? Result::success : Result::remote_error));
    // Those that prove themselves are asked to with either.
    Bytes said;
    const int fd = dial(handle->listeners[0]);
    CHECK(greet(fd, hello_for(*handle, HelloKind::control, 4243), handle->secret, &said).status ==
          WelcomeStatus::ok);
    CHECK(said.size() == kHelloSize + kProofSize);
    ::close(fd);
    CHECK(net->close(listener) == Result::success);
    net->finalize();
  }
}

TEST_CASE("a liveness probe without a proof is answered, and believed only where that is allowed") {
  for (const bool unproven : {false, true}) {
    CAPTURE(unproven);
    Params params = Pair::usual();
    params.unproven = unproven;
    const auto net = make_net(params, std::vector<Rail>{rail_of(0, 0)});
    REQUIRE(net->init(nullptr) == Result::success);
    const Door door;
    Handle handle = door.handle();
    handle.wire_max = kWireVersion - 1;
    std::array<std::byte, kHandleSize> bytes{};
    encode(handle, bytes);
    SendComm* comm = nullptr;
    REQUIRE(net->connect(0, bytes, 0, &comm) == Result::success);
    const int link = ::accept(door.fd(), nullptr, nullptr);
    HelloBytes said{};
    REQUIRE(::recv(link, said.data(), said.size(), MSG_WAITALL) ==
            static_cast<ssize_t>(said.size()));
    const auto hello = decode_hello(said, handle.secret);
    REQUIRE(hello);
    // It says that it lives elsewhere now.
    const Door elsewhere;
    Hello probe = hello_for(handle, HelloKind::liveness_probe, handle.incarnation);
    probe.version_max = kWireVersion - 1;
    probe.acceptor = hello->initiator;
    probe.comm = 100;
    probe.listeners = elsewhere.handle().listeners;
    const int fd = dial(hello->listeners[0]);
    CHECK(greet(fd, probe, handle.secret).status == WelcomeStatus::ok);
    ::close(fd);
    ::close(link);  // it dials again
    pollfd came{elsewhere.fd(), POLLIN, 0};
    CHECK((::poll(&came, 1, unproven ? 5000 : 500) == 1) == unproven);
    CHECK(net->close(comm) == Result::success);
    net->finalize();
  }
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
  encode(handle, bytes);
  bytes[7] = std::byte{0x21};  // speaks versions 2 to 1
  CHECK(net->connect(0, bytes, 0, &comm) == Result::invalid_argument);
  CHECK(logged().find("the handle is damaged") != std::string::npos);
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
    CHECK(net->connect(0, bytes, 0, &comm) == Result::invalid_argument);
  }
  CHECK(comm == nullptr);
  net->finalize();
}
