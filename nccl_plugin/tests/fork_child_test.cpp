// What a forked child may do with a plugin that it inherits: close everything, and use a plugin of
// its own. Its parent's connections go on. Over NCCL's table, for that is what a child has.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "abi/context.h"
#include "tests/loopback_pair.h"

extern "C" fabric::abi::NetV11 ncclNetPlugin_v11;
extern "C" int fabricCancelSend_v1(void* comm);
extern "C" int fabricWait_v1(int timeout_us);

using fabric::host::loopback::Clock;
using fabric::host::loopback::contents;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

namespace {

const fabric::abi::NetV11& table = ncclNetPlugin_v11;

// GCC 12's allocator under ASan is not safe in a child of a process with threads.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kChildAllocates = false;
#else
constexpr bool kChildAllocates = true;
#endif

std::vector<int> open_descriptors() {
  std::vector<int> found;
  for (int fd = 3; fd < 4096; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) {
      found.push_back(fd);
    }
  }
  return found;
}

// One comm from this process to itself over the loopback device, and the page in `run_dir`.
struct Loop {
  fs::path run_dir = fs::temp_directory_path() / ("fabric-fork." + std::to_string(::getpid()));
  std::vector<int> before;
  void* context = nullptr;
  void* listener = nullptr;
  void* send = nullptr;
  void* receive = nullptr;

