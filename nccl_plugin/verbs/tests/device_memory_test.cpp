// GPU memory over fake NICs: memory that the plugin has the address of, and that faults when its
// CPU touches it. The NICs reach it by its dmabuf alone.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/recorded_log.h"
#include "verbs/tests/steer_daemon.h"

using namespace fabric;
using namespace fabric::host::loopback;
using namespace fabric::verbs::test;
using verbs::fake::Call;

namespace {

constexpr milliseconds kLimit{20'000};

// `address` is what a caller has of it; `bytes` is how the GPU, here the test, sees it.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t size)
      : size_(size), fd_(::memfd_create("device", MFD_CLOEXEC)) {
    REQUIRE(::ftruncate(fd_, static_cast<off_t>(size)) == 0);
    bytes_ = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd_);
    address_ = map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  }
  ~DeviceMemory() {
    ::munmap(bytes_, size_);
    ::munmap(address_, size_);
    close_descriptor();
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {bytes_, size_}; }
  [[nodiscard]] MemoryRange range() const { return {address_, size_, kMemoryDmaBuf, fd_, 0}; }
  // As NCCL does once it has registered the memory.
  void close_descriptor() {
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));
    }
  }

 private:
  [[nodiscard]] std::byte* map(int access, int kind, int fd) const {
    void* at = ::mmap(nullptr, size_, access, kind, fd, 0);
    REQUIRE(at != MAP_FAILED);
    return static_cast<std::byte*>(at);
  }

  std::size_t size_;
  int fd_;
  std::byte* bytes_ = nullptr;
  std::byte* address_ = nullptr;
};

// Memory at one end of a pair, a GPU's or the host's, registered with its plugin.
class Buffer {
 public:
  Buffer(Net& net, std::size_t size, bool device) : net_(net), host_(device ? 0 : size) {
    if (device) {
      device_.emplace(size);
    }
    const MemoryRange range = device ? device_->range() : MemoryRange{host_.data(), size};
    REQUIRE(net.register_memory(range, &region_) == Result::success);
    if (device) {
      device_->close_descriptor();
    }
  }
  ~Buffer() { net_.deregister_memory(region_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] std::byte* address() { return device_ ? device_->address() : host_.data(); }
  [[nodiscard]] std::span<std::byte> bytes() { return device_ ? device_->bytes() : host_; }
  [[nodiscard]] Region* region() const { return region_; }

 private:
  Net& net_;
  std::optional<DeviceMemory> device_;
  std::vector<std::byte> host_;
  Region* region_ = nullptr;
};

host::Params with_devices() {
  host::Params params = with_verbs();
  params.gpudirect = true;
  return params;
}

// Every message goes over both of two rails.
struct Striped {
  Wires wires{2};
  Pair pair = pair_of(2, params(), params());

  Striped() {
    REQUIRE(connected(*pair.a, 0));
    REQUIRE(connected(*pair.a, 1));
  }
  static host::Params params() {
    host::Params made = with_devices();
    made.stripe = true;
    return made;
  }
};

// One message from a buffer at `a` to one at `b`, under way.
struct Message {
  Request* sent = nullptr;
  Request* received = nullptr;
  Result result = Result::success;
  bool send_done = false;
  bool receive_done = false;
  int size = 0;

  void begin(Pair& pair, Buffer& from, Buffer& to, std::size_t bytes) {
    const auto until = Clock::now() + kLimit;
    const ReceiveSlot slot{to.address(), to.bytes().size(), 0, to.region()};
    while ((sent == nullptr || received == nullptr) && result == Result::success &&
           Clock::now() < until) {
      if (received == nullptr) {
        result = pair.b->irecv(pair.receive, {&slot, 1}, false, &received);
      }
      if (sent == nullptr && result == Result::success) {
        result = pair.a->isend(pair.send, from.address(), bytes, 0, &sent, from.region());
      }
    }
  }
  [[nodiscard]] bool done() const { return send_done && receive_done; }
  void test(Pair& pair) {
    if (!send_done && result == Result::success) {
      result = pair.a->test(sent, &send_done, nullptr);
    }
    if (!receive_done && result == Result::success) {
      result = pair.b->test(received, &receive_done, &size);
    }
  }
  // Until it is done, one end fails, or `over()`.
  template <typename F>
  void wait(Pair& pair, F&& over) {
    const auto until = Clock::now() + kLimit;
    while (!done() && result == Result::success && Clock::now() < until && !over()) {
      test(pair);
      pair.b->wait(500);
    }
  }
  void wait(Pair& pair) {
    wait(pair, [] { return false; });
  }
};

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  const std::vector<std::byte> made = contents((bytes.size() + 7) / 8 * 8, seed);
  std::copy_n(made.begin(), bytes.size(), bytes.begin());
}

