// Streams that a transport of another kind wants back: how much the control thread asks of it.
#include <algorithm>
#include <atomic>

#include "tcp/transport.h"
#include "tests/comm_kit.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

constexpr std::size_t kComms = 12;
constexpr int kAtOnce = 4;  // dials for all comms together, in one round of the control thread

struct Asked {
  std::atomic<bool> wants_back{false};
  std::atomic<int> dials{0};
  std::atomic<int> most{0};  // in one round
};

// Wants every stream back, and fails at once when it is dialled.
class Failing final : public Transport {
 public:
  explicit Failing(Asked& asked) : asked_(asked) {}
  [[nodiscard]] TransportKind kind() const override { return TransportKind::verbs; }
  std::unique_ptr<HalfLink<LinkOut>> dial(const LinkSetup&) override {
    if (asked_.wants_back) {
      ++asked_.dials;
      asked_.most = std::max(asked_.most.load(), ++in_round_);
    }
    return nullptr;
  }
  std::unique_ptr<HalfLink<LinkIn>> accept(const LinkSetup&, std::span<const std::byte>,
                                           std::string& why) override {
    why = "never";
    return nullptr;
  }
  bool wants_back(const LinkSetup&) override { return asked_.wants_back; }
  void tick(std::int64_t) override { in_round_ = 0; }

 private:
  Asked& asked_;
  int in_round_ = 0;
};

}  // namespace

TEST_CASE("improve: a transport that fails at once is not asked for all comms in one round") {
  Asked asked;
  Parts made = parts();
  made.transports = [&asked](Context&) {
    std::vector<std::unique_ptr<Transport>> both;
    both.push_back(std::make_unique<Failing>(asked));
    both.push_back(std::make_unique<tcp::TcpTransport>());
    return both;
  };
  const auto net = make_host_net(Pair::usual(), std::vector{rail_of(0, 0)}, made);
  REQUIRE(net->init(nullptr) == Result::success);
  std::vector<Ends> comms;
  for (std::size_t i = 0; i < kComms; ++i) {
    comms.push_back(open(*net, *net));
    REQUIRE(carries(*net, *net, comms.back(), 1000, i));
  }
  asked.wants_back = true;
  const auto until = Clock::now() + milliseconds(20'000);
  while (asked.dials < static_cast<int>(2 * kComms) && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  CHECK(asked.dials >= static_cast<int>(2 * kComms));
  CHECK(asked.most == kAtOnce);
  for (const Ends& ends : comms) {
    close(*net, *net, ends);
  }
  net->finalize();
}
