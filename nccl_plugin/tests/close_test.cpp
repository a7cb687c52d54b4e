// Comms that end at any moment, over real sockets in one process: with requests in flight, while
// they are being opened, at both ends at once. Most of its worth is under the sanitizers.
#include "tests/comm_kit.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

TEST_CASE("the sender closes with sends in flight: what is said to be received is what was sent") {
  Pair pair(2);
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 20; ++round) {
    const Ends ends = open(*pair.a, *pair.b);
    std::array<std::vector<std::byte>, 2> bytes;
    std::array<std::vector<std::byte>, 3> buffers;
    std::array<Request*, 2> sends{};
    std::array<Request*, 3> receives{};
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].assign(std::size_t{128} * 1024, kUntouched);
      const ReceiveSlot slot{buffers[i].data(), buffers[i].size(), 0};
      receives[i] = post(*pair.b, ends.receive, {&slot, 1});
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
      bytes[i] = contents(9 * 1024 + random() % (119 * 1024) / 8 * 8, random());
      sends[i] = post(*pair.a, ends.send, bytes[i]);
    }
    // Even rounds: all of it lies with the receiver's kernel, and the close overtakes it.
    const bool lies = round % 2 == 0;
    for (int i = 0; lies && i < 20; ++i) {
      bool over = false;
      CHECK(pair.a->test(sends[1], &over, nullptr) == Result::success);
      CHECK_FALSE(over);
      pair.a->wait(1000);
    }
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(lies ? 0 : 150 * round));
      CHECK(pair.a->close(ends.send) == Result::success);
    });
    if (lies) {
      closer.join();
      std::this_thread::sleep_for(milliseconds(30));
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
      bool done = false;
      const Result result = end_of(*pair.b, receives[i], done);
      CAPTURE(round);
      CAPTURE(i);
      if (done) {
        CHECK(std::equal(bytes[i].begin(), bytes[i].end(), buffers[i].begin()));
      } else {
        CHECK(result == Result::remote_error);
      }
    }
    bool done = false;  // nothing was ever sent into the last
    CHECK(end_of(*pair.b, receives[2], done) == Result::remote_error);
    if (!lies) {
      closer.join();
    }
    CHECK(pair.b->close(ends.receive) == Result::success);
  }
}