// Every byte of a message of that size has to arrive, and nothing behind it may change. `meanwhile`
// is called again and again.
bool carries(
    Pair& pair, Buffer& from, Buffer& to, std::size_t size, std::uint64_t seed,
    const std::function<void()>& meanwhile = [] {}) {
  fill(from.bytes(), seed);
  std::fill(to.bytes().begin(), to.bytes().end(), std::byte{0x5a});
  Message message;
  message.begin(pair, from, to, size);
  message.wait(pair, [&] {
    meanwhile();
    return false;
  });
  const auto middle = to.bytes().begin() + static_cast<std::ptrdiff_t>(size);
  return message.done() && static_cast<std::size_t>(message.size) == size &&
         std::equal(to.bytes().begin(), middle, from.bytes().begin()) &&
         std::all_of(middle, to.bytes().end(), [](std::byte b) { return b == std::byte{0x5a}; });
}

// No path of the sender is over verbs, and one is over TCP.
bool became_tcp(Pair& pair, Wires& wires) {
  const auto until = Clock::now() + kLimit;
  while (Clock::now() < until) {
    const std::uint64_t before = wires.landed();
    if (exchange(pair, milliseconds(20), 3).intact && wires.landed() == before) {
      return true;
    }
  }
  return false;
}

// A pair of one rail whose logs are kept.
Pair logged(const host::Params& of_a, const host::Params& of_b) {
  host::RecordedLog::clear();
  auto a = net_of(of_a, 0, 1);
  auto b = net_of(of_b, 1, 1);
  REQUIRE(a->init(&host::RecordedLog::log) == Result::success);
  REQUIRE(b->init(&host::RecordedLog::log) == Result::success);
  return Pair(std::move(a), std::move(b));
}

