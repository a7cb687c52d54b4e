// src/old_glibc.cpp stands in for parts of glibc: here they are asked for what glibc would say.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

// Not inlined: there has to be a frame to unwind, with something to destroy.
[[gnu::noinline]] void fail(int depth, std::atomic<int>& destroyed) {
  struct Local {
    std::atomic<int>& count;
    ~Local() { ++count; }
  } const local{destroyed};
  if (depth == 0) {
    throw std::runtime_error("at the bottom");
  }
  fail(depth - 1, destroyed);
}

}  // namespace

TEST_CASE("old glibc: an exception finds its frames, in any thread") {
  std::atomic<int> destroyed = 0;
  std::array<std::thread, 4> threads;
  std::atomic<int> caught = 0;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int i = 0; i < 100; ++i) {
        try {
          fail(3, destroyed);
        } catch (const std::exception& error) {
          caught += std::string(error.what()) == "at the bottom" ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(caught == 400);
  CHECK(destroyed == 1600);
  // One that comes through frames of the C++ library.
  CHECK_THROWS_AS(static_cast<void>(std::string("short").at(9)), std::out_of_range);
}

TEST_CASE("old glibc: files are described as statx does") {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("fabric-old-glibc-" + std::to_string(::getpid()));
  std::ofstream(path) << "twelve bytes";
  struct stat by_name {};
  struct stat by_fd {};
  struct statx truth {};
  const int fd = ::open(path.c_str(), O_RDONLY);
  CHECK(::stat(path.c_str(), &by_name) == 0);
  CHECK(::fstat(fd, &by_fd) == 0);
  REQUIRE(::statx(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS, &truth) == 0);
  for (const struct stat& seen : {by_name, by_fd}) {
    CHECK(seen.st_size == 12);
    CHECK(seen.st_ino == truth.stx_ino);
    CHECK(seen.st_mode == truth.stx_mode);
    CHECK(seen.st_uid == truth.stx_uid);
    CHECK(seen.st_mtim.tv_sec == truth.stx_mtime.tv_sec);
    CHECK(seen.st_mtim.tv_nsec == truth.stx_mtime.tv_nsec);
  }
  ::close(fd);
  std::filesystem::remove(path);
  CHECK(::stat(path.c_str(), &by_name) == -1);
  CHECK(errno == ENOENT);
  CHECK(::fstat(-1, &by_fd) == -1);
  CHECK(errno == EBADF);
}

TEST_CASE("old glibc: random bytes are random") {
  std::array<unsigned char, 64> bytes{};
  REQUIRE(::getrandom(bytes.data(), bytes.size(), 0) == 64);
  CHECK(std::count(bytes.begin(), bytes.end(), 0) < 16);
}

TEST_CASE("old glibc: threads, their names, once, and trylock") {
  std::once_flag once;
  std::mutex mutex;
  std::atomic<int> first = 0;
  std::array<char, 16> name{};
  std::thread thread([&] {
    ::pthread_setname_np(::pthread_self(), "fabric-test");
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    std::call_once(once, [&] { ++first; });
  });
  thread.join();
  std::call_once(once, [&] { ++first; });
  CHECK(first == 1);
  CHECK(std::string(name.data()) == "fabric-test");
  const std::scoped_lock lock(mutex);
  bool taken = true;
  std::thread([&] { taken = mutex.try_lock(); }).join();
  CHECK(!taken);
}
