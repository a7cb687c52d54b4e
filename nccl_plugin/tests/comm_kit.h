// What the tests of comms share: sends and receives that are pushed until they are done, and comms
// that are opened and closed. doctest's REQUIRE is used inside.
#pragma once

#include <algorithm>
#include <set>

#include "tests/loopback_pair.h"

namespace fabric::host::loopback {

inline constexpr std::byte kUntouched{0x5a};

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

inline Receive receive_of(RecvComm* comm, const std::vector<std::size_t>& sizes) {
  Receive made;
  made.comm = comm;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    made.buffers.emplace_back(sizes[i], kUntouched);
    made.tags.push_back(static_cast<int>(i));
  }
  return made;
}

// Each function: false when the Net refused.
inline bool push(Net& net, Send& send) {
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

inline bool push(Net& net, Receive& receive) {
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
inline bool run(Net& a, std::vector<Send>& sends, Net& b, std::vector<Receive>& receives) {
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

inline RecvComm* accept(Net& net, ListenComm* listener) {
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

inline Ends open(Net& a, Net& b) {
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  Ends ends;
  REQUIRE(b.listen(0, handle, &listener) == Result::success);
  REQUIRE(a.connect(0, handle, 0, &ends.send) == Result::success);
  ends.receive = accept(b, listener);
  REQUIRE(b.close(listener) == Result::success);
  return ends;
}

inline void close(Net& a, Net& b, const Ends& ends) {
  CHECK(a.close(ends.send) == Result::success);
  CHECK(b.close(ends.receive) == Result::success);
}

// One message over a comm, and the right one.
inline bool carries(Net& a, Net& b, const Ends& ends, std::size_t size, std::uint64_t seed) {
  std::vector<Send> sends(1);
  sends[0].comm = ends.send;
  sends[0].bytes = contents(size, seed);
  std::vector<Receive> receives{receive_of(ends.receive, {size})};
  return run(a, sends, b, receives) && receives[0].buffers[0] == sends[0].bytes &&
         receives[0].sizes[0] == static_cast<int>(size);
}

inline std::unique_ptr<Net> net_of(std::size_t host, std::size_t rails) {
  std::vector<Rail> made;
  for (std::size_t i = 0; i < rails; ++i) {
    made.push_back(rail_of(host, i));
  }
  auto net = make_net(Pair::usual(), made);
  REQUIRE(net->init(nullptr) == Result::success);
  return net;
}

// Waits for a request to end in whichever way; in_progress: it did not.
inline Result end_of(Net& net, Request* request, bool& done) {
  const auto until = Clock::now() + milliseconds(10'000);
  Result result = Result::success;
  while (!done && result == Result::success && Clock::now() < until) {
    result = net.test(request, &done, nullptr);
    net.wait(500);
  }
  return done || result != Result::success ? result : Result::in_progress;
}

}  // namespace fabric::host::loopback