bool warned(const std::string& part) {
  const auto lines = host::RecordedLog::lines();
  return std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
    return line.level == LogLevel::warn && line.text.find(part) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("device memory: every size goes both ways, and no CPU touches it") {
  Striped striped;
  auto& [wires, pair] = striped;
  constexpr std::size_t kSize = std::size_t{1} << 20U;
  Buffer from_device(*pair.a, kSize, true);
  Buffer from_host(*pair.a, kSize, false);
  Buffer to_device(*pair.b, kSize, true);
  Buffer to_host(*pair.b, kSize, false);
  std::uint64_t seed = 1;
  // 8 and 100 bytes would go inline, and up to 8192 be copied.
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{100},
                                 std::size_t{8192}, std::size_t{40'000}, kSize}) {
    CAPTURE(size);
    CHECK(carries(pair, from_device, to_device, size, ++seed));
    CHECK(carries(pair, from_host, to_device, size, ++seed));
    CHECK(carries(pair, from_device, to_host, size, ++seed));
    CHECK(carries(pair, from_host, to_host, size, ++seed));
  }
  CHECK(wires.landed_at("b0") != 0);
  CHECK(wires.landed_at("b1") != 0);
}

TEST_CASE("device memory: a rail fails in mid-message, and the others carry") {
  Striped striped;
  auto& [wires, pair] = striped;
  constexpr std::size_t kSize = std::size_t{2} << 20U;
  Buffer from(*pair.a, kSize, true);
  Buffer to(*pair.b, kSize, true);
  REQUIRE(carries(pair, from, to, kSize, 1));
  for (const std::string nic : {"a0", "b1"}) {
    CAPTURE(nic);
    const std::uint64_t before = wires.landed();
    std::thread fault([&wires = striped.wires, before, nic] {
      while (wires.landed() < before + 8) {
        std::this_thread::yield();
      }
      wires.locked([&] { wires.nic(nic).cut = true; });
    });
    CHECK(carries(pair, from, to, kSize, 2));
    fault.join();
    wires.locked([&] { wires.nic(nic).cut = false; });
  }
}

TEST_CASE("device memory: TCP takes none of it, and the message waits for RDMA to come back") {
  for (const std::string nic : {"a0", "b0"}) {
    CAPTURE(nic);
    Wires wires(1);
    Pair pair = pair_of(1, with_devices(), with_devices());
    constexpr std::size_t kSize = 300'000;
    Buffer from(*pair.a, kSize, true);
    Buffer to(*pair.b, kSize, true);
    REQUIRE(carries(pair, from, to, kSize, 1));
    wires.locked([&] { wires.nic(nic).cut = true; });
    REQUIRE(became_tcp(pair, wires));
    fill(from.bytes(), 2);
    // The kernel would refuse such memory, which costs the connection.
    const std::uint64_t failovers = host::stats_of(*pair.a).rails[0].failovers;
    Message message;
    message.begin(pair, from, to, kSize);
    const auto until = Clock::now() + milliseconds(300);
    message.wait(pair, [&] { return Clock::now() > until; });
    CHECK(message.result == Result::success);
    CHECK_FALSE(message.done());
    CHECK(host::stats_of(*pair.a).rails[0].failovers == failovers);
    wires.locked([&] { wires.nic(nic).cut = false; });
    message.wait(pair);
    CHECK(message.done());
    CHECK(std::equal(to.bytes().begin(), to.bytes().end(), from.bytes().begin()));
  }
}

TEST_CASE("device memory: a device that comes back registers it though its descriptor is closed") {
  for (const std::string nic : {"a0", "b0"}) {
    CAPTURE(nic);
    Wires wires(1);
    Pair pair = pair_of(1, with_devices(), with_devices());
    Buffer from(*pair.a, 300'000, true);
    Buffer to(*pair.b, 300'000, true);
    REQUIRE(carries(pair, from, to, 300'000, 1));
    wires.unplug(nic);
    REQUIRE(became_tcp(pair, wires));
    wires.plug(nic);
    const auto until = Clock::now() + kLimit;
    for (const std::uint64_t before = wires.landed(); wires.landed() == before;) {
      REQUIRE(Clock::now() < until);
      CHECK(exchange(pair, milliseconds(20), 3).intact);
    }
    CHECK(carries(pair, from, to, 300'000, 2));
  }
}

TEST_CASE("device memory: whatever the steer page says of RDMA, nothing else can carry it") {
  Wires wires(1);
  SteerDaemon daemon;
  host::Params params = daemon.params();
  params.gpudirect = true;
  SUBCASE("before the first message") { daemon.say(1000, 0); }
  SUBCASE("between two") {}
  Pair pair = pair_of(1, params, with_devices());
  Buffer from(*pair.a, 100'000, true);
  Buffer to(*pair.b, 100'000, true);
  // A page that is not written again is stale after a while, and says nothing.
  const auto again = [&daemon] { daemon.again(); };
  again();
  CHECK(carries(pair, from, to, 100'000, 1, again));
  daemon.say(1000, 0);
  const auto until = Clock::now() + milliseconds(300);
  for (std::uint64_t seed = 2; Clock::now() < until; ++seed) {
    CHECK(carries(pair, from, to, 100'000, seed, again));
  }
}

TEST_CASE("device memory: without RDMA there the communicator ends, and says why") {
  host::Params params = with_devices();
  params.deadline_ns = 3'000'000'000;
  Wires wires(1);
  Pair pair = logged(params, Pair::usual());
  Buffer from(*pair.a, 10'000, true);
  Buffer to(*pair.b, 10'000, false);
  Message message;
  message.begin(pair, from, to, 10'000);
  message.wait(pair);
  CHECK(message.result == Result::remote_error);
  CHECK(warned("no path over RDMA to "));
  CHECK(warned("and device memory goes over no other"));
  pair.a->finalize();
  pair.b->finalize();
}

TEST_CASE("device memory: receives of host memory that no NIC knows do not keep RDMA away") {
  Wires wires(1);
  Pair pair = pair_of(1, with_devices(), with_devices());
  Buffer from(*pair.a, 100'000, true);
  Buffer to(*pair.b, 100'000, true);
  REQUIRE(carries(pair, from, to, 100'000, 1));
  wires.locked([&] { wires.nic("a0").cut = true; });
  REQUIRE(became_tcp(pair, wires));
  std::vector<std::byte> host(20'000);
  Region* unknown = nullptr;
  wires.locked([&] { wires.nic("b0").fail(Call::reg_mr, ENOMEM); });
  REQUIRE(pair.b->register_memory({host.data(), host.size()}, &unknown) == Result::success);
  const ReceiveSlot slot{host.data(), host.size(), 7, unknown};
  Request* waiting = post(*pair.b, pair.receive, {&slot, 1});  // its message is sent last
  wires.locked([&] { wires.nic("a0").cut = false; });
  CHECK(carries(pair, from, to, 100'000, 2));
  const std::vector<std::byte> sent = contents(host.size(), 3);
  Message last;
  last.received = waiting;
  last.sent = post(*pair.a, pair.send, sent, 7);
  last.wait(pair);
  CHECK(last.done());
  CHECK(host == sent);
}

TEST_CASE("device memory: a peer of an older version is never told of it") {
  host::Params older = with_devices();
  older.wire_max = 4;
  host::Params newer = with_devices();
  older.unproven = newer.unproven = true;
  Wires wires(1);
  Pair pair = logged(older, newer);
  Buffer from(*pair.a, 1000, false);
  Buffer to(*pair.b, 1000, true);
  Message message;
  message.begin(pair, from, to, 1000);
  CHECK(message.result == Result::invalid_usage);
  CHECK(warned("device memory needs version 5"));
  pair.a->finalize();
  pair.b->finalize();
}

TEST_CASE("device memory: what can be registered, and what NCCL is told") {
  Wires wires(2);
  const auto kinds = [](Net& net, int device) {
    const DeviceProperties* properties = nullptr;
    REQUIRE(net.properties(device, &properties) == Result::success);
    return properties->memory_kinds;
  };
  SUBCASE("off") {
    Pair pair = pair_of(2);
    DeviceMemory memory(4096);
    Region* region = nullptr;
    CHECK(kinds(*pair.a, 0) == kMemoryHost);
    CHECK(pair.a->register_memory(memory.range(), &region) == Result::invalid_argument);
    CHECK(region == nullptr);
  }
  SUBCASE("on") {
    Pair pair = pair_of(2, with_devices(), with_devices());
    CHECK(kinds(*pair.a, 0) == (kMemoryHost | kMemoryDmaBuf));
    CHECK(kinds(*pair.a, 1) == (kMemoryHost | kMemoryDmaBuf));
    DeviceMemory memory(4096);
    Region* region = nullptr;
    MemoryRange range = memory.range();
    range.dmabuf = -1;
    CHECK(pair.a->register_memory(range, &region) == Result::invalid_argument);
    range = memory.range();
    range.size = 0;
    CHECK(pair.a->register_memory(range, &region) == Result::invalid_argument);
    wires.locked([&] {
      wires.nic("a0").fail(Call::reg_dmabuf_mr, EOPNOTSUPP);
      wires.nic("a1").fail(Call::reg_dmabuf_mr, EOPNOTSUPP);
    });
    CHECK(pair.a->register_memory(memory.range(), &region) == Result::invalid_argument);
    REQUIRE(pair.a->register_memory(memory.range(), &region) == Result::success);
    Request* request = nullptr;  // beyond what was registered
    CHECK(pair.a->isend(pair.send, memory.address() + 4000, 200, 0, &request, region) ==
          Result::invalid_argument);
    CHECK(pair.a->deregister_memory(region) == Result::success);
  }
  SUBCASE("on, and one rail does not reach it") {
    wires.locked([&] { wires.nic("a1").fail(Call::reg_dmabuf_mr, EOPNOTSUPP, 100); });
    Pair pair = pair_of(2, with_devices(), with_devices());
    CHECK(kinds(*pair.a, 0) == kMemoryHost);
    CHECK(kinds(*pair.b, 0) == (kMemoryHost | kMemoryDmaBuf));
  }
}
