// Strangers that say nothing hold descriptors of a process that may have 64, and come back when
// they are dropped. A path that flaps is there again all the same, and what else the process opens
// finds descriptors. The process is a child, its peer is the test.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/comm_kit.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

using HandleBytes = std::array<std::byte, kHandleSize>;

constexpr rlim_t kLimit = 64;
constexpr int kStrangers = 300;
constexpr std::size_t kMessage = 64 * 1024;
constexpr milliseconds kPatience{30'000};

enum class Role : std::uint8_t { receives, sends };

// What the child writes to the test, and the test may read at any time.
struct Report {
  HandleBytes handle{};
  std::uint64_t messages = 0;
  std::uint64_t without_descriptor = 0;  // of its other work
  Result result = Result::success;
};

std::vector<Rail> rails_of(std::size_t host) { return {rail_of(host, 0), rail_of(host, 1)}; }

// How many descriptors this process can still open, up to `most`.
int free_descriptors(int most) {
  std::vector<int> opened;
  while (static_cast<int>(opened.size()) < most) {
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      break;
    }
    opened.push_back(fd);
  }
  for (const int fd : opened) {
    ::close(fd);
  }
  return static_cast<int>(opened.size());
}

// Sends or receives for ever. `spare`: so many descriptors are free before strangers come.
[[noreturn]] void run_child(Role role, int in, int out, int spare, const HandleBytes& theirs) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = 3; fd < 256; ++fd) {
    if (fd != in && fd != out) {
      ::close(fd);
    }
  }
  const rlimit limit{kLimit, kLimit};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const auto net = make_net(Pair::usual(), rails_of(1));
  REQUIRE(net->init(nullptr) == Result::success);
  Report report;
  ListenComm* listener = nullptr;
  REQUIRE(net->listen(0, report.handle, &listener) == Result::success);
  REQUIRE(::write(out, &report, sizeof report) == static_cast<ssize_t>(sizeof report));
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
  if (role == Role::sends) {
    REQUIRE(net->connect(0, theirs, 0, &send) == Result::success);
  }
  std::vector<std::byte> bytes(kMessage);
  const ReceiveSlot slot{bytes.data(), bytes.size(), 0};
  Request* request = nullptr;
  bool filled = false;
  auto next = Clock::now();
  while (true) {
    Result result = Result::success;
    if (role == Role::receives && receive == nullptr) {
      result = net->accept(listener, &receive);
    } else if (request == nullptr) {
      result = role == Role::sends ? net->isend(send, bytes.data(), bytes.size(), 0, &request)
                                   : net->irecv(receive, {&slot, 1}, false, &request);
    } else {
      bool done = false;
      result = net->test(request, &done, nullptr);
      report.messages += done ? 1U : 0U;
      request = done ? nullptr : request;
    }
    report.result = report.result == Result::success ? result : report.result;
    if (!filled && stats_of(*net).rails[1].live_paths != 0 &&
        stats_of(*net).rails[0].live_paths != 0) {
      filled = true;  // by the rest of the job, while both paths are there
      for (int left = free_descriptors(static_cast<int>(kLimit)); left > spare; --left) {
        REQUIRE(::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0);
      }
    }
    if (filled && Clock::now() >= next) {
      next = Clock::now() + milliseconds(10);
      report.without_descriptor += free_descriptors(2) < 2 ? 1U : 0U;
      REQUIRE(::write(out, &report, sizeof report) == static_cast<ssize_t>(sizeof report));
    }
    net->wait(1000);
  }
}

