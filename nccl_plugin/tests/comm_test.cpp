// The contract of comms as NCCL uses and misuses it, over real sockets in one process: groups,
// tags, empty and short messages, many comms and many threads, and ends that come at any moment.
// Most of its worth is under the address and thread sanitizers.
#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/loopback_pair.h"

using namespace fabric;
using namespace fabric::tcp;
using namespace fabric::tcp::loopback;

namespace {

constexpr std::byte kUntouched{0x5a};

struct Send {
  SendComm* comm = nullptr;
  std::vector<std::byte> bytes;
  int tag = 0;
  Request* request = nullptr;
  bool done = false;
  int size = -1;
};

struct Receive {
  RecvComm* comm = nullptr;
  std::vector<std::vector<std::byte>> buffers;
  std::vector<int> tags;
  bool optional = false;
  Request* request = nullptr;
  bool done = false;
  std::array<int, kMaxGroupedReceives> sizes{};
};

Receive receive_of(RecvComm* comm, const std::vector<std::size_t>& sizes) {
  Receive made;
  made.comm = comm;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    made.buffers.emplace_back(sizes[i], kUntouched);
    made.tags.push_back(static_cast<int>(i));
  }
  return made;
}

// Each function: false when the Net refused.
bool push(Net& net, Send& send) {
  if (send.request == nullptr && !send.done) {
    void* const none = nullptr;
    const void* data = send.bytes.empty() ? none : send.bytes.data();
    if (net.isend(send.comm, data, send.bytes.size(), send.tag, &send.request) != Result::success) {
      return false;
    }
  }
  return send.request == nullptr || send.done ||
         net.test(send.request, &send.done, &send.size) == Result::success;
}

bool push(Net& net, Receive& receive) {
  if (receive.request == nullptr && !receive.done) {
    std::vector<ReceiveSlot> slots;
    for (std::size_t i = 0; i < receive.buffers.size(); ++i) {
      slots.push_back({receive.buffers[i].data(), receive.buffers[i].size(), receive.tags[i]});
    }
    if (net.irecv(receive.comm, slots, receive.optional, &receive.request) != Result::success) {
      return false;
    }
  }
  return receive.request == nullptr || receive.done ||
         net.test(receive.request, &receive.done, receive.sizes.data()) == Result::success;
}

// In order as long as nothing is posted after something of the same comm that was not taken yet.
template <typename Operation>
bool push_all(Net& net, std::vector<Operation>& operations) {
  std::set<void*> full;
  for (Operation& one : operations) {
    if (full.contains(one.comm) && one.request == nullptr) {
      continue;
    }
    if (!push(net, one)) {
      return false;
    }
    if (one.request == nullptr) {
      full.insert(one.comm);
    }
  }
  return true;
}

template <typename Operation>
bool all_done(const std::vector<Operation>& operations) {
  return std::all_of(operations.begin(), operations.end(),
                     [](const Operation& one) { return one.done; });
}

