// A process that may have 24 descriptors: what does not fit ends with an error after the deadline,
// and one line names the limit. The process is a child, its peer is the test.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/comm_kit.h"
#include "tests/recorded_log.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

using HandleBytes = std::array<std::byte, kHandleSize>;

constexpr int kComms = 16;
constexpr rlim_t kLimit = 24;
constexpr milliseconds kDeadline{3'000};
constexpr milliseconds kPatience{60'000};

struct Found {
  int made = 0;
  int failed = 0;
  int system_errors = 0;
  int lines = 0;        // warnings with the limit in them
  int descriptors = 0;  // open in the end
};

std::unique_ptr<Net> net_with_deadline(std::size_t host) {
  Params params = Pair::usual();
  params.deadline_ns = std::chrono::nanoseconds(kDeadline).count();
  return make_net(params, std::vector<Rail>{rail_of(host, 0)});
}

int lines_with(const std::string& text) {
  const auto lines = RecordedLog::lines();
  return static_cast<int>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
    return line.level == LogLevel::warn && line.text.find(text) != std::string::npos;
  }));
}

std::unique_ptr<Net> limited_net(std::size_t host) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = 3; fd < 64; ++fd) {  // what the test runner left open would count
    if (fd != 10 && fd != 11) {
      ::close(fd);
    }
  }
  const rlimit limit{kLimit, kLimit};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  auto net = net_with_deadline(host);
  REQUIRE(net->init(RecordedLog::log) == Result::success);
  return net;
}

// `send` and `receive`: descriptors 10 and 11, a pipe in each direction.
struct Talk {
  std::array<int, 2> down{};
  std::array<int, 2> up{};
  Talk() {
    REQUIRE(::pipe(down.data()) == 0);
    REQUIRE(::pipe(up.data()) == 0);
  }
  void in_child() const {
    const int in = ::fcntl(down[0], F_DUPFD, 100);
    const int out = ::fcntl(up[1], F_DUPFD, 100);
    ::dup2(in, 10);
    ::dup2(out, 11);
    ::close(in);
    ::close(out);
  }
  // A child that dies is the end of what it says: the parent keeps no end of it open.
  void in_parent() const {
    ::close(down[0]);
    ::close(up[1]);
  }
  ~Talk() {
    ::close(down[1]);
    ::close(up[0]);
  }
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;
};

template <typename Value>
void say(int to, const Value& value) {
  REQUIRE(::write(to, &value, sizeof value) == static_cast<ssize_t>(sizeof value));
}
template <typename Value>
Value heard(int from) {
  Value value{};
  char* at = reinterpret_cast<char*>(&value);
  for (std::size_t got = 0; got < sizeof value;) {
    const ssize_t count = ::read(from, at + got, sizeof value - got);
    REQUIRE(count > 0);
    got += static_cast<std::size_t>(count);
  }
  return value;
}

Found counted(Found found) {
  found.lines = lines_with("RLIMIT_NOFILE is 24");
  for (int fd = 0; fd < static_cast<int>(kLimit); ++fd) {
    found.descriptors += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  }
  return found;
}

// Gives out one handle for each comm, and accepts until each listener has a comm or an error.
[[noreturn]] void run_receiver() {
  const auto net = limited_net(1);
  std::vector<ListenComm*> waiting;
  for (int i = 0; i < kComms; ++i) {
    HandleBytes handle{};
    REQUIRE(net->listen(0, handle, &waiting.emplace_back()) == Result::success);
    say(11, handle);
  }
  Found found;
  const auto until = Clock::now() + kPatience;
  while (found.made + found.failed < kComms && Clock::now() < until) {
    for (ListenComm*& listener : waiting) {
      RecvComm* comm = nullptr;
      const Result result = listener == nullptr ? Result::success : net->accept(listener, &comm);
      found.made += comm != nullptr ? 1 : 0;
      found.failed += result != Result::success ? 1 : 0;
      found.system_errors += result == Result::system_error ? 1 : 0;
      listener = comm != nullptr || result != Result::success ? nullptr : listener;
    }
    net->wait(1000);
  }
  say(11, counted(found));
  ::_exit(0);
}

