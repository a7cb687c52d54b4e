// The contract of comms as NCCL uses and misuses it, over real sockets in one process: groups,
// tags, empty and short messages, many comms and many threads. Their ends: close_test.cpp.
// Most of its worth is under the address and thread sanitizers.
#include <sys/resource.h>

#include <numeric>

#include "tests/comm_kit.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

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

TEST_CASE("single receives by tag: ranks that share a comm and are not equally far") {
  Pair pair(2);
  std::mt19937_64 random(9);
  for (const std::size_t size : {std::size_t{100}, std::size_t{100'000}}) {
    for (int round = 0; round < 20; ++round) {
      constexpr int kRanks = 3;
      constexpr int kSteps = 8;
      std::vector<Receive> receives;
      std::vector<Send> sends;
      std::vector<int> tags(kRanks * kSteps);
      for (std::size_t i = 0; i < tags.size(); ++i) {
        tags[i] = static_cast<int>(i) % kRanks;
      }
      std::array<std::uint64_t, kRanks> step{};
      std::shuffle(tags.begin(), tags.end(), random);
      std::vector<std::vector<std::byte>> wanted;
      for (const int tag : tags) {
        Receive& receive = receives.emplace_back(receive_of(pair.receive, {size}));
        receive.tags = {tag};
        const auto rank = static_cast<std::size_t>(tag);
        wanted.push_back(contents(size, rank * 1000 + step[rank]++));
      }
      step.fill(0);
      std::shuffle(tags.begin(), tags.end(), random);
      for (const int tag : tags) {
        Send& send = sends.emplace_back();
        send.comm = pair.send;
        send.tag = tag;
        const auto rank = static_cast<std::size_t>(tag);
        send.bytes = contents(size, rank * 1000 + step[rank]++);
      }
      REQUIRE(run(*pair.a, sends, *pair.b, receives));
      for (std::size_t i = 0; i < receives.size(); ++i) {
        CHECK(receives[i].buffers[0] == wanted[i]);
      }
    }
  }
}

TEST_CASE("32 small sends are taken before anybody tests a receive, and all say their size") {
  constexpr std::size_t kSize = 5000;
  Pair pair(2);
  const std::array<Ends, 2> both{open(*pair.a, *pair.b), open(*pair.b, *pair.a)};
  const std::array<Net*, 2> nets{pair.a.get(), pair.b.get()};
  std::array<std::vector<Receive>, 2> receives;
  std::array<std::vector<Send>, 2> sends;
  const auto until = Clock::now() + milliseconds(30'000);
  for (std::size_t way = 0; way < 2; ++way) {
    for (int i = 0; i < kMaxRequests; ++i) {
      Receive& receive = receives[way].emplace_back(receive_of(both[way].receive, {kSize}));
      while (receive.request == nullptr && Clock::now() < until) {
        const ReceiveSlot slot{receive.buffers[0].data(), kSize, 0};
        REQUIRE(nets[1 - way]->irecv(receive.comm, {&slot, 1}, false, &receive.request) ==
                Result::success);
      }
      REQUIRE(receive.request != nullptr);
    }
  }
  for (std::size_t way = 0; way < 2; ++way) {
    for (int i = 0; i < kMaxRequests; ++i) {
      Send& send = sends[way].emplace_back();
      send.comm = both[way].send;
      send.bytes = contents(kSize, way * 100 + static_cast<std::uint64_t>(i));
      while (send.request == nullptr && Clock::now() < until) {
        REQUIRE(nets[way]->isend(send.comm, send.bytes.data(), kSize, 0, &send.request) ==
                Result::success);
      }
      REQUIRE(send.request != nullptr);
    }
  }
  for (std::size_t way = 0; way < 2; ++way) {
    REQUIRE(run(*nets[way], sends[way], *nets[1 - way], receives[way]));
    for (int i = 0; i < kMaxRequests; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(receives[way][at].buffers[0] == sends[way][at].bytes);
      CHECK(sends[way][at].size == static_cast<int>(kSize));
    }
    close(*nets[way], *nets[1 - way], both[way]);
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