TEST_CASE("the sender is told done and closes: a receiver that looks only later gets it all") {
  Pair pair(2);
  const std::array<Ends, 2> ends{open(*pair.a, *pair.b), open(*pair.a, *pair.b)};
  constexpr std::size_t kSlots = 8;
  const auto told = [&](const Ends& one, std::size_t i, int tag) {
    const std::vector<std::byte> bytes = contents(64, i);
    Request* request = nullptr;
    bool done = false;
    const auto until = Clock::now() + milliseconds(10'000);
    while (!done && Clock::now() < until) {
      REQUIRE((request != nullptr || pair.a->isend(one.send, bytes.data(), bytes.size(), tag,
                                                   &request) == Result::success));
      REQUIRE((request == nullptr || pair.a->test(request, &done, nullptr) == Result::success));
      pair.a->wait(500);
    }
    REQUIRE(done);
  };
  // One comm: eight go into a receive of eight slots. The other: two go before their receives.
  Receive grouped = receive_of(ends[0].receive, std::vector<std::size_t>(kSlots, 64));
  // It may be turned away; what goes before a receive of several goes in vain.
  const auto posted = Clock::now() + milliseconds(10'000);
  while (grouped.request == nullptr && Clock::now() < posted) {
    REQUIRE(push(*pair.b, grouped));
  }
  REQUIRE(grouped.request != nullptr);
  for (std::size_t i = 0; i < kSlots; ++i) {
    told(ends[0], i, static_cast<int>(i));
  }
  told(ends[1], 0, 0);
  told(ends[1], 1, 0);
  std::array<std::thread, 2> closers;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    closers[i] = std::thread([&, i] { CHECK(pair.a->close(ends[i].send) == Result::success); });
  }
  for (std::thread& closer : closers) {
    closer.join();  // gives up waiting for the acknowledgements
  }
  std::this_thread::sleep_for(milliseconds(200));
  std::array<Receive, 2> late{receive_of(ends[1].receive, {64}), receive_of(ends[1].receive, {64})};
  const auto until = Clock::now() + milliseconds(10'000);
  const auto finish = [&](Receive& one) {
    while (!one.done && push(*pair.b, one) && Clock::now() < until) {
      pair.b->wait(500);
    }
    return one.done;
  };
  REQUIRE(finish(grouped));
  for (std::size_t i = 0; i < kSlots; ++i) {
    CHECK(grouped.buffers[i] == contents(64, i));
  }
  for (std::size_t i = 0; i < late.size(); ++i) {
    REQUIRE(finish(late[i]));
    CHECK(late[i].buffers[0] == contents(64, i));
  }
  for (const Ends& one : ends) {
    CHECK(pair.b->close(one.receive) == Result::success);
  }
}

TEST_CASE("the receiver closes with receives posted: the sender hears of it") {
  Pair pair(2);
  for (int round = 0; round < 10; ++round) {
    const Ends ends = open(*pair.a, *pair.b);
    std::vector<std::byte> buffer(4 << 20);
    const std::vector<std::byte> bytes(buffer.size());
    const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
    Request* const receive = post(*pair.b, ends.receive, {&slot, 1});
    std::array<Request*, 2> sends{};
    for (Request*& send : sends) {
      send = post(*pair.a, ends.send, bytes);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    bool over = false;
    CHECK(pair.b->test(receive, &over, nullptr) == Result::success);
    CHECK(pair.b->close(ends.receive) == Result::success);
    bool done = false;
    CHECK(end_of(*pair.a, sends[1], done) == Result::remote_error);
    const auto start = Clock::now();
    CHECK(pair.a->close(ends.send) == Result::success);
    CHECK(Clock::now() - start < milliseconds(3000));  // an error has nothing left to drain
  }
}

TEST_CASE("the listener closes between connect and accept") {
  Pair pair(2);
  for (int round = 0; round < 10; ++round) {
    std::array<std::byte, kHandleSize> handle{};
    ListenComm* listener = nullptr;
    SendComm* send = nullptr;
    REQUIRE(pair.b->listen(0, handle, &listener) == Result::success);
    REQUIRE(pair.a->connect(0, handle, 0, &send) == Result::success);
    std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
    REQUIRE(pair.b->close(listener) == Result::success);
    const std::vector<std::byte> bytes(100'000);
    Request* request = nullptr;
    Result result = Result::success;
    bool done = false;
    const auto until = Clock::now() + milliseconds(10'000);
    while (result == Result::success && Clock::now() < until) {
      result = request == nullptr ? pair.a->isend(send, bytes.data(), bytes.size(), 0, &request)
                                  : pair.a->test(request, &done, nullptr);
      pair.a->wait(500);
    }
    CHECK(result == Result::remote_error);
    CHECK(pair.a->close(send) == Result::success);
  }
}

TEST_CASE("both ends close at once with requests in flight") {
  Pair pair(2);
  for (int round = 0; round < 10; ++round) {
    const Ends ends = open(*pair.a, *pair.b);
    std::vector<std::byte> buffer(1 << 20);
    const std::vector<std::byte> bytes(buffer.size());
    const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
    post(*pair.b, ends.receive, {&slot, 1});
    post(*pair.a, ends.send, bytes);
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    std::thread other([&] { CHECK(pair.b->close(ends.receive) == Result::success); });
    CHECK(pair.a->close(ends.send) == Result::success);
    other.join();
  }
  CHECK(exchange(pair, milliseconds(50), 10).intact);  // the neighbours did not notice
}

TEST_CASE("init and finalize, again and again; nothing works after the last finalize") {
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(0, 0), rail_of(0, 1)});
  CHECK(net->finalize() == Result::invalid_usage);
  std::array<std::byte, kHandleSize> handle{};
  for (std::uint64_t round = 0; round < 4; ++round) {
    REQUIRE(net->init(nullptr) == Result::success);
    REQUIRE(net->init(nullptr) == Result::success);
    const Ends ends = open(*net, *net);
    CHECK(carries(*net, *net, ends, 100'000, round));
    CHECK(net->finalize() == Result::success);  // one user is left
    CHECK(carries(*net, *net, ends, 10'000, round));
    ListenComm* listener = nullptr;
    REQUIRE(net->listen(0, handle, &listener) == Result::success);
    CHECK(net->finalize() == Result::success);
    CHECK(net->finalize() == Result::invalid_usage);
    // Everything that is left over can still be called, and ended.
    ListenComm* late = nullptr;
    SendComm* send = nullptr;
    RecvComm* receive = nullptr;
    CHECK(net->listen(0, handle, &late) == Result::invalid_argument);
    CHECK(net->connect(0, handle, 0, &send) == Result::invalid_argument);
    CHECK(net->accept(listener, &receive) == Result::invalid_usage);
    CHECK(receive == nullptr);
    std::array<std::byte, 8> bytes{};
    Request* request = nullptr;
    bool done = false;
    const Result posted = net->isend(ends.send, bytes.data(), bytes.size(), 0, &request);
    if (posted == Result::success && request != nullptr) {
      net->test(request, &done, nullptr);
    }
    close(*net, *net, ends);
    CHECK(net->close(listener) == Result::success);
  }
}
