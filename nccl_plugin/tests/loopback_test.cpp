// Two transports in one process over 127.0.0.x: real sockets, real threads, connections killed
// while data is on its way, strangers at the door.
#include "tests/loopback_pair.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

TEST_CASE("messages of all sizes arrive") {
  Pair pair(2);
  const Outcome outcome = exchange(pair, milliseconds(300), 50);
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  CHECK(outcome.messages >= 50);
  CHECK(stats_of(*pair.a).errors == 0);
  CHECK(stats_of(*pair.a).rails[1].tx_bytes == 0);  // primary only
}

TEST_CASE("connections killed in mid-transfer, on every rail in turn and all at once") {
  Pair pair(3);
  std::atomic<bool> over{false};
  std::atomic<int> killed{0};
  std::thread assassin([&] {
    std::mt19937 random(1);
    while (!over) {
      std::this_thread::sleep_for(milliseconds(30));
      for (unsigned rail = 1; rail <= 3; ++rail) {
        if (random() % 2 == 0) {
          killed += kill_connections("127.0." + std::to_string(10 + random() % 2) + "." +
                                     std::to_string(rail));
        }
      }
    }
  });
  const Outcome outcome = exchange(pair, milliseconds(3000), 20);
  over = true;
  assassin.join();
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  CHECK(outcome.messages >= 20);
  CHECK(killed > 50);
  CHECK(stats_of(*pair.a).rails[0].failovers > 0);
  MESSAGE(outcome.messages << " messages, " << killed.load() << " sockets killed");
}

TEST_CASE("who blocks is woken for all that counts, also when the connection in use dies") {
  constexpr int kNapUs = 30'000'000;
  Pair pair(2);
  const auto since = Clock::now();
  CHECK(exchange(pair, milliseconds(200), 100, kNapUs).intact);
  std::atomic<bool> over{false};
  std::thread assassin([&] {
    while (!over) {
      std::this_thread::sleep_for(milliseconds(100));
      kill_connections("127.0.10.1");
    }
  });
  const Outcome outcome = exchange(pair, milliseconds(1000), 20, kNapUs);
  over = true;
  assassin.join();
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  CHECK(outcome.messages >= 20);
  CHECK(stats_of(*pair.a).rails[0].failovers > 0);
  CHECK(Clock::now() - since < std::chrono::microseconds(kNapUs));
}

