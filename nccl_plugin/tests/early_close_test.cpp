// Comms that end as soon as they begin: whoever waits at the other end gets a comm or an error, and
// soon. Over real sockets in one process.
#include "src/cancel.h"
#include "tests/comm_kit.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

using HandleBytes = std::array<std::byte, kHandleSize>;
constexpr int kRounds = 15;

struct Listening {
  HandleBytes handle{};
  ListenComm* comm = nullptr;
  explicit Listening(Net& net) { REQUIRE(net.listen(0, handle, &comm) == Result::success); }
};

SendComm* connect(Net& net, const HandleBytes& handle) {
  SendComm* made = nullptr;
  REQUIRE(net.connect(0, handle, 0, &made) == Result::success);
  return made;
}

// A receive on a comm whose sender has gone ends with an error.
void ends_at_receiver(Net& net, RecvComm* comm) {
  std::vector<std::byte> room(64);
  const ReceiveSlot slot{room.data(), room.size(), 0};
  Request* request = nullptr;
  Result result = Result::success;
  bool done = false;
  const auto until = Clock::now() + milliseconds(10'000);
  while (result == Result::success && !done && Clock::now() < until) {
    result = request == nullptr ? net.irecv(comm, {&slot, 1}, false, &request)
                                : net.test(request, &done, nullptr);
    net.wait(500);
  }
  CHECK_FALSE(done);
  CHECK(result == Result::remote_error);
}

// So does a send on one whose receiver has gone.
void ends_at_sender(Net& net, SendComm* comm) {
  const std::vector<std::byte> bytes = contents(1'000'000, 3);
  Request* request = nullptr;
  Result result = Result::success;
  bool done = false;
  const auto until = Clock::now() + milliseconds(10'000);
  while (result == Result::success && !done && Clock::now() < until) {
    result = request == nullptr ? net.isend(comm, bytes.data(), bytes.size(), 0, &request)
                                : net.test(request, &done, nullptr);
    net.wait(500);
  }
  CHECK_FALSE(done);
  CHECK(result == Result::remote_error);
}

}  // namespace

TEST_CASE("a sender that is closed at once: its peer accepts a comm that has ended") {
  const auto a = net_of(0, 2);
  const auto b = net_of(1, 2);
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    const Listening listening(*b);
    SendComm* const send = connect(*a, listening.handle);
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round * round));
    const auto began = Clock::now();
    CHECK((round % 3 == 2 ? cancel(send) : a->close(send)) == Result::success);
    CHECK(Clock::now() - began < milliseconds(4'000));  // it waits for nobody
    RecvComm* const receive = accept(*b, listening.comm);
    ends_at_receiver(*b, receive);
    CHECK(b->close(receive) == Result::success);
    CHECK(b->close(listening.comm) == Result::success);
  }
  CHECK(stats_of(*a).errors == 0);
  CHECK(a->finalize() == Result::success);
  CHECK(b->finalize() == Result::success);
}

TEST_CASE("and so it is where the whole process of the sender finalizes right after") {
  const auto b = net_of(1, 2);
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    const Listening listening(*b);
    const auto a = net_of(0, 2);
    CHECK(a->close(connect(*a, listening.handle)) == Result::success);
    CHECK(a->finalize() == Result::success);
    RecvComm* const receive = accept(*b, listening.comm);
    ends_at_receiver(*b, receive);
    CHECK(b->close(receive) == Result::success);
    CHECK(b->close(listening.comm) == Result::success);
  }
  CHECK(b->finalize() == Result::success);
}

TEST_CASE("a sender to a process that is gone is closed and finalized without a wait for it") {
  auto b = net_of(1, 1);
  const Listening listening(*b);
  const HandleBytes handle = listening.handle;
  CHECK(b->close(listening.comm) == Result::success);
  CHECK(b->finalize() == Result::success);
  const auto a = net_of(0, 1);
  SendComm* const send = connect(*a, handle);
  const auto began = Clock::now();
  CHECK(a->close(send) == Result::success);
  CHECK(a->finalize() == Result::success);
  CHECK(Clock::now() - began < milliseconds(10'000));
}

TEST_CASE("a listener that is closed before anybody is accepted: the sender's calls fail") {
  const auto a = net_of(0, 2);
  const auto b = net_of(1, 2);
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    const Listening listening(*b);
    SendComm* send = nullptr;
    if (round % 3 == 0) {  // before anybody comes
      CHECK(b->close(listening.comm) == Result::success);
      send = connect(*a, listening.handle);
    } else {
      send = connect(*a, listening.handle);
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 3 == 1 ? 0 : 2 * round));
      CHECK(b->close(listening.comm) == Result::success);
    }
    ends_at_sender(*a, send);
    CHECK(a->close(send) == Result::success);
  }
  CHECK(a->finalize() == Result::success);
  CHECK(b->finalize() == Result::success);
}

TEST_CASE("a receiver that is closed as soon as it is accepted: the sender's calls fail") {
  const auto a = net_of(0, 2);
  const auto b = net_of(1, 2);
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    const Ends ends = open(*a, *b);
    CHECK(b->close(ends.receive) == Result::success);
    ends_at_sender(*a, ends.send);
    CHECK(a->close(ends.send) == Result::success);
  }
  CHECK(a->finalize() == Result::success);
  CHECK(b->finalize() == Result::success);
}