// Connects to each handle that comes, and sends until each has been taken or failed.
[[noreturn]] void run_sender() {
  const auto net = limited_net(1);
  std::vector<Send> sends(kComms);
  for (Send& send : sends) {
    REQUIRE(net->connect(0, heard<HandleBytes>(10), 0, &send.comm) == Result::success);
    send.bytes = contents(64 * 1024, 1);
  }
  Found found;
  const auto until = Clock::now() + kPatience;
  while (found.made + found.failed < kComms && Clock::now() < until) {
    for (Send& send : sends) {
      if (send.comm == nullptr) {
        continue;
      }
      Result result = send.request == nullptr ? net->isend(send.comm, send.bytes.data(),
                                                           send.bytes.size(), 0, &send.request)
                                              : net->test(send.request, &send.done, nullptr);
      found.made += send.done ? 1 : 0;
      found.failed += result != Result::success ? 1 : 0;
      found.system_errors += result == Result::system_error ? 1 : 0;
      send.comm = send.done || result != Result::success ? nullptr : send.comm;
    }
    net->wait(1000);
  }
  say(11, counted(found));
  ::_exit(0);
}

template <typename Run>
pid_t start(const Talk& talk, Run run) {
  const pid_t child = ::fork();
  if (child == 0) {
    talk.in_child();
    try {
      run();
    } catch (...) {  // a REQUIRE: the test's main goes on in the parent alone
      ::_exit(1);
    }
  }
  talk.in_parent();
  return child;
}

void check(const Found& found) {
  CHECK(found.made > 0);
  CHECK(found.failed > 0);
  CHECK(found.made + found.failed == kComms);
  CHECK(found.system_errors == found.failed);
  CHECK(found.lines >= 1);
}

}  // namespace

TEST_CASE("a receiver without descriptors: accept fails after the deadline and says why") {
  const Talk talk;
  const pid_t child = start(talk, run_receiver);
  const auto net = net_with_deadline(0);
  REQUIRE(net->init(nullptr) == Result::success);
  std::vector<SendComm*> comms(kComms);
  for (SendComm*& comm : comms) {
    REQUIRE(net->connect(0, heard<HandleBytes>(talk.up[0]), 0, &comm) == Result::success);
  }
  const auto began = Clock::now();
  const auto found = heard<Found>(talk.up[0]);
  CHECK(Clock::now() - began >= kDeadline / 2);  // it began to wait a little before
  check(found);
  ::waitpid(child, nullptr, 0);
  for (SendComm* comm : comms) {
    CHECK(net->close(comm) == Result::success);
  }
  CHECK(net->finalize() == Result::success);
}

TEST_CASE("a sender without descriptors: its sends fail after the deadline and say why") {
  const Talk talk;
  const pid_t child = start(talk, run_sender);
  const auto net = net_with_deadline(0);
  REQUIRE(net->init(nullptr) == Result::success);
  std::vector<ListenComm*> listeners(kComms);
  for (ListenComm*& listener : listeners) {
    HandleBytes handle{};
    REQUIRE(net->listen(0, handle, &listener) == Result::success);
    say(talk.down[1], handle);
  }
  std::vector<RecvComm*> comms(kComms);
  std::vector<Receive> receives;
  std::atomic<bool> over{false};
  std::thread server([&] {
    while (!over) {
      for (std::size_t i = 0; i < comms.size(); ++i) {
        if (comms[i] == nullptr && net->accept(listeners[i], &comms[i]) == Result::success &&
            comms[i] != nullptr) {
          receives.push_back(receive_of(comms[i], {64 * 1024}));
        }
      }
      for (Receive& receive : receives) {
        push(*net, receive);
      }
      net->wait(1000);
    }
  });
  const auto found = heard<Found>(talk.up[0]);
  over = true;
  server.join();
  check(found);
  ::waitpid(child, nullptr, 0);
  for (std::size_t i = 0; i < comms.size(); ++i) {
    CHECK(net->close(listeners[i]) == Result::success);
    if (comms[i] != nullptr) {
      CHECK(net->close(comms[i]) == Result::success);
    }
  }
  CHECK(net->finalize() == Result::success);
}