TEST_CASE("who posts and then waits, without a test between, is woken by what comes") {
  constexpr int kNapUs = 20'000'000;
  Pair pair(1);
  // The other way round, so that it is the receiver that never waited before: its connections are
  // not watched yet.
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
  REQUIRE(pair.a->listen(0, handle, &listener) == Result::success);
  REQUIRE(pair.b->connect(0, handle, 0, &send) == Result::success);
  const auto until = Clock::now() + milliseconds(5000);
  while (receive == nullptr && Clock::now() < until) {
    REQUIRE(pair.a->accept(listener, &receive) == Result::success);
  }
  REQUIRE(receive != nullptr);
  REQUIRE(connected(*pair.b, 0));
  pair.a->wait(0);  // the first one makes them wanted
  pair.a->wait(0);
  pair.a->wait(0);
  std::vector<std::byte> to(1'000'000);
  const std::vector<std::byte> bytes = contents(to.size(), 1);
  const ReceiveSlot slot{to.data(), to.size(), 0};
  Request* const request = post(*pair.a, receive, {&slot, 1});
  std::thread sender([&] {
    std::this_thread::sleep_for(milliseconds(200));
    Request* const sent = post(*pair.b, send, bytes);
    bool done = false;
    while (!done && Clock::now() < until + milliseconds(20'000)) {
      REQUIRE(pair.b->test(sent, &done, nullptr) == Result::success);
    }
    CHECK(done);
  });
  const auto since = Clock::now();
  bool done = false;
  do {
    pair.a->wait(kNapUs);
    REQUIRE(pair.a->test(request, &done, nullptr) == Result::success);
  } while (!done);
  CHECK(Clock::now() - since < std::chrono::microseconds(kNapUs / 2));
  sender.join();
  CHECK(to == bytes);
  pair.b->close(send);
  pair.a->close(receive);
  pair.a->close(listener);
}

TEST_CASE("who posts what is done by then, and waits, does not sleep") {
  constexpr int kNapUs = 20'000'000;
  Pair pair(1);
  REQUIRE(exchange(pair, milliseconds(50), 5, 2000).intact);
  const std::vector<std::byte> bytes = contents(8, 1);
  std::vector<std::byte> to(bytes.size());
  std::this_thread::sleep_for(milliseconds(300));  // all of that is told
  for (Net* net : {pair.b.get(), pair.a.get()}) {
    for (int i = 0; i < 3; ++i) {
      net->wait(1000);  // nothing is left over that would wake at once
    }
  }
  const auto since = Clock::now();
  // Copied and sent eagerly: it is done.
  Request* const send = post(*pair.a, pair.send, bytes);
  pair.a->wait(kNapUs);
  bool done = false;
  while (!done) {
    REQUIRE(pair.a->test(send, &done, nullptr) == Result::success);
  }
  // Woken by what it has no receive for: nothing will wake for that again.
  pair.b->wait(kNapUs);
  pair.b->wait(1000);
  const ReceiveSlot slot{to.data(), to.size(), 0};
  Request* const receive = post(*pair.b, pair.receive, {&slot, 1});
  pair.b->wait(kNapUs);
  done = false;
  while (!done) {
    REQUIRE(pair.b->test(receive, &done, nullptr) == Result::success);
  }
  CHECK(to == bytes);
  CHECK(Clock::now() - since < std::chrono::microseconds(kNapUs / 2));
}

// A caller is woken by an acknowledgement, finds the control thread inside its comm ("not yet") and
// waits again, while the control thread reads what it was woken for.
TEST_CASE("who waits is woken by what the control thread has read for him") {
  Pair pair(1);
  REQUIRE(exchange(pair, milliseconds(50), 5).intact);
  // Too large to be done before it is acknowledged, small enough to be with the kernel at once.
  const std::vector<std::byte> bytes = contents(20'000, 1);
  bool woken = false;
  // Once in a while the control thread is the first to see it, and nothing is left to wake for.
  for (int round = 0; round < 10 && !woken; ++round) {
    std::vector<std::byte> to(bytes.size());
    const ReceiveSlot slot{to.data(), to.size(), 0};
    Request* const receive = post(*pair.b, pair.receive, {&slot, 1});
    std::this_thread::sleep_for(milliseconds(200));  // its CTS is there
    Request* const send = post(*pair.a, pair.send, bytes);
    for (int i = 0; i < 3; ++i) {
      pair.a->wait(1000);  // nothing is left over that would wake at once
    }
    std::thread receiver([&] {
      std::this_thread::sleep_for(milliseconds(50));
      bool whole = false;
      while (!whole) {
        REQUIRE(pair.b->test(receive, &whole, nullptr) == Result::success);
      }
    });
    pair.a->wait(20'000'000);
    receiver.join();
    std::this_thread::sleep_for(milliseconds(300));  // the control thread reads it
    const auto since = Clock::now();
    pair.a->wait(1'000'000);
    woken = Clock::now() - since < milliseconds(500);
    bool done = false;
    while (!done) {
      REQUIRE(pair.a->test(send, &done, nullptr) == Result::success);
    }
    CHECK(to == bytes);
  }
  CHECK(woken);
}

TEST_CASE("strangers are counted, and hold up nobody") {
  Pair pair(1);
  const auto handle = decode_handle(pair.handle);
  REQUIRE(handle);
  const Address door = handle->listeners[0];
  std::vector<int> half_open;
  for (int i = 0; i < 40; ++i) {
    half_open.push_back(dial(door));  // says nothing
  }
  const std::string http = "GET / HTTP/1.1\r\n\r\n";
  const int garbage = dial(door);
  CHECK(::send(garbage, http.data(), http.size(), 0) == static_cast<ssize_t>(http.size()));
  // A perfect hello but for the secret.
  Hello hello;
  hello.rails = 1;
  hello.listen_id = handle->listen_id;
  hello.acceptor = handle->incarnation;
  hello.comm = 5;
  const int forged = dial(door);
  const HelloBytes bytes = encode(hello, Secret{});
  CHECK(::send(forged, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  std::array<char, 8> answer{};
  CHECK(::recv(forged, answer.data(), answer.size(), 0) <= 0);  // closed without a word
  const Outcome outcome = exchange(pair, milliseconds(200), 20);
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  const auto until = Clock::now() + milliseconds(4000);
  while (stats_of(*pair.b).refused_peers < 42 && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  CHECK(stats_of(*pair.b).refused_peers == 42);  // the silent ones after their time limit
  for (const int fd : half_open) {
    ::close(fd);
  }
  ::close(garbage);
  ::close(forged);
}

TEST_CASE("grouped receives") {
  Pair pair(1);
  std::vector<std::byte> one = contents(100'000, 1);
  std::vector<std::byte> two = contents(50'000, 2);
  std::vector<std::byte> to_one(100'000);
  std::vector<std::byte> to_two(100'000);
  const std::array<ReceiveSlot, 2> slots{ReceiveSlot{to_one.data(), to_one.size(), 1},
                                         ReceiveSlot{to_two.data(), to_two.size(), 2}};
  Request* const receive = post(*pair.b, pair.receive, slots, true);
  const std::array<Request*, 2> sends{post(*pair.a, pair.send, two, 2),
                                      post(*pair.a, pair.send, one, 1)};
  std::array<bool, 3> done{};
  std::array<int, 2> sizes{};
  const auto until = Clock::now() + milliseconds(5000);
  while ((!done[0] || !done[1] || !done[2]) && Clock::now() < until) {
    if (!done[0]) {
      REQUIRE(pair.b->test(receive, done.data(), sizes.data()) == Result::success);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      if (!done[i + 1]) {
        REQUIRE(pair.a->test(sends[i], &done[i + 1], nullptr) == Result::success);
      }
    }
  }
  CHECK(done[0]);
  CHECK(sizes[0] == 100'000);
  CHECK(sizes[1] == 50'000);
  CHECK(to_one == one);
  CHECK(std::equal(two.begin(), two.end(), to_two.begin()));
}

TEST_CASE("a peer that is gone is an error long before the deadline") {
  Pair pair(2);
  CHECK(exchange(pair, milliseconds(50), 5).result == Result::success);
  pair.b->finalize();  // its listeners and links vanish, no comm is closed
  const auto other = make_net(Params{}, std::vector<Rail>{rail_of(1, 0)});  // another comes up
  REQUIRE(other->init(nullptr) == Result::success);
  const std::vector<std::byte> bytes = contents(100'000, 1);
  Request* request = nullptr;
  const auto until = Clock::now() + milliseconds(5000);  // the deadline is 20 s
  Result result = Result::success;
  bool done = false;
  while (result == Result::success && Clock::now() < until) {
    result = request == nullptr ? pair.a->isend(pair.send, bytes.data(), bytes.size(), 0, &request)
                                : pair.a->test(request, &done, nullptr);
    pair.a->wait(5000);
  }
  CHECK(result == Result::remote_error);
}

TEST_CASE("the plain mode has one path and gives up with it") {
  Params params = Pair::usual();
  params.failover = false;
  Pair pair(2, params);
  CHECK(exchange(pair, milliseconds(100), 10).result == Result::success);
  CHECK(stats_of(*pair.a).rails[1].tx_bytes == 0);
  std::thread assassin([] {
    std::this_thread::sleep_for(milliseconds(100));
    kill_connections("127.0.10.1");
  });
  const Outcome outcome = exchange(pair, milliseconds(3000));
  assassin.join();
  CHECK(stats_of(*pair.a).errors + stats_of(*pair.b).errors > 0);
  CHECK(outcome.intact);
}

TEST_CASE("close with requests in flight") {
  std::vector<std::byte> buffer(1 << 20);
  const std::vector<std::byte> bytes = contents(1 << 20, 3);
  Pair pair(2);
  const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
  post(*pair.b, pair.receive, {&slot, 1});
  post(*pair.a, pair.send, bytes);
  CHECK(pair.b->close(pair.receive) == Result::success);
  pair.receive = nullptr;
}

TEST_CASE("a device has no rail id: its place in this host's list means nothing on another") {
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(0, 0), rail_of(0, 1)});
  REQUIRE(net->init(nullptr) == Result::success);
  for (const int device : {0, 1}) {
    const DeviceProperties* properties = nullptr;
    REQUIRE(net->properties(device, &properties) == Result::success);
    CHECK(properties->rail_id == -1);
  }
  CHECK(net->finalize() == Result::success);
}
