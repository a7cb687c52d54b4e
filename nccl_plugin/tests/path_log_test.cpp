// What NCCL's log says of paths that die and come back, and of those that are TCP.
#include "host/path_log.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "tcp/transport.h"
#include "tests/comm_kit.h"
#include "tests/recorded_log.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

using Lines = std::vector<std::string>;

// Waits until that many lines have these parts.
bool logged(std::size_t count, const std::vector<std::string>& parts) {
  const auto until = Clock::now() + milliseconds(20'000);
  while (RecordedLog::count(parts) < count && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return RecordedLog::count(parts) == count;
}

// Knows verbs, but no rail of it has a device: whoever is dialled refuses. The end that dials tries
// for each new path, and then beside the stream.
class NoDevice final : public Transport {
 public:
  explicit NoDevice(std::atomic<int>& refusals) : refusals_(refusals) {}
  [[nodiscard]] TransportKind kind() const override { return TransportKind::verbs; }
  std::unique_ptr<HalfLink<LinkOut>> dial(const LinkSetup& setup) override {
    return setup.beside || setup.epoch == 1 ? std::make_unique<Half>() : nullptr;
  }
  std::unique_ptr<HalfLink<LinkIn>> accept(const LinkSetup& setup, std::span<const std::byte>,
                                           std::string& why) override {
    ++refusals_;
    why = "rail " + std::to_string(setup.local_rail) + " has no RDMA device";
    return nullptr;
  }
  bool wants_back(const LinkSetup&) override { return true; }

 private:
  struct Half final : HalfLink<LinkOut> {
    [[nodiscard]] std::span<const std::byte> terms() const override { return {}; }
    std::unique_ptr<LinkOut> connect(std::unique_ptr<Connection>, std::uint8_t,
                                     std::span<const std::byte>, std::string&) override {
      return nullptr;
    }
  };
  std::atomic<int>& refusals_;
};

}  // namespace

TEST_CASE("path log: a path has one line a second, the newest, with the count of those left out") {
  constexpr std::int64_t kSecond = PathLog::kEveryNs;
  const PathLog::Key path{7, 0, 1};
  PathLog log;
  CHECK(log.note(path, "down", 5) == "down");
  CHECK_FALSE(log.note(path, "up", 6));
  CHECK(log.note({7, 1, 1}, "another path", 6) == "another path");
  CHECK(log.note({8, 0, 1}, "another peer", 6) == "another peer");
  CHECK_FALSE(log.note(path, "down", 7));
  CHECK_FALSE(log.note(path, "up", 8));
  CHECK(log.due(4 + kSecond).empty());
  CHECK(log.due(5 + kSecond) == Lines{"up (2 more about this path left out)"});
  CHECK(log.due(9 + kSecond).empty());
  CHECK_FALSE(log.note(path, "down", 4 + 2 * kSecond));  // that was a line, too
  CHECK(log.note(path, "up", 5 + 2 * kSecond) == "up (1 more about this path left out)");
  CHECK(log.due(5 + 3 * kSecond).empty());
  CHECK(log.note(path, "down", 6 + 3 * kSecond) == "down");
}

TEST_CASE("path log: a path that dies and comes back is in the log of both ends") {
  RecordedLog::clear();
  const auto net_with_log = [](std::size_t host) {
    auto net = make_net(Pair::usual(), std::vector{rail_of(host, 0), rail_of(host, 1)});
    REQUIRE(net->init(RecordedLog::log) == Result::success);
    return net;
  };
  const auto a = net_with_log(0);
  const auto b = net_with_log(1);
  const Ends ends = open(*a, *b);
  REQUIRE(carries(*a, *b, ends, 1'000'000, 1));
  REQUIRE(connected(*a, 1));
  CHECK(RecordedLog::count({" is down "}) == 0);
  REQUIRE(kill_connections("127.0.10.1") > 0);
  REQUIRE(carries(*a, *b, ends, 1'000'000, 2));
  CHECK(logged(1, {"path to peer 127.0.11.1:", ": lo to the peer's rail 0 is down ("}));
  CHECK(logged(1, {"path from peer 127.0.10.1:", ": lo to the peer's rail 0 is down ("}));
  // Less than a second after the line above: it waits, and comes for all that.
  CHECK(logged(1, {"path to peer", "rail 0 is up again after ", " ms"}));
  CHECK(logged(1, {"path from peer", "rail 0 is up again after ", " ms"}));
  close(*a, *b, ends);
  a->finalize();
  b->finalize();
  // The end of a comm is no failure.
  CHECK(RecordedLog::count({"path to peer", "rail 0 is down ("}) == 1);
  CHECK(RecordedLog::count({"path from peer", "rail 0 is down ("}) == 1);
}

TEST_CASE("path log: that a rail has no RDMA device is said once for each comm") {
  RecordedLog::clear();
  std::atomic<int> refusals{0};
  Parts made = parts();
  made.transports = [&refusals](Context&) {
    std::vector<std::unique_ptr<Transport>> both;
    both.push_back(std::make_unique<NoDevice>(refusals));
    both.push_back(std::make_unique<tcp::TcpTransport>());
    return both;
  };
  const auto net = make_host_net(Pair::usual(), std::vector{rail_of(0, 0)}, made);
  REQUIRE(net->init(RecordedLog::log) == Result::success);
  std::vector<Ends> comms;
  for (std::uint64_t i = 0; i < 2; ++i) {
    comms.push_back(open(*net, *net));
    REQUIRE(carries(*net, *net, comms.back(), 1000, i));
  }
  const auto until = Clock::now() + milliseconds(20'000);
  while (refusals < 6 && Clock::now() < until) {  // two of each comm beside its stream
    std::this_thread::sleep_for(milliseconds(10));
  }
  CHECK(refusals >= 6);
  CHECK(RecordedLog::count({"a path is TCP: rail 0 has no RDMA device"}) == 2);
  for (const Ends& ends : comms) {
    close(*net, *net, ends);
  }
  net->finalize();
}
