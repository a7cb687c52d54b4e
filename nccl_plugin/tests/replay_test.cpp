// Somebody has recorded the plugin's connections, does not know the secret, and says all of it
// again from an address of its own, with frames that would end the job behind it.
#include <mutex>

#include "tcp/network.h"
#include "tests/bare_peer.h"
#include "tests/comm_kit.h"
#include "tests/recorded_log.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

// What was sent to open one connection, and where to.
struct Recording {
  Address to;
  HelloKind kind = HelloKind::control;
  std::uint64_t comm = 0;
  HelloBytes hello{};
};

std::mutex recordings_mutex;
std::vector<Recording> recordings;

// The true network, with somebody who listens.
class Overheard final : public Network {
 public:
  explicit Overheard(std::unique_ptr<Network> inner) : inner_(std::move(inner)) {}
  std::string open() override { return inner_->open(); }
  std::string reopen(std::size_t rail, Rail& now) override { return inner_->reopen(rail, now); }
  std::string add_rail(Rail& rail) override { return inner_->add_rail(rail); }
  [[nodiscard]] bool listening(std::size_t rail) const override { return inner_->listening(rail); }
  void close() override { inner_->close(); }
  void dial(std::size_t local_rail, const Address& to, const Hello& hello, const Secret& secret,
            Done done) override {
    {
      const std::scoped_lock lock(recordings_mutex);
      recordings.push_back({to, hello.kind, hello.comm, encode(hello, secret)});
    }
    inner_->dial(local_rail, to, hello, secret, std::move(done));
  }
  void tick(std::int64_t now) override { inner_->tick(now); }

 private:
  std::unique_ptr<Network> inner_;
};

std::unique_ptr<Net> overheard_net(std::size_t host, std::size_t rails) {
  std::vector<Rail> given;
  for (std::size_t i = 0; i < rails; ++i) {
    given.push_back(rail_of(host, i));
  }
  Parts made = parts();
  made.network = [inner = made.network](Context& context, Poller& poller,
                                        Network::SecretOf secret_of, Network::OnHello on_hello) {
    return std::make_unique<Overheard>(
        inner(context, poller, std::move(secret_of), std::move(on_hello)));
  };
  return make_host_net(Pair::usual(), given, std::move(made));
}

std::vector<Recording> recorded() {
  const std::scoped_lock lock(recordings_mutex);
  return recordings;
}

int dial_from(const char* own, const Address& to) {
  sockaddr_in from{};
  from.sin_family = AF_INET;
  ::inet_pton(AF_INET, own, &from.sin_addr);
  sockaddr_storage storage{};
  const socklen_t length = to.to(storage);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0);
  be_patient(fd);
  return fd;
}

// Reads until it is hung up on. How many bytes came. One that is let in gets pings for ever.
std::size_t read_to_the_end(int fd) {
  std::size_t all = 0;
  std::array<std::byte, 4096> room{};
  ssize_t got = 1;
  while (got > 0 && all <= kChallengeSize) {
    got = ::recv(fd, room.data(), room.size(), 0);
    all += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  CHECK((got == 0 || errno == ECONNRESET));
  return all;
}

std::optional<core::Cts> next_cts(int fd) {
  while (true) {
    std::array<std::byte, kFrameHeaderSize> bytes{};
    if (::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size())) {
      return std::nullopt;
    }
    const auto header = decode_frame_header(bytes);
    REQUIRE(header);
    Bytes body(header->length);
    if (!body.empty()) {
      ::recv(fd, body.data(), body.size(), MSG_WAITALL);
    }
    if (header->type == FrameType::cts) {
      return decode_cts(body);
    }
  }
}

Bytes closes(const std::vector<Recording>& all) {
  Bytes bytes;
  for (const Recording& one : all) {
    if (one.kind == HelloKind::data) {
      append_frame(bytes, FrameType::close, one.comm);
    }
  }
  return bytes;
}

std::uint64_t failovers(const Net& net) {
  std::uint64_t all = 0;
  for (const RailCounters& rail : stats_of(net).rails) {
    all += rail.failovers;
  }
  return all;
}

bool refuses(const Net& net, std::uint64_t at_least) {
  const auto until = Clock::now() + milliseconds(5000);
  while (stats_of(net).refused_peers < at_least && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return stats_of(net).refused_peers == at_least;
}

}  // namespace

TEST_CASE("recorded hellos, said again with close frames: the comm lives, each one is counted") {
  recordings.clear();
  Pair pair(overheard_net(0, 2), overheard_net(1, 2));
  REQUIRE(connected(*pair.a, 0));
  REQUIRE(connected(*pair.a, 1));
  REQUIRE(exchange(pair, milliseconds(50), 5).intact);
  const auto all = recorded();
  const auto count = [&](HelloKind kind) {
    return std::count_if(all.begin(), all.end(), [&](const auto& one) { return one.kind == kind; });
  };
  REQUIRE(count(HelloKind::control) >= 2);
  REQUIRE(count(HelloKind::data) >= 2);
  const Bytes words = closes(all);
  std::uint64_t refused = stats_of(*pair.b).refused_peers;
  for (const Recording& one : all) {
    // At once, as one blind shot; and in answer to the challenge.
    for (const bool waits : {false, true}) {
      const int fd = dial_from("127.0.99.1", one.to);
      CHECK(say(fd, one.hello));
      ChallengeBytes challenge{};
      if (waits) {
        CHECK(::recv(fd, challenge.data(), challenge.size(), MSG_WAITALL) ==
              static_cast<ssize_t>(challenge.size()));
      }
      say(fd, words);
      CHECK(read_to_the_end(fd) <= challenge.size());  // a challenge, and never a welcome
      ::close(fd);
      CHECK(refuses(*pair.b, ++refused));
      CHECK(exchange(pair, milliseconds(0), 2).intact);
    }
  }
  // Nor does one that waits for ever, or hangs up, move anything.
  const int silent = dial_from("127.0.99.1", all[0].to);
  CHECK(say(silent, all[0].hello));
  CHECK(read_to_the_end(silent) == kChallengeSize);
  CHECK(refuses(*pair.b, ++refused));
  ::close(silent);
  const Outcome outcome = exchange(pair, milliseconds(300), 10);
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  CHECK(failovers(*pair.a) + failovers(*pair.b) == 0);
  CHECK(stats_of(*pair.a).errors + stats_of(*pair.b).errors == 0);
}