  Loop() {
    fs::create_directories(run_dir);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::setenv("FABRIC_RUN_DIR", run_dir.c_str(), 1);
    before = open_descriptors();
    open();
  }
  // True: all of it is there.
  bool open() {
    std::array<std::byte, fabric::kHandleSize> handle{};
    if (table.init(&context, 1, nullptr, nullptr, nullptr) != 0 ||
        table.listen(context, 0, handle.data(), &listener) != 0) {
      return false;
    }
    const auto until = Clock::now() + milliseconds(20'000);
    while ((send == nullptr || receive == nullptr) && Clock::now() < until) {
      if ((send == nullptr && table.connect(context, 0, handle.data(), &send, nullptr) != 0) ||
          (receive == nullptr && table.accept(listener, &receive, nullptr) != 0)) {
        return false;
      }
      fabricWait_v1(500);
    }
    return send != nullptr && receive != nullptr;
  }
  ~Loop() {
    if (send != nullptr) {
      table.close_send(send);
      table.close_receive(receive);
      table.close_listen(listener);
      table.finalize(context);
    }
    std::error_code ignored;
    fs::remove_all(run_dir, ignored);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  [[nodiscard]] std::vector<int> own() const {
    std::vector<int> all = open_descriptors();
    std::erase_if(all, [this](int fd) {
      return std::find(before.begin(), before.end(), fd) != before.end();
    });
    return all;
  }
  [[nodiscard]] std::size_t pages() const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(run_dir / "stats")) {
      count += entry.path().extension() == ".page" ? 1U : 0U;
    }
    return count;
  }
  // One message. False: an error, other bytes than were sent, or nothing in time.
  bool carries(std::size_t size, std::uint64_t seed) {
    const std::vector<std::byte> bytes = contents(size, seed);
    std::vector<std::byte> buffer(size);
    void* data = buffer.data();
    int tag = 0;
    void* sent = nullptr;
    void* received = nullptr;
    int done_sending = 0;
    int done_receiving = 0;
    const auto until = Clock::now() + milliseconds(20'000);
    while ((done_sending == 0 || done_receiving == 0) && Clock::now() < until) {
      int failed = 0;
      if (received == nullptr) {
        void* region = nullptr;
        failed += table.irecv(receive, 1, &data, &size, &tag, &region, nullptr, &received);
      } else if (done_receiving == 0) {
        failed += table.test(received, &done_receiving, nullptr);
      }
      if (sent == nullptr) {
        failed += table.isend(send, const_cast<std::byte*>(bytes.data()), size, 0, nullptr, nullptr,
                              &sent);
      } else if (done_sending == 0) {
        failed += table.test(sent, &done_sending, nullptr);
      }
      if (failed != 0) {
        return false;
      }
      fabricWait_v1(500);
    }
    return done_sending != 0 && done_receiving != 0 && buffer == bytes;
  }
  // Calls on what was its parent's, by a child. Nothing here allocates.
  [[nodiscard]] bool refuse_a_child(void* request) const {
    int done = 0;
    void* none = nullptr;
    return table.isend(send, &done, sizeof done, 0, nullptr, nullptr, &none) != 0 &&
           table.test(request, &done, nullptr) != 0 &&
           table.accept(listener, &none, nullptr) != 0 &&
           table.listen(context, 0, &done, &none) != 0;
  }
  // Everything that ends something. 0: all of it succeeded.
  [[nodiscard]] int end_all_as_child() const {
    int failed = fabricCancelSend_v1(send) + table.deregister_memory(send, context);
    for (int i = 0; i < 2; ++i) {  // twice is no harm either
      failed += table.close_send(send) + table.close_receive(receive) +
                table.close_listen(listener) + table.finalize(context);
    }
    return failed;
  }
};

// The exit status of a child that runs `life` and returns its status. `fork`: what makes it.
template <typename Life, typename Fork>
int status_of_child(Life life, Fork fork) {
  const pid_t child = fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(life());
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
template <typename Life>
int status_of_child(Life life) {
  return status_of_child(life, [] { return ::fork(); });
}

// 0: none of them is open here.
int count_open(const std::vector<int>& descriptors) {
  int open = 0;
  for (const int fd : descriptors) {
    open += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  }
  return open;
}

}  // namespace

TEST_CASE("every descriptor is close-on-exec, and a forked child has none of them") {
  Loop loop;
  REQUIRE(loop.receive != nullptr);
  REQUIRE(loop.carries(1'000'000, 1));
  const std::vector<int> own = loop.own();
  REQUIRE(own.size() > 8);
  for (const int fd : own) {
    CAPTURE(fs::read_symlink("/proc/self/fd/" + std::to_string(fd)).string());
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(status_of_child([&] { return count_open(own); }) == 0);
  CHECK(status_of_child([&] {  // a child of a child
          return status_of_child([&] { return count_open(own); });
        }) == 0);
  CHECK(count_open(own) == static_cast<int>(own.size()));
  CHECK(loop.carries(1'000'000, 2));
}

TEST_CASE("a child that ends all that it inherits ends nothing of its parent's") {
  Loop loop;
  REQUIRE(loop.receive != nullptr);
  std::atomic<bool> over{false};
  std::atomic<int> messages{0};
  std::atomic<bool> intact{true};
  std::vector<std::byte> room(64);
  void* data = room.data();
  std::size_t size = room.size();
  int tag = 0;
  std::thread traffic([&] {
    for (std::uint64_t i = 0; !over && intact; ++i) {
      intact = loop.carries(8 + i * 77'777 % 3'000'000 / 8 * 8, i);
      ++messages;
    }
  });
  // Its numbers are the child's own by the time that it closes what it inherited.
  const std::vector<int> own = loop.own();
  for (int round = 0; round < 20; ++round) {
    CHECK(status_of_child([&] {
            std::array<int, 64> files{};
            for (int& file : files) {
              file = ::open("/dev/null", O_RDONLY);
            }
            const bool refused = loop.refuse_a_child(&round);
            const int failed = loop.end_all_as_child();
            for (const int file : files) {
              if (::fcntl(file, F_GETFD) < 0) {
                return 2;
              }
            }
            return refused ? failed : 3;
          }) == 0);
    const int before = messages;
    const auto until = Clock::now() + milliseconds(20'000);
    while (messages == before && Clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    CHECK(messages > before);
  }
  over = true;
  traffic.join();
  CHECK(intact);
  CHECK(loop.pages() == 1);
  // A request of the parent's, tested by the child and then by the parent.
  void* region = nullptr;
  void* request = nullptr;
  while (request == nullptr) {
    REQUIRE(table.irecv(loop.receive, 1, &data, &size, &tag, &region, nullptr, &request) == 0);
  }
  CHECK(status_of_child(
            [&] { return loop.refuse_a_child(request) ? loop.end_all_as_child() : 3; }) == 0);
  int done = 0;
  CHECK(table.test(request, &done, nullptr) == 0);
}

TEST_CASE("a child without pthread_atfork's handlers closes nothing of its parent's either") {
  Loop loop;
  REQUIRE(loop.receive != nullptr);
  const std::vector<int> own = loop.own();
  const auto bare = [] { return static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); };
  CHECK(status_of_child([&] { return loop.end_all_as_child() + count_open(own); }, bare) == 0);
  CHECK(loop.carries(1'000'000, 3));
}

TEST_CASE("a child that begins anew has a plugin of its own") {
  Loop loop;
  REQUIRE(loop.receive != nullptr);
  for (int i = 0; i < 5 && kChildAllocates; ++i) {
    CHECK(status_of_child([&] {
            void* const old = loop.send;
            loop.context = loop.listener = loop.send = loop.receive = nullptr;
            if (!loop.open() || !loop.carries(2'000'000, 4) || loop.pages() != 2) {
              return 1;
            }
            return table.close_send(old) + table.close_send(loop.send) +
                   table.close_receive(loop.receive) + table.close_listen(loop.listener) +
                   table.finalize(loop.context);
          }) == 0);
  }
  CHECK(loop.pages() == 1);
  CHECK(loop.carries(1'000'000, 5));
}

TEST_CASE("what a child executes has none of the descriptors, however it is started") {
  Loop loop;
  REQUIRE(loop.receive != nullptr);
  const std::vector<int> own = loop.own();
  pid_t child = 0;
  std::array<char*, 3> words{const_cast<char*>("sleep"), const_cast<char*>("60"), nullptr};
  REQUIRE(::posix_spawnp(&child, "sleep", nullptr, nullptr, words.data(), environ) == 0);
  const auto left = [&] {
    return std::count_if(own.begin(), own.end(), [&](int fd) {
      return fs::is_symlink("/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd));
    });
  };
  // The kernel lets the parent go on before it closes them.
  const auto until = Clock::now() + milliseconds(20'000);
  while (left() != 0 && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  CHECK(left() == 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(loop.carries(1'000'000, 6));
}