// As many connections as may be, to each of two listeners by turns.
class Strangers {
 public:
  explicit Strangers(const std::array<Address, 2>& doors) : doors_(doors) {
    thread_ = std::thread([this] { run(); });
  }
  ~Strangers() {
    over_ = true;
    thread_.join();
    for (const int fd : open_) {
      ::close(fd);
    }
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;
  [[nodiscard]] int dropped() const { return dropped_; }

 private:
  void run() {
    std::size_t turn = 0;
    while (!over_) {
      int fresh = 0;
      for (int& fd : open_) {
        std::byte byte{};
        if (fd >= 0 && (::recv(fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN)) {
          ::close(std::exchange(fd, -1));
          ++dropped_;
        }
        if (fd < 0 && fresh < 3) {
          ++fresh;
          sockaddr_storage storage{};
          const socklen_t length = doors_[++turn % 2].to(storage);
          fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
          ::connect(fd, reinterpret_cast<const sockaddr*>(&storage), length);
        }
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  std::array<Address, 2> doors_;
  std::vector<int> open_ = std::vector<int>(kStrangers, -1);
  std::atomic<bool> over_{false};
  std::atomic<int> dropped_{0};
  std::thread thread_;
};

// The newest report; nothing came within a while: the child is gone.
std::optional<Report> newest(int from) {
  std::optional<Report> report;
  const auto until = Clock::now() + kPatience;
  while (!report && Clock::now() < until) {
    Report read;
    while (::read(from, &read, sizeof read) == static_cast<ssize_t>(sizeof read)) {
      report = read;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return report;
}

void flaps_and_comes_back(Role role, int spare) {
  const auto net = make_net(Pair::usual(), rails_of(0));
  HandleBytes own{};
  std::array<int, 2> up{};
  REQUIRE(::pipe2(up.data(), O_CLOEXEC) == 0);
  std::array<int, 2> down{};
  REQUIRE(::pipe2(down.data(), O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      HandleBytes theirs{};
      REQUIRE(::read(down[0], theirs.data(), theirs.size()) == static_cast<ssize_t>(theirs.size()));
      run_child(role, down[0], up[1], spare, theirs);
    } catch (...) {  // a REQUIRE: the test's main goes on in the parent alone
      ::_exit(1);
    }
  }
  REQUIRE(net->init(nullptr) == Result::success);
  ListenComm* listener = nullptr;
  REQUIRE(net->listen(0, own, &listener) == Result::success);
  REQUIRE(::write(down[1], own.data(), own.size()) == static_cast<ssize_t>(own.size()));
  ::close(up[1]);
  Report report;
  REQUIRE(::read(up[0], &report, sizeof report) == static_cast<ssize_t>(sizeof report));
  ::fcntl(up[0], F_SETFL, O_NONBLOCK);
  const auto handle = decode_handle(report.handle);
  REQUIRE(handle);
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
  if (role == Role::receives) {
    REQUIRE(net->connect(0, report.handle, 0, &send) == Result::success);
  }
  // The test's end of the same comm, one message after the other.
  std::vector<std::byte> bytes(kMessage);
  const ReceiveSlot slot{bytes.data(), bytes.size(), 0};
  Request* request = nullptr;
  const auto turn = [&] {
    if (role == Role::sends && receive == nullptr) {
      REQUIRE(net->accept(listener, &receive) == Result::success);
    } else if (request == nullptr) {
      REQUIRE((send != nullptr
                   ? net->isend(send, bytes.data(), bytes.size(), 0, &request)
                   : net->irecv(receive, {&slot, 1}, false, &request)) == Result::success);
    } else {
      bool done = false;
      REQUIRE(net->test(request, &done, nullptr) == Result::success);
      request = done ? nullptr : request;
    }
    net->wait(1000);
  };
  const auto until = [&](auto holds) {
    const auto limit = Clock::now() + kPatience;
    while (!holds() && Clock::now() < limit) {
      turn();
    }
    return holds();
  };
  const auto for_a_while = [&](milliseconds time) {
    const auto limit = Clock::now() + time;
    while (Clock::now() < limit) {
      turn();
    }
  };
  const auto carried = [&](std::size_t rail) {
    const RailCounters& counters = stats_of(*net).rails[rail];
    return counters.tx_bytes.load() + counters.rx_bytes.load();
  };
  const auto live = [&](std::size_t rail) { return stats_of(*net).rails[rail].live_paths != 0; };
  REQUIRE(until([&] { return live(0) && live(1) && carried(0) != 0; }));
  REQUIRE(newest(up[0]));  // it has filled its descriptors
  {
    Strangers strangers({handle->listeners[0], handle->listeners[1]});
    CHECK(until([&] { return strangers.dropped() > kStrangers; }));
    for (int flap = 0; flap < 2; ++flap) {
      CAPTURE(flap);
      CHECK(kill_connections("127.0.10.1") > 0);
      const std::uint64_t before = carried(0);
      CHECK(until([&] { return carried(0) != before; }));  // its own rail again
      CHECK(until([&] { return live(0) && live(1); }));
      for_a_while(milliseconds(300));
    }
  }
  const auto last = newest(up[0]);
  REQUIRE(last);
  CHECK(last->result == Result::success);
  CHECK(last->messages > 0);
  if (spare >= 16) {
    CHECK(last->without_descriptor == 0);
  }
  CHECK(stats_of(*net).errors == 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int fd : {up[0], down[0], down[1]}) {
    ::close(fd);
  }
  if (send != nullptr) {
    net->close(send);
  }
  if (receive != nullptr) {
    net->close(receive);
  }
  net->close(listener);
  net->finalize();
}

}  // namespace

TEST_CASE("a receiver's path comes back among strangers, and its other work finds descriptors") {
  flaps_and_comes_back(Role::receives, 40);
}
TEST_CASE("the same of a sender, which dials") { flaps_and_comes_back(Role::sends, 40); }
TEST_CASE("strangers stay out of the descriptors that are reserved for the job") {
  flaps_and_comes_back(Role::receives, 16);
}
TEST_CASE("where strangers have the last descriptors, a path that comes back gets them") {
  flaps_and_comes_back(Role::receives, 2);
}
TEST_CASE("the same of a sender without a descriptor") { flaps_and_comes_back(Role::sends, 2); }