TEST_CASE("a recorded proof is of its own connection: of whatever kind that was") {
  const Pair pair(1);
  const auto handle = decode_handle(pair.handle);
  REQUIRE(handle);
  constexpr std::uint64_t kProcess = 4242;
  std::array<std::byte, kHandleSize> bytes{};
  ListenComm* listener = nullptr;
  REQUIRE(pair.b->listen(0, bytes, &listener) == Result::success);
  const auto own = decode_handle(bytes);
  REQUIRE(own);
  Bytes said_control;
  const int link = dial(handle->listeners[0]);
  greet(link, hello_for(*own, HelloKind::control, kProcess), own->secret, &said_control);
  Hello hello = hello_for(*own, HelloKind::data, kProcess);
  hello.comm = 777;
  hello.epoch = 1;
  Bytes said_data;
  const int data = dial(handle->listeners[0]);
  REQUIRE(greet(data, hello, own->secret, &said_data).status == WelcomeStatus::ok);
  RecvComm* receive = accept(*pair.b, listener);
  std::array<std::byte, 8> room{};
  const ReceiveSlot slot{room.data(), room.size(), 0};
  Request* const request = post(*pair.b, receive, {&slot, 1});
  REQUIRE(said_control.size() == kHelloSize + kProofSize);
  std::uint64_t refused = stats_of(*pair.b).refused_peers;
  Bytes close;
  append_frame(close, FrameType::close, 777);
  const auto replay = [&](const Bytes& hello_of, const Bytes& proof_of_which) {
    const int fd = dial_from("127.0.99.1", handle->listeners[0]);
    Bytes all(hello_of.begin(), hello_of.begin() + kHelloSize);
    all.insert(all.end(), proof_of_which.begin() + kHelloSize, proof_of_which.end());
    all.insert(all.end(), close.begin(), close.end());
    say(fd, all);
    CHECK(read_to_the_end(fd) <= kChallengeSize);
    ::close(fd);
    CHECK(refuses(*pair.b, ++refused));
  };
  replay(said_control, said_control);
  replay(said_data, said_data);
  replay(said_control, said_data);
  // A path that asks to be one-sided, which this host has not: answered, and not repeated either.
  Bytes said_one_sided;
  hello.kind = HelloKind::one_sided;
  hello.nonce = random_number();
  const int other = dial(handle->listeners[0]);
  CHECK(greet(other, hello, own->secret, &said_one_sided).status == WelcomeStatus::stream);
  ::close(other);
  replay(said_one_sided, said_one_sided);
  // The true link lives: a question is answered. So does the true comm: its message comes.
  Bytes question;
  append_path(question, FrameType::fence, 999, {0, 1, 0});
  REQUIRE(say(link, question));
  CHECK(next_of(link, FrameType::close) == 999);
  const auto cts = next_cts(data);
  REQUIRE(cts);
  REQUIRE(
      say(data,
          encode_chunk(
              777, {.group = cts->group, .message_size = 8, .offset = 0, .length = 8, .slot = 0})));
  const std::array<std::byte, 8> payload{std::byte{3}};
  REQUIRE(say(data, payload));
  bool done = false;
  CHECK(end_of(*pair.b, request, done) == Result::success);
  CHECK(done);
  CHECK(room == payload);
  ::close(data);
  ::close(link);
  CHECK(pair.b->close(receive) == Result::success);
  CHECK(pair.b->close(listener) == Result::success);
}

TEST_CASE("the same hello waits for its proof once, and the log says who repeats it") {
  RecordedLog::clear();
  const auto net = make_net(Pair::usual(), std::vector<Rail>{rail_of(1, 0)});
  REQUIRE(net->init(RecordedLog::log) == Result::success);
  std::array<std::byte, kHandleSize> bytes{};
  ListenComm* listener = nullptr;
  REQUIRE(net->listen(0, bytes, &listener) == Result::success);
  const auto handle = decode_handle(bytes);
  REQUIRE(handle);
  const HelloBytes hello = encode(hello_for(*handle, HelloKind::control, 1), handle->secret);
  const int first = dial_from("127.0.99.1", handle->listeners[0]);
  REQUIRE(say(first, hello));
  ChallengeBytes challenge{};
  REQUIRE(::recv(first, challenge.data(), challenge.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(challenge.size()));
  const int second = dial_from("127.0.99.2", handle->listeners[0]);
  REQUIRE(say(second, hello));
  CHECK(read_to_the_end(second) == 0);
  CHECK(refuses(*net, 1));
  REQUIRE(say(first, ProofBytes{}));
  CHECK(read_to_the_end(first) == 0);
  CHECK(refuses(*net, 2));
  const auto lines = RecordedLog::lines();
  CHECK(std::count_if(lines.begin(), lines.end(), [](const auto& line) {
          return line.level == LogLevel::warn &&
                 line.text.find("127.0.99.1") != std::string::npos &&
                 line.text.find("cannot prove it") != std::string::npos;
        }) == 1);
  ::close(first);
  ::close(second);
  CHECK(net->close(listener) == Result::success);
  net->finalize();
}
