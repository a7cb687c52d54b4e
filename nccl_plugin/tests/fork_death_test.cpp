// A rank dies while forked children of it live: its peers find that out as soon as without them.
// The ranks are processes, over real sockets; the peer of all of them is the test.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/comm_kit.h"
#include "tests/from_environment.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

using HandleBytes = std::array<std::byte, kHandleSize>;

constexpr std::size_t kRails = 2;
constexpr int kChildren = 4;  // of a rank
constexpr std::size_t kFirstHost = 1;
constexpr unsigned kLifeS = 120;  // of what a test that was killed leaves behind

Params params_of_ranks() {
  Params params = Pair::usual();
  params.deadline_ns = 100'000'000'000;  // what ends the calls is the death, not this
  return params;
}

std::unique_ptr<Net> net_on(std::size_t host) {
  std::vector<Rail> rails;
  for (std::size_t i = 0; i < kRails; ++i) {
    rails.push_back(rail_of(host, i));
  }
  auto made = make_net(params_of_ranks(), rails);
  REQUIRE(made->init(nullptr) == Result::success);
  return made;
}

template <typename Value>
void say(int to, const Value& value) {
  REQUIRE(::write(to, &value, sizeof value) == static_cast<ssize_t>(sizeof value));
}
template <typename Value>
Value heard(int from) {
  Value value{};
  REQUIRE(::read(from, &value, sizeof value) == static_cast<ssize_t>(sizeof value));
  return value;
}

// As a worker that hangs in I/O. With `again` it forks, too, and both live on.
pid_t fork_sleeper(bool again = false) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kLifeS);
    if (again) {
      ::fork();
    }
    while (true) {
      ::pause();
    }
  }
  return child;
}

// A rank of the world: one comm in each direction with the test. Forks at several moments.
[[noreturn]] void run_rank(std::size_t host, int test) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // its children die with this group
  const auto net = net_on(host);
  std::array<pid_t, kChildren> children{fork_sleeper()};
  HandleBytes handle{};
  ListenComm* listener = nullptr;
  Ends ends;
  REQUIRE(net->listen(0, handle, &listener) == Result::success);
  say(test, handle);
  REQUIRE(net->connect(0, heard<HandleBytes>(test), 0, &ends.send) == Result::success);
  // While both sides connect, and the control thread opens descriptors.
  std::thread forker([&] { children[1] = fork_sleeper(); });
  ends.receive = accept(*net, listener);
  forker.join();
  std::vector<Send> sends(1);
  sends[0].comm = ends.send;
  sends[0].bytes = contents(100'000, host);
  std::vector<Receive> receives{receive_of(ends.receive, {100'000})};
  REQUIRE(run(*net, sends, *net, receives));
  children[2] = fork_sleeper(true);
  std::thread([&] { children[3] = fork_sleeper(); }).join();
  say(test, children);
  while (true) {
    ::pause();
  }
}

struct Rank {
  pid_t process = -1;
  int talk = -1;
  Ends ends;
  std::array<pid_t, kChildren> children{};
  Request* sent = nullptr;
  Request* awaited = nullptr;
  std::array<Result, 2> results{};
  std::array<double, 2> seconds{-1, -1};  // from the death to the error of each

  [[nodiscard]] bool over() const { return seconds[0] >= 0 && seconds[1] >= 0; }
};

Rank start_rank(std::size_t host) {
  std::array<int, 2> pair{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
  Rank made;
  made.process = ::fork();
  if (made.process == 0) {
    ::close(pair[0]);
    try {
      run_rank(host, pair[1]);
    } catch (...) {  // a REQUIRE: the test's main goes on in the parent alone
      ::_exit(1);
    }
  }
  ::close(pair[1]);
  made.talk = pair[0];
  return made;
}

void meet(Net& net, Rank& rank) {
  HandleBytes handle{};
  ListenComm* listener = nullptr;
  REQUIRE(net.listen(0, handle, &listener) == Result::success);
  say(rank.talk, handle);
  REQUIRE(net.connect(0, heard<HandleBytes>(rank.talk), 0, &rank.ends.send) == Result::success);
  rank.ends.receive = accept(net, listener);
  REQUIRE(net.close(listener) == Result::success);
}

// Kills all ranks at once and polls the calls to them until each has failed. How many did in time.
int deaths_seen(std::size_t count, double& slowest) {
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < count; ++i) {
    ranks.push_back(start_rank(kFirstHost + i));  // before this process has any thread
  }
  const auto net = net_on(0);
  std::vector<std::byte> large = contents(8U << 20U, 7);
  std::vector<std::vector<std::byte>> room(count, std::vector<std::byte>(100'000));
  for (Rank& rank : ranks) {
    meet(*net, rank);
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<Send> sends(1);
    sends[0].comm = ranks[i].ends.send;
    sends[0].bytes = contents(100'000, 5);
    std::vector<Receive> receives{receive_of(ranks[i].ends.receive, {100'000})};
    REQUIRE(run(*net, sends, *net, receives));
    CHECK(receives[0].buffers[0] == contents(100'000, kFirstHost + i));
    ranks[i].children = heard<std::array<pid_t, kChildren>>(ranks[i].talk);
    ranks[i].sent = post(*net, ranks[i].ends.send, large);
    const ReceiveSlot slot{room[i].data(), room[i].size(), 0};
    ranks[i].awaited = post(*net, ranks[i].ends.receive, {&slot, 1});
  }
  for (const Rank& rank : ranks) {
    REQUIRE(::kill(rank.process, SIGKILL) == 0);
  }
  const auto killed = Clock::now();
  const auto alive = [](const Rank& rank) { return !rank.over(); };
  while (std::any_of(ranks.begin(), ranks.end(), alive) &&
         Clock::now() < killed + milliseconds(20'000)) {
    for (Rank& rank : ranks) {
      for (std::size_t way = 0; way < 2; ++way) {
        bool done = false;
        if (rank.seconds[way] < 0) {
          rank.results[way] = net->test(way == 0 ? rank.sent : rank.awaited, &done, nullptr);
          REQUIRE_FALSE(done);
          if (rank.results[way] != Result::success) {
            rank.seconds[way] = std::chrono::duration<double>(Clock::now() - killed).count();
          }
        }
      }
    }
    net->wait(1000);
  }
  int seen = 0;
  for (const Rank& rank : ranks) {
    for (const pid_t child : rank.children) {
      CHECK(::kill(child, 0) == 0);  // it held whatever it had all the time
    }
    seen += rank.over() ? 1 : 0;
    for (std::size_t way = 0; way < 2; ++way) {
      CHECK(rank.results[way] == Result::remote_error);
      slowest = std::max(slowest, rank.seconds[way]);
    }
    ::kill(-rank.process, SIGKILL);
    ::waitpid(rank.process, nullptr, 0);
    ::close(rank.talk);
    CHECK(net->close(rank.ends.send) == Result::success);
    CHECK(net->close(rank.ends.receive) == Result::success);
  }
  CHECK(net->finalize() == Result::success);
  return seen;
}

}  // namespace

TEST_CASE("a rank that is killed while its forked children live: every peer's call fails") {
  const auto rounds = fabric::testing::from_environment("FABRIC_FORK_ROUNDS", 2);
  constexpr std::size_t kRanks = 5;
  double slowest = 0;
  int seen = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    seen += deaths_seen(kRanks, slowest);
  }
  CHECK(seen == static_cast<int>(rounds * kRanks));
  MESSAGE(seen << " of " << rounds * kRanks << " deaths, seen after " << slowest << " s at most");
}
