// Fences on the steer page, over real sockets: what they end, what they leave alone, what they
// refuse, and that they stay.
#include <functional>

#include "tests/loopback_pair.h"
#include "tests/steer_page_kit.h"

#include "host/fenced_runs.h"
#include "host/handle.h"
#include "host/monotonic.h"
#include "host/ticks.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

constexpr milliseconds kDeadline{60'000};
constexpr std::array<const char*, 3> kRuns{"00000000000000aa", "00000000000000bb",
                                           "00000000000000cc"};
constexpr std::uint64_t kRunA = 0xaa;
constexpr std::uint64_t kRunB = 0xbb;

// One process on a host of its own, with that host's steer page.
class Host {
 public:
  explicit Host(std::size_t number, const std::function<void(Params&)>& change = {}) {
    Params params = Pair::usual();
    params.run_dir = directory_.path;
    params.run_incarnation = kRuns[number];
    if (change) {
      change(params);
    }
    net = make_net(params, std::vector<Rail>{rail_of(number, 0), rail_of(number, 1)});
    REQUIRE(net->init(nullptr) == Result::success);
  }
  ~Host() { net->finalize(); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] std::string page_path() const { return directory_.path + "/steer"; }
  [[nodiscard]] const Stats& stats() const { return stats_of(*net); }
  // As the daemon does once a second at least; `bend` changes the bytes.
  void write_page(const std::vector<std::uint64_t>& fences,
                  const std::function<void(std::vector<std::byte>&)>& bend = {}) {
    pages::SteerPageKit page(monotonic_ns());
    page.header.generation = ++generation_;
    page.fences = fences;
    std::vector<std::byte> bytes = page.bytes();
    if (bend) {
      bend(bytes);
    }
    pages::store(page_path(), bytes);
  }

  std::unique_ptr<Net> net;

 private:
  pages::Directory directory_;
  std::uint64_t generation_ = 0;
};

// `done` within the deadline. `beat` keeps a page fresh meanwhile, however slow this machine is.
bool soon(const std::function<bool()>& done, const std::function<void()>& beat = {}) {
  const auto until = Clock::now() + kDeadline;
  auto next_beat = Clock::now();
  while (!done()) {
    if (Clock::now() > until) {
      return false;
    }
    if (beat && Clock::now() >= next_beat) {
      next_beat = Clock::now() + milliseconds(500);
      beat();
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

bool shows_page(const Host& host) { return host.stats().steer_present.load(); }

// Is the fence of `run` known there? Asked with the handle of a process that there never was.
bool refuses(Host& host, std::uint64_t run) {
  Handle handle;
  handle.rails = 1;
  handle.listeners[0] = rail_of(9, 0).address;
  handle.listeners[0].port = 9;
  handle.run_incarnation = run;
  std::array<std::byte, kHandleSize> bytes{};
  encode(handle, bytes);
  SendComm* made = nullptr;
  const Result result = host.net->connect(0, bytes, 0, &made);
  if (made != nullptr) {
    host.net->close(made);
  }
  return result == Result::remote_error;
}

// A comm from one host to another.
struct Link {
  Link(Host& sender, Host& receiver) : from(sender), to(receiver) {
    ListenComm* listener = nullptr;
    REQUIRE(to.net->listen(0, handle, &listener) == Result::success);
    REQUIRE(from.net->connect(0, handle, 0, &send) == Result::success);
    REQUIRE(soon([&] {
      REQUIRE(to.net->accept(listener, &receive) == Result::success);
      return receive != nullptr;
    }));
    REQUIRE(to.net->close(listener) == Result::success);
  }
  ~Link() {
    from.net->close(send);
    to.net->close(receive);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // One message; false: something failed, or it came wrong.
  bool carries(std::size_t size, std::uint64_t seed) {
    const std::vector<std::byte> sent = contents(size, seed);
    std::vector<std::byte> got(size);
    const ReceiveSlot slot{got.data(), got.size(), 0};
    Request* out = nullptr;
    Request* in = nullptr;
    bool sent_done = false;
    bool got_done = false;
    const bool through = soon([&] {
      const Result a = out == nullptr ? from.net->isend(send, sent.data(), size, 0, &out)
                       : sent_done    ? Result::success
                                      : from.net->test(out, &sent_done, nullptr);
      const Result b = in == nullptr ? to.net->irecv(receive, {&slot, 1}, false, &in)
                       : got_done    ? Result::success
                                     : to.net->test(in, &got_done, nullptr);
      REQUIRE(a == Result::success);
      REQUIRE(b == Result::success);
      return sent_done && got_done;
    });
    return through && got == sent;
  }

  Host& from;
  Host& to;
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
  std::array<std::byte, kHandleSize> handle{};
};

// A request that fails, in the end, with the result of a dead peer.
bool fails(Net& net, Request* request, const std::function<void()>& beat = {}) {
  Result result = Result::success;
  bool done = false;
  soon(
      [&] {
        result = net.test(request, &done, nullptr);
        return done || result != Result::success;
      },
      beat);
  return !done && result == Result::remote_error;
}

// A send that nobody receives: larger than what is copied.
struct Unreceived {
  explicit Unreceived(Link& link)
      : bytes(contents(1'000'000, 7)), request(post(*link.from.net, link.send, bytes)) {}
  std::vector<std::byte> bytes;
  Request* request;
};

// A receive that nobody sends to.
struct Unsent {
  explicit Unsent(Link& link) : buffer(1'000'000) {
    const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
    request = post(*link.to.net, link.receive, {&slot, 1});
  }
  std::vector<std::byte> buffer;
  Request* request = nullptr;
};

}  // namespace

TEST_CASE("the number of an incarnation") {
  CHECK(run_incarnation_of("00112233445566ff") == 0x00112233445566ffULL);
  CHECK(run_incarnation_of("DEADBEEFdeadbeef") == 0xdeadbeefdeadbeefULL);
  CHECK(run_incarnation_of("a") == 0xaf63dc4c8601ec8cULL);
  CHECK(run_incarnation_of("an incarnation") == 0xe038c9a552dc25ceULL);
  CHECK(run_incarnation_of("") == 0);
  CHECK(run_incarnation_of("0000000000000000") == 0);
}

TEST_CASE("fences only ever grow, and nobody is no fence") {
  FencedRuns runs;
  CHECK_FALSE(runs.any());
  CHECK_FALSE(runs.learn(std::array<std::uint64_t, 1>{0}));
  CHECK_FALSE(runs.hold(0));
  CHECK(runs.learn(std::array<std::uint64_t, 2>{5, 6}));
  CHECK_FALSE(runs.learn(std::array<std::uint64_t, 1>{6}));
  CHECK_FALSE(runs.learn({}));
  CHECK(runs.hold(5));
  CHECK_FALSE(runs.hold(7));
}

TEST_CASE(
    "a fenced peer: what is pending fails, the others go on, and it is refused from then on") {
  Host a(0);
  Host b(1);
  Host c(2);
  Link to_b(a, b);
  Link from_b(b, a);
  Link to_c(a, c);
  Link from_c(c, a);
  REQUIRE(to_b.carries(100'000, 1));
  REQUIRE(from_b.carries(100'000, 2));
  Unsent receive(from_b);
  Unreceived send(to_b);
  const auto beat = [&] { a.write_page({kRunB}); };

  CHECK(fails(*a.net, receive.request, beat));
  Request* later = nullptr;
  std::array<std::byte, 8> small{};
  CHECK(a.net->isend(to_b.send, small.data(), small.size(), 0, &later) == Result::remote_error);
  const ReceiveSlot slot{small.data(), small.size(), 0};
  CHECK(a.net->irecv(from_b.receive, {&slot, 1}, false, &later) == Result::remote_error);

  for (std::uint64_t i = 0; i < 20; ++i) {
    CHECK(to_c.carries(size_of(static_cast<int>(i)), 10 + i));
    CHECK(from_c.carries(size_of(static_cast<int>(i)), 50 + i));
  }

  // It is told by nobody, and finds nobody there.
  CHECK(soon([&] {
    return b.net->isend(from_b.send, small.data(), small.size(), 0, &later) != Result::success;
  }));

  // New ones, in both directions.
  const std::uint64_t refused = a.stats().refused_fenced.load();
  CHECK(refused > 0);  // its control links were dialled again
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  REQUIRE(b.net->listen(0, handle, &listener) == Result::success);
  SendComm* made = nullptr;
  CHECK(a.net->connect(0, handle, 0, &made) == Result::remote_error);
  CHECK(made == nullptr);
  CHECK(a.stats().refused_fenced.load() > refused);
  b.net->close(listener);
}

TEST_CASE("a fenced incarnation that comes anew, from a process that was never seen, is refused") {
  Host a(0);
  REQUIRE(soon([&] { return refuses(a, kRunB); }, [&] { a.write_page({kRunB}); }));
  Host b(1);
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  REQUIRE(a.net->listen(0, handle, &listener) == Result::success);
  SendComm* send = nullptr;
  REQUIRE(b.net->connect(0, handle, 0, &send) == Result::success);
  RecvComm* receive = nullptr;
  std::array<std::byte, 8> small{};
  Request* request = nullptr;
  CHECK(soon([&] {
    REQUIRE(a.net->accept(listener, &receive) == Result::success);
    return b.net->isend(send, small.data(), small.size(), 0, &request) == Result::remote_error;
  }));
  CHECK(receive == nullptr);
  CHECK(a.stats().refused_fenced.load() > 0);
  b.net->close(send);
  a.net->close(listener);
}

TEST_CASE("a process that is fenced itself: all its comms fail, and it talks to nobody") {
  Host a(0);
  Host b(1);
  Link to_b(a, b);
  Link from_b(b, a);
  REQUIRE(to_b.carries(100'000, 1));
  REQUIRE(from_b.carries(100'000, 2));
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  REQUIRE(a.net->listen(0, handle, &listener) == Result::success);
  Unsent receive(from_b);
  Unreceived send(to_b);
  const auto beat = [&] { a.write_page({kRunA}); };

  CHECK(fails(*a.net, receive.request, beat));
  CHECK(fails(*a.net, send.request));
  RecvComm* accepted = nullptr;
  CHECK(a.net->accept(listener, &accepted) == Result::remote_error);
  std::array<std::byte, kHandleSize> other{};
  ListenComm* elsewhere = nullptr;
  REQUIRE(b.net->listen(0, other, &elsewhere) == Result::success);
  SendComm* made = nullptr;
  CHECK(a.net->connect(0, other, 0, &made) == Result::remote_error);

  // To the others it is a process that is gone: what they send fails, or is refused once they know.
  const std::vector<std::byte> last = contents(1'000'000, 7);
  Request* request = nullptr;
  Result posted = Result::success;
  CHECK(soon([&] {
    posted = b.net->isend(from_b.send, last.data(), last.size(), 0, &request);
    return request != nullptr || posted != Result::success;
  }));
  CHECK((request != nullptr ? fails(*b.net, request) : posted == Result::remote_error));
  a.net->close(listener);
  b.net->close(elsewhere);
}

TEST_CASE("a fence stays when its page goes, is damaged, or says otherwise") {
  Host a(0);
  REQUIRE(soon([&] { return refuses(a, kRunB); }, [&] { a.write_page({kRunB}); }));
  REQUIRE(soon([&] { return !shows_page(a); },
               [&] { a.write_page({}, [](auto& bytes) { bytes[100] ^= std::byte{1}; }); }));
  CHECK(refuses(a, kRunB));
  REQUIRE(soon([&] { return refuses(a, 0x77); }, [&] { a.write_page({0x77}); }));
  CHECK(refuses(a, kRunB));
  std::filesystem::remove(a.page_path());
  REQUIRE(soon([&] { return !shows_page(a); }));
  CHECK(refuses(a, kRunB));
  CHECK(refuses(a, 0x77));
  CHECK_FALSE(refuses(a, kRunA));
}

TEST_CASE("what is no good page makes no fence") {
  Host a(0);
  Host b(1);
  Link to_b(a, b);
  const auto bend = [](std::vector<std::byte>& bytes) {
    bytes[pages::kSteerPageSize - 1] ^= std::byte{1};  // of the fence
  };
  REQUIRE(soon([&] { return a.stats().steer_rejected.load() > 0; },
               [&] { a.write_page({kRunB}, bend); }));
  CHECK(to_b.carries(1'000'000, 1));
  CHECK(a.stats().errors.load() == 0);
}

TEST_CASE("a peer that says no incarnation is no fenced one, and neither is this process") {
  const auto silent = [](Params& params) { params.run_incarnation.clear(); };
  Host a(0, silent);
  Host b(1, silent);
  Link to_b(a, b);
  REQUIRE(soon([&] { return shows_page(a) && shows_page(b); },
               [&] {
                 a.write_page({kRunA, kRunB, 0});
                 b.write_page({kRunA, kRunB, 0});
               }));
  CHECK(to_b.carries(1'000'000, 1));
  CHECK(a.stats().errors.load() == 0);
}

TEST_CASE("a peer of the oldest wire version is fenced too, and so is one without failover") {
  for (const bool old : {true, false}) {
    CAPTURE(old);
    const auto change = [old](Params& params) {
      params.wire_max = old ? 1 : params.wire_max;
      params.unproven = old;
      params.failover = old;
    };
    Host a(0, change);
    Host b(1, change);
    Link to_b(a, b);
    Link from_b(b, a);
    REQUIRE(from_b.carries(100'000, 1));
    Unsent receive(from_b);
    Unreceived send(to_b);
    CHECK(fails(*a.net, receive.request, [&] { a.write_page({kRunB}); }));
    CHECK(fails(*a.net, send.request));
  }
}

TEST_CASE("a receive that a fence ended is not written to any more") {
  Host a(0);
  Host b(1);
  Link from_b(b, a);
  REQUIRE(from_b.carries(1000, 1));
  Unsent receive(from_b);
  CHECK(fails(*a.net, receive.request, [&] { a.write_page({kRunB}); }));
  const std::vector<std::byte> before = receive.buffer;
  std::vector<std::byte> bytes = contents(receive.buffer.size(), 3);
  Request* request = nullptr;
  soon([&] {  // until it learns that nobody is there
    return b.net->isend(from_b.send, bytes.data(), bytes.size(), 0, &request) != Result::success;
  });
  CHECK(receive.buffer == before);
}