// Until all is done. False: refused, or not done in good time.
bool run(Net& a, std::vector<Send>& sends, Net& b, std::vector<Receive>& receives) {
  const auto until = Clock::now() + milliseconds(30'000);
  while (!all_done(sends) || !all_done(receives)) {
    if (!push_all(b, receives) || !push_all(a, sends) || Clock::now() > until) {
      return false;
    }
    a.wait(200);
  }
  return true;
}

struct Ends {
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
};

RecvComm* accept(Net& net, ListenComm* listener) {
  RecvComm* made = nullptr;
  const auto until = Clock::now() + milliseconds(20'000);
  while (made == nullptr && Clock::now() < until) {
    REQUIRE(net.accept(listener, &made) == Result::success);
    if (made == nullptr) {
      net.wait(500);
    }
  }
  REQUIRE(made != nullptr);
  return made;
}

Ends open(Net& a, Net& b) {
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  Ends ends;
  REQUIRE(b.listen(0, handle, &listener) == Result::success);
  REQUIRE(a.connect(0, handle, 0, &ends.send) == Result::success);
  ends.receive = accept(b, listener);
  REQUIRE(b.close(listener) == Result::success);
  return ends;
}

void close(Net& a, Net& b, const Ends& ends) {
  CHECK(a.close(ends.send) == Result::success);
  CHECK(b.close(ends.receive) == Result::success);
}

// One message over a comm, and the right one.
bool carries(Net& a, Net& b, const Ends& ends, std::size_t size, std::uint64_t seed) {
  std::vector<Send> sends(1);
  sends[0].comm = ends.send;
  sends[0].bytes = contents(size, seed);
  std::vector<Receive> receives{receive_of(ends.receive, {size})};
  return run(a, sends, b, receives) && receives[0].buffers[0] == sends[0].bytes &&
         receives[0].sizes[0] == static_cast<int>(size);
}

std::unique_ptr<Net> net_of(std::size_t host, std::size_t rails) {
  std::vector<Rail> made;
  for (std::size_t i = 0; i < rails; ++i) {
    made.push_back(rail_of(host, i));
  }
  auto net = make_net(Pair::usual(), made);
  REQUIRE(net->init(nullptr) == Result::success);
  return net;
}

// Waits for a request to end in whichever way; in_progress: it did not.
Result end_of(Net& net, Request* request, bool& done) {
  const auto until = Clock::now() + milliseconds(10'000);
  Result result = Result::success;
  while (!done && result == Result::success && Clock::now() < until) {
    result = net.test(request, &done, nullptr);
    net.wait(500);
  }
  return done || result != Result::success ? result : Result::in_progress;
}

}  // namespace

TEST_CASE("groups of eight, their tags in any order, several groups at once") {
  Pair pair(2);
  std::mt19937_64 random(8);
  const std::array<std::size_t, 5> sizes{0, 1, 8192, 8193, 100'000};
  for (int round = 0; round < 12; ++round) {
    constexpr std::size_t kGroups = 4;
    std::vector<Receive> receives;
    std::vector<Send> sends;
    for (std::size_t group = 0; group < kGroups; ++group) {
      receives.push_back(receive_of(pair.receive, std::vector<std::size_t>(8, 120'000)));
    }
    // A tag's n-th message is for the n-th group; how the tags mix is free.
    std::vector<std::size_t> order(kGroups * 8);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::array<std::size_t, 8> posted{};
    std::vector<std::pair<std::size_t, std::size_t>> places;  // of each send: group, slot
    for (const std::size_t number : order) {
      Send& send = sends.emplace_back();
      send.comm = pair.send;
      send.tag = static_cast<int>(number % 8);
      send.bytes = contents(sizes[random() % sizes.size()], random());
      places.emplace_back(posted[number % 8]++, number % 8);
    }
    REQUIRE(run(*pair.a, sends, *pair.b, receives));
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const auto [group, slot] = places[i];
      const std::vector<std::byte>& want = sends[i].bytes;
      const std::vector<std::byte>& got = receives[group].buffers[slot];
      CHECK(receives[group].sizes[slot] == static_cast<int>(want.size()));
      CHECK(std::equal(want.begin(), want.end(), got.begin()));
      CHECK(std::all_of(got.begin() + static_cast<std::ptrdiff_t>(want.size()), got.end(),
                        [](std::byte byte) { return byte == kUntouched; }));
    }
  }
}

TEST_CASE("32 receives of 8 posted at once") {
  Pair pair(2);
  std::vector<Receive> receives;
  std::vector<Send> sends;
  for (int group = 0; group < kMaxRequests; ++group) {
    receives.push_back(receive_of(pair.receive, std::vector<std::size_t>(8, 20'000)));
    for (int slot = 0; slot < 8; ++slot) {
      Send& send = sends.emplace_back();
      send.comm = pair.send;
      send.tag = 7 - slot;
      send.bytes = contents(static_cast<std::size_t>(100 + 70 * group * slot),
                            static_cast<std::uint64_t>(group * 8 + slot));
    }
  }
  REQUIRE(push_all(*pair.b, receives));
  CHECK(std::all_of(receives.begin(), receives.end(),
                    [](const Receive& one) { return one.request != nullptr; }));
  REQUIRE(run(*pair.a, sends, *pair.b, receives));
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const std::vector<std::byte>& got =
        receives[i / 8].buffers[static_cast<std::size_t>(sends[i].tag)];
    CHECK(std::equal(sends[i].bytes.begin(), sends[i].bytes.end(), got.begin()));
  }
}

TEST_CASE("optional completion: done is said only when the data is whole") {
  Pair pair(2);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const std::vector<std::byte> bytes = contents(2'000'000 + 8 * 1000 * round, round);
    std::vector<Receive> receives{receive_of(pair.receive, {bytes.size()})};
    receives[0].optional = true;
    std::vector<Send> sends(1);
    sends[0].comm = pair.send;
    sends[0].bytes = bytes;
    REQUIRE(push_all(*pair.b, receives));
    const auto until = Clock::now() + milliseconds(20'000);
    while (!receives[0].done && Clock::now() < until) {
      REQUIRE(push_all(*pair.a, sends));
      REQUIRE(push_all(*pair.b, receives));
    }
    REQUIRE(receives[0].done);
    CHECK(receives[0].buffers[0] == bytes);
    CHECK(run(*pair.a, sends, *pair.b, receives));
  }
}

TEST_CASE("empty messages, and receives larger than the message") {
  Pair pair(2);
  for (const std::size_t room :
       {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{500'000}}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, room / 2, room}) {
      if (size > room) {
        continue;
      }
      std::vector<Receive> receives{receive_of(pair.receive, {room}),
                                    receive_of(pair.receive, {room})};
      std::vector<Send> sends(2);  // the empty one between others must not shift them
      sends[0].comm = pair.send;
      sends[1].comm = pair.send;
      sends[1].bytes = contents(size, room);
      REQUIRE(run(*pair.a, sends, *pair.b, receives));
      CHECK(receives[0].sizes[0] == 0);
      CHECK(receives[1].sizes[0] == static_cast<int>(size));
      CHECK(sends[1].size == static_cast<int>(size));
      CHECK(
          std::equal(sends[1].bytes.begin(), sends[1].bytes.end(), receives[1].buffers[0].begin()));
      CHECK(std::count(receives[1].buffers[0].begin() + static_cast<std::ptrdiff_t>(size),
                       receives[1].buffers[0].end(),
                       kUntouched) == static_cast<std::ptrdiff_t>(room - size));
    }
  }
}

TEST_CASE("one handle takes many connects, each its own comm") {
  Pair pair(2);
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  REQUIRE(pair.b->listen(0, handle, &listener) == Result::success);
  std::vector<Ends> comms(16);
  for (Ends& ends : comms) {
    REQUIRE(pair.a->connect(0, handle, 0, &ends.send) == Result::success);
  }
  for (Ends& ends : comms) {
    ends.receive = accept(*pair.b, listener);
  }
  RecvComm* none = nullptr;
  CHECK(pair.b->accept(listener, &none) == Result::success);
  CHECK(none == nullptr);
  // Which receive belongs to which send is nobody's promise: the messages tell.
  std::vector<Send> sends(comms.size());
  std::vector<Receive> receives;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    sends[i].comm = comms[i].send;
    sends[i].bytes = std::vector<std::byte>(1, static_cast<std::byte>(i));
    receives.push_back(receive_of(comms[i].receive, {1}));
  }
  REQUIRE(run(*pair.a, sends, *pair.b, receives));
  std::set<std::byte> seen;
  for (const Receive& receive : receives) {
    seen.insert(receive.buffers[0][0]);
  }
  CHECK(seen.size() == comms.size());
  for (const Ends& ends : comms) {
    close(*pair.a, *pair.b, ends);
  }
  CHECK(pair.b->close(listener) == Result::success);
}

TEST_CASE("both ends in one transport") {
  const auto net = net_of(0, 2);
  for (std::uint64_t round = 0; round < 5; ++round) {
    const Ends ends = open(*net, *net);
    CHECK(carries(*net, *net, ends, 0, round));
    CHECK(carries(*net, *net, ends, 300'000, round));
    close(*net, *net, ends);
  }
  CHECK(net->finalize() == Result::success);
}

TEST_CASE("256 comms in one process, driven by threads") {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  Pair pair(2);
  std::vector<Ends> comms(256);
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  REQUIRE(pair.b->listen(0, handle, &listener) == Result::success);
  for (Ends& ends : comms) {
    REQUIRE(pair.a->connect(0, handle, 0, &ends.send) == Result::success);
  }
  std::vector<RecvComm*> accepted;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    accepted.push_back(accept(*pair.b, listener));
  }
  REQUIRE(pair.b->close(listener) == Result::success);
  // Pairs them up by a message that carries the sender's number.
  std::vector<Send> sends(comms.size());
  std::vector<Receive> receives;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    sends[i].comm = comms[i].send;
    sends[i].bytes.resize(sizeof i);
    std::memcpy(sends[i].bytes.data(), &i, sizeof i);
    receives.push_back(receive_of(accepted[i], {sizeof i}));
  }
  REQUIRE(run(*pair.a, sends, *pair.b, receives));
  for (std::size_t i = 0; i < comms.size(); ++i) {
    std::size_t number = 0;
    std::memcpy(&number, receives[i].buffers[0].data(), sizeof number);
    REQUIRE(number < comms.size());
    CHECK(comms[number].receive == nullptr);
    comms[number].receive = accepted[i];
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  constexpr std::size_t kThreads = 8;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = thread; i < comms.size(); i += kThreads) {
        for (std::uint64_t round = 0; round < 3; ++round) {
          wrong += carries(*pair.a, *pair.b, comms[i], 30'000 * round, i) ? 0 : 1;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
  for (const Ends& ends : comms) {
    close(*pair.a, *pair.b, ends);
  }
}

TEST_CASE("threads that open, use and close comms at the same time") {
  Pair pair(2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t round = 0; round < 8; ++round) {
        const bool there = (thread + round) % 2 == 0;
        Net& from = there ? *pair.a : *pair.b;
        Net& to = there ? *pair.b : *pair.a;
        const Ends ends = open(from, to);
        wrong += carries(from, to, ends, 50'000, thread * 100 + round) ? 0 : 1;
        from.close(ends.send);
        to.close(ends.receive);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
}

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
      REQUIRE(pair.b->irecv(ends.receive, {&slot, 1}, false, &receives[i]) == Result::success);
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
      bytes[i] = contents(9 * 1024 + random() % (119 * 1024) / 8 * 8, random());
      REQUIRE(pair.a->isend(ends.send, bytes[i].data(), bytes[i].size(), 0, &sends[i]) ==
              Result::success);
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
  const auto told = [&](const Ends& one, std::size_t i) {
    const std::vector<std::byte> bytes = contents(64, i);
    Request* request = nullptr;
    bool done = false;
    const auto until = Clock::now() + milliseconds(10'000);
    while (!done && Clock::now() < until) {
      REQUIRE((request != nullptr ||
               pair.a->isend(one.send, bytes.data(), bytes.size(), static_cast<int>(i), &request) ==
                   Result::success));
      REQUIRE((request == nullptr || pair.a->test(request, &done, nullptr) == Result::success));
      pair.a->wait(500);
    }
    REQUIRE(done);
  };
  // One comm: eight go into a receive of eight slots. The other: two go ahead of their receives.
  Receive grouped = receive_of(ends[0].receive, std::vector<std::size_t>(kSlots, 64));
  REQUIRE(push(*pair.b, grouped));
  for (std::size_t i = 0; i < kSlots; ++i) {
    told(ends[0], i);
  }
  told(ends[1], 0);
  told(ends[1], 1);
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
    Request* receive = nullptr;
    REQUIRE(pair.b->irecv(ends.receive, {&slot, 1}, false, &receive) == Result::success);
    std::array<Request*, 2> sends{};
    for (Request*& send : sends) {
      REQUIRE(pair.a->isend(ends.send, bytes.data(), bytes.size(), 0, &send) == Result::success);
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
    Request* receive = nullptr;
    Request* send = nullptr;
    REQUIRE(pair.b->irecv(ends.receive, {&slot, 1}, false, &receive) == Result::success);
    REQUIRE(pair.a->isend(ends.send, bytes.data(), bytes.size(), 0, &send) == Result::success);
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
