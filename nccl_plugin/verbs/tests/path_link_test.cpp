// A path over verbs with its side channel: how it opens, and what its history hears of its end.
#include <algorithm>
#include <cstring>

#include "verbs/path_link.h"
#include "verbs/tests/kit.h"

using namespace fabric;
using namespace fabric::verbs;

namespace {

constexpr core::PathIndex kPath = core::path_index(0, 0);
constexpr std::uint64_t kComm = 7;
constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1000 * kMs;

// One end of a connection within the process.
class Tube final : public host::Connection {
 public:
  using Shared = std::shared_ptr<host::Bytes>;
  Tube(Shared out, Shared in) : out_(std::move(out)), in_(std::move(in)) {}
  std::optional<std::size_t> write(std::span<const std::byte> bytes) override {
    out_->insert(out_->end(), bytes.begin(), bytes.end());
    return bytes.size();
  }
  std::optional<std::size_t> read(std::span<std::byte> room) override {
    const std::size_t size = std::min(room.size(), in_->size());
    std::copy_n(in_->begin(), size, room.begin());
    in_->erase(in_->begin(), in_->begin() + static_cast<std::ptrdiff_t>(size));
    return size;
  }
  std::optional<core::PathSample> sample() override { return std::nullopt; }
  [[nodiscard]] std::size_t backlog() const override { return 0; }
  [[nodiscard]] int descriptor() const override { return -1; }
  void discard() override {}
  [[nodiscard]] host::Address far_end() const override { return {}; }

 private:
  Shared out_;
  Shared in_;
};

// The two ends of one path, and its sender's history.
struct Path {
  fake::Network network;
  std::int64_t now = kSecond;
  LinkSettings settings;
  std::shared_ptr<PathHistory> history = std::make_shared<PathHistory>();
  std::shared_ptr<PathHistory> of_receiver = std::make_shared<PathHistory>();
  core::SendCore core{4096};
  core::ReceiveCore receive_core{4096};
  bool validated = false;  // said by the receiver's end
  std::unique_ptr<PathLinkOut> out;
  std::unique_ptr<PathLinkIn> in;

  Path() {
    network.add_nic("a0", "10.0.0.1");
    network.add_nic("b0", "10.0.0.2");
    settings.random = [] { return 5U; };
    settings.now = [this] { return now; };
  }
  ~Path() { end(); }
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;
  fake::Nic& sender() { return *network.find("a0"); }

  // True when the peer's NIC has answered.
  bool open() {
    const core::Epoch epoch = core.dial(kPath);
    const auto there = std::make_shared<host::Bytes>();
    const auto back = std::make_shared<host::Bytes>();
    RailPort left(test::open("a0"), 1, GidRules{}, PathSettings{});
    RailPort right(test::open("b0"), 1, GidRules{}, PathSettings{});
    Error error;
    auto link_out = LinkOut::make(left, settings, kPath, epoch, error);
    auto link_in = LinkIn::make(right, settings, kPath, epoch, error);
    REQUIRE(link_out != nullptr);
    REQUIRE(link_in != nullptr);
    const auto clock = [this] { return now; };
    out = std::make_unique<PathLinkOut>(std::move(link_out), std::make_unique<Tube>(there, back),
                                        kComm, history, clock);
    in = std::make_unique<PathLinkIn>(std::move(link_in), std::make_unique<Tube>(back, there),
                                      kComm, of_receiver, clock);
    pass(20 * kMs);
    return out->kind() == core::PathKind::one_sided;
  }
  // Both ends are polled meanwhile; what the sender's reports.
  host::SendProgress pass(std::int64_t span) {
    host::SendProgress progress;
    for (const std::int64_t until = now + span; now < until; now += 2 * kMs) {
      host::ReceiveProgress received;
      in->poll(receive_core, {}, received);
      validated = validated || received.validated;
      out->poll(core, progress);
      network.run();
    }
    return progress;
  }
  void end() {
    out.reset();
    in.reset();
  }
};

}  // namespace

TEST_CASE("verbs path: one that did not pass its validation has failed, however long that took") {
  Path path;
  path.sender().holds_above = 1024;
  for (std::uint32_t i = 0; i < PathHistory::kTries; ++i) {
    CHECK_FALSE(path.history->backs_off(path.now));
    REQUIRE(path.open());  // small packets pass
    path.out->start_validation();
    CHECK_FALSE(path.pass(5 * kSecond).validated);
    path.end();
  }
  CHECK(path.history->backs_off(path.now));
  CHECK(path.history->short_lives() == PathHistory::kTries);  // the next is given more time
}

TEST_CASE("verbs path: a validation that stands still is judged dead") {
  Path path;
  path.sender().holds_above = 1024;
  REQUIRE(path.open());
  path.out->start_validation();
  std::optional<core::Liveness> judged;
  const std::int64_t began = path.now;
  while (judged != core::Liveness::dead && path.now < began + 5 * kSecond) {
    path.pass(4 * kMs);
    judged = path.out->judge(path.now);
  }
  CHECK(judged == core::Liveness::dead);
  CHECK(path.now - began <= 2 * kSecond);
}

TEST_CASE("verbs path: its life is the time that it carried the path") {
  Path path;
  const auto live = [&path](std::int64_t beside, std::int64_t in_service) {
    REQUIRE(path.open());
    path.pass(beside);
    path.out->begin_service();
    path.pass(in_service);
    path.end();
  };
  for (std::uint32_t i = 0; i < PathHistory::kShortLives; ++i) {
    CHECK_FALSE(path.history->backs_off(path.now));
    live(2 * kSecond, kSecond / 2);
  }
  CHECK(path.history->backs_off(path.now));
  live(0, 2 * kSecond);
  CHECK_FALSE(path.history->backs_off(path.now));
}

TEST_CASE("verbs path: the receiver's end is looked at until the sender's first write has come") {
  Path path;
  path.sender().holds_sends = true;
  REQUIRE_FALSE(path.open());
  CHECK_FALSE(path.validated);
  CHECK(path.in->wants_poll());
  path.sender().holds_sends = false;
  path.pass(20 * kMs);
  CHECK(path.out->kind() == core::PathKind::one_sided);
  CHECK(path.validated);  // and the control thread need not hurry any more
  CHECK_FALSE(path.in->wants_poll());
}

TEST_CASE("verbs path: one that nobody wants any more has not failed") {
  Path path;
  for (std::uint32_t i = 0; i < 2 * PathHistory::kTries; ++i) {
    REQUIRE(path.open());
    path.out->abandon();
    path.end();
  }
  CHECK_FALSE(path.history->backs_off(path.now));
}
