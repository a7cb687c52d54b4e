// Both rendezvous with real files and sockets, a thread per rank.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "perf/rendezvous.h"

using namespace fabric::perf;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

namespace {

struct TemporaryDirectory {
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "fabric-perf-test-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { fs::remove_all(path); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  fs::path path;
};

RendezvousConfig config(int rank, int world, int timeout_ms = 60'000) {
  return {rank, world, std::chrono::milliseconds(timeout_ms), nullptr};
}

// Runs `body` for each rank; number of ranks for which it threw.
int on_all_ranks(int world, const std::function<void(int)>& body) {
  std::atomic<int> threw{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const TransportError&) {
        ++threw;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return threw;
}

std::atomic<int> wrong{0};

void exchange_twice(Rendezvous& rendezvous, int rank, int world) {
  for (const std::string name : {"first", "second"}) {
    const std::string binary("\0\xff x", 4);
    const auto all = rendezvous.all_gather(name, name + binary + std::to_string(rank));
    if (all.size() != static_cast<std::size_t>(world)) ++wrong;
    for (int r = 0; r < world; ++r) {
      if (all[static_cast<std::size_t>(r)] != name + binary + std::to_string(r)) ++wrong;
    }
  }
}

// Below the ephemeral ports, so that no connection of a test beside this one takes it meanwhile.
std::uint16_t free_port() {
  static int next = 12'000 + getpid() % 1000 * 20;
  for (;;) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(next++));
    const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    if (free) return ntohs(address.sin_port);
  }
}

}  // namespace

TEST_CASE("file: all ranks get all blobs, three jobs in a row in one directory") {
  const TemporaryDirectory directory;
  wrong = 0;
  for (int job = 0; job < 3; ++job) {
    std::vector<std::unique_ptr<Rendezvous>> kept(4);
    CHECK(on_all_ranks(4, [&](int rank) {
            auto& mine = kept[static_cast<std::size_t>(rank)];
            mine = make_file_rendezvous(directory.path.string(), config(rank, 4));
            exchange_twice(*mine, rank, 4);
          }) == 0);
    for (auto& rendezvous : kept) rendezvous->forget();
  }
  CHECK(wrong == 0);
  CHECK(fs::is_empty(directory.path));
}

TEST_CASE("file: what a killed job left behind is not taken for ours") {
  const TemporaryDirectory directory;
  wrong = 0;
  for (int rank = 0; rank < 3; ++rank) {
    std::ofstream(directory.path / ("hello." + std::to_string(rank))) << "stale" << rank;
    std::ofstream(directory.path / ("ready.old." + std::to_string(rank)));
    std::ofstream(directory.path / ("old.first." + std::to_string(rank))) << "stale";
  }
  std::ofstream(directory.path / "session") << "old\nstale0\nstale1\nstale2\n";
  std::ofstream(directory.path / "go.old");
  CHECK(on_all_ranks(3, [&](int rank) {
          // Rank 0 first: it sees the stale hellos of the others.
          std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank));
          const auto rendezvous = make_file_rendezvous(directory.path.string(), config(rank, 3));
          exchange_twice(*rendezvous, rank, 3);
        }) == 0);
  CHECK(wrong == 0);
}

TEST_CASE("file: a missing rank ends the wait, and the text says so") {
  const TemporaryDirectory directory;
  CHECK_THROWS_WITH_AS(make_file_rendezvous(directory.path.string(), config(1, 2, 100)),
                       doctest::Contains("timed out waiting for rank 0"), TransportError);
  CHECK_THROWS_AS(make_file_rendezvous("/proc/nowhere", config(0, 2, 100)), TransportError);
}

TEST_CASE("tcp: all ranks get all blobs, whoever comes first; strangers are dropped") {
  const std::uint16_t port = free_port();
  wrong = 0;
  std::thread intruder([port] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      [[maybe_unused]] const ssize_t sent = send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
    }
    close(fd);
  });
  CHECK(on_all_ranks(4, [&](int rank) {
          std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 30 : 40 * rank));
          const auto rendezvous = make_tcp_rendezvous("127.0.0.1", port, config(rank, 4));
          exchange_twice(*rendezvous, rank, 4);
        }) == 0);
  intruder.join();
  CHECK(wrong == 0);
}

TEST_CASE("tcp: nobody there, or a rank that leaves, is an error in time") {
  CHECK_THROWS_AS(make_tcp_rendezvous("127.0.0.1", free_port(), config(1, 2, 200)), TransportError);
  const std::uint16_t port = free_port();
  CHECK(on_all_ranks(2, [&](int rank) {
          const auto rendezvous = make_tcp_rendezvous("127.0.0.1", port, config(rank, 2));
          if (rank == 0) rendezvous->all_gather("x", "y");
        }) == 1);
}
