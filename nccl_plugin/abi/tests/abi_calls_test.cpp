// The glue of every version over a Net in memory: a round trip, what reaches the Net, and what is
// refused before it does.
#include <doctest/doctest.h>

#include <array>
#include <thread>

#include "abi/handle_table.h"
#include "abi/tables.h"
#include "fake_net.h"

namespace abi = fabric::abi;
using fabric::fake;

extern "C" {
extern abi::NetV8 ncclNetPlugin_v8;
extern abi::NetV9 ncclNetPlugin_v9;
extern abi::NetV10 ncclNetPlugin_v10;
extern abi::NetV11 ncclNetPlugin_v11;
extern abi::NetV12 ncclNetPlugin_v12;
int fabricWait_v1(int timeout_us);
int fabricWake_v1();
int fabricCancelSend_v1(void* comm);
}

namespace {

constexpr abi::Status kOk = 0;
constexpr abi::Status kInvalid = 4;
using HandleBytes = std::array<std::byte, fabric::kHandleSize>;

void log_nothing(int, unsigned long, const char*, int, const char*, ...) {}

// One table with the differences of the versions papered over.
template <typename Table>
struct Driver {
  Table& t;
  void* context = nullptr;
  static constexpr bool kContext = requires(Table x) { x.finalize; };
  static constexpr bool kV10 = std::is_same_v<Table, abi::NetV10>;

  abi::Status init(int traffic_class = 5) {
    abi::CommConfig config{traffic_class};
    if constexpr (kContext) {
      return t.init(&context, 42, &config, log_nothing, nullptr);
    } else if constexpr (kV10) {
      return t.init(log_nothing, nullptr);
    } else {
      return t.init(log_nothing);
    }
  }
  abi::Status listen(int device, void* handle, void** comm) {
    if constexpr (kContext) {
      return t.listen(context, device, handle, comm);
    } else {
      return t.listen(device, handle, comm);
    }
  }
  abi::Status connect(int device, void* handle, void** comm) {
    abi::CommConfig config{5};
    if constexpr (kContext) {
      return t.connect(context, device, handle, comm, nullptr);
    } else if constexpr (kV10) {
      return t.connect(device, &config, handle, comm, nullptr);
    } else {
      return t.connect(device, handle, comm, nullptr);
    }
  }
  abi::Status isend(void* comm, void* data, typename Table::Size size, void** request) {
    if constexpr (kContext || kV10) {
      return t.isend(comm, data, size, 0, nullptr, nullptr, request);
    } else {
      return t.isend(comm, data, size, 0, nullptr, request);
    }
  }
  abi::Status irecv(void* comm, int n, void** data, typename Table::Size* sizes, int* tags,
                    void** request) {
    if constexpr (kContext || kV10) {
      return t.irecv(comm, n, data, sizes, tags, nullptr, nullptr, request);
    } else {
      return t.irecv(comm, n, data, sizes, tags, nullptr, request);
    }
  }
};

struct Connection {
  void* send = nullptr;
  void* receive = nullptr;
};

template <typename D>
Connection connect(D& d) {
  HandleBytes handle{};
  void* listener = nullptr;
  REQUIRE(d.listen(0, handle.data(), &listener) == kOk);
  REQUIRE(listener != nullptr);
  Connection c;
  REQUIRE(d.connect(1, handle.data(), &c.send) == kOk);
  REQUIRE(d.t.accept(listener, &c.receive, nullptr) == kOk);
  CHECK(c.receive == nullptr);  // not yet
  REQUIRE(d.t.accept(listener, &c.receive, nullptr) == kOk);
  REQUIRE(c.receive != nullptr);
  CHECK(d.t.close_listen(listener) == kOk);
  CHECK(d.t.close_listen(listener) == kInvalid);  // twice
  return c;
}

template <typename D>
void round_trip(D& d, const Connection& c) {
  std::array<char, 8> out{'f', 'a', 'b', 'r', 'i', 'c', '!', '\0'};
  std::array<char, 8> in{};
  void* receive = nullptr;
  void* data = in.data();
  typename std::remove_reference_t<decltype(d.t)>::Size size = in.size();
  int tag = 0;
  REQUIRE(d.irecv(c.receive, 1, &data, &size, &tag, &receive) == kOk);
  int done = 1;
  std::array<int, 8> sizes{};
  REQUIRE(d.t.test(receive, &done, sizes.data()) == kOk);
  CHECK(done == 0);
  void* send = nullptr;
  fake().refuse_next = true;
  REQUIRE(d.isend(c.send, out.data(), 8, &send) == kOk);
  CHECK(send == nullptr);  // not yet
  REQUIRE(d.isend(c.send, out.data(), 8, &send) == kOk);
  REQUIRE(d.t.test(send, &done, sizes.data()) == kOk);
  CHECK(done == 1);
  CHECK(d.t.test(send, &done, nullptr) == kInvalid);  // it is gone
  REQUIRE(d.t.test(receive, &done, sizes.data()) == kOk);
  CHECK(done == 1);
  CHECK(sizes[0] == 8);
  CHECK(in == out);
}

}  // namespace

TEST_CASE_TEMPLATE("a version's table", Table, abi::NetV8, abi::NetV9, abi::NetV10, abi::NetV11,
                   abi::NetV12) {
  Table* table = nullptr;
  if constexpr (std::is_same_v<Table, abi::NetV8>) table = &ncclNetPlugin_v8;
  if constexpr (std::is_same_v<Table, abi::NetV9>) table = &ncclNetPlugin_v9;
  if constexpr (std::is_same_v<Table, abi::NetV10>) table = &ncclNetPlugin_v10;
  if constexpr (std::is_same_v<Table, abi::NetV11>) table = &ncclNetPlugin_v11;
  if constexpr (std::is_same_v<Table, abi::NetV12>) table = &ncclNetPlugin_v12;
  using D = Driver<Table>;
  D d{*table};
  const int inits = fake().inits;
  REQUIRE(d.init() == kOk);
  CHECK(fake().inits == inits + 1);

  SUBCASE("properties") {
    int count = 0;
    REQUIRE(d.t.devices(&count) == kOk);
    CHECK(count == 2);
    typename Table::Properties p{};
    REQUIRE(d.t.get_properties(0, &p) == kOk);
    CHECK(std::string(p.name) == "rail0");
    CHECK(std::string(p.pci_path).starts_with("/sys/devices"));
    CHECK(p.guid == 7);
    CHECK(p.speed_mbps == 500);
    CHECK(p.memory_kinds == abi::kMemoryHost);
    CHECK(p.max_receives == fabric::kMaxGroupedReceives);
    if constexpr (requires { p.members; }) {
      CHECK(p.members.count == 1);
      CHECK(p.members.devices[0] == 0);
      CHECK(p.max_p2p_bytes == std::size_t{1} << 40U);
      CHECK(p.force_flush == 0);
    }
    if constexpr (requires { p.rail_id; }) {
      CHECK(p.rail_id == 3);
      CHECK(p.plane_id == -1);
    }
    REQUIRE(d.t.get_properties(1, &p) == kOk);
    CHECK(p.pci_path == nullptr);
    CHECK(d.t.get_properties(2, &p) == kInvalid);
    CHECK(d.t.get_properties(-1, &p) == kInvalid);
    CHECK(d.t.get_properties(0, nullptr) == kInvalid);
    CHECK(d.t.devices(nullptr) == kInvalid);
    CHECK_FALSE(static_cast<bool>(d.t.get_device_region));
    CHECK_FALSE(static_cast<bool>(d.t.receive_consumed));
    if constexpr (requires { d.t.make_virtual_device; })
      CHECK_FALSE(static_cast<bool>(d.t.make_virtual_device));
    if constexpr (D::kContext) CHECK_FALSE(static_cast<bool>(d.t.set_attributes));
  }

  SUBCASE("a round trip") {
    const Connection c = connect(d);
    CHECK(fake().last_traffic_class == (D::kContext || D::kV10 ? 5 : -1));
    for (int i = 0; i < 100; ++i) round_trip(d, c);
    CHECK(d.t.close_send(c.send) == kOk);
    CHECK(d.t.close_receive(c.receive) == kOk);
    CHECK(d.t.close_send(c.send) == kInvalid);
  }

  SUBCASE("grouped receives and the optional completion") {
    const Connection c = connect(d);
    std::array<char, 3> a{};
    std::array<char, 3> b{};
    std::array<void*, 2> data{a.data(), b.data()};
    std::array<typename Table::Size, 2> sizes{3, 3};
    std::array<int, 2> tags{1, 2};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the ABI's mark
    void* request = reinterpret_cast<void*>(fabric::kOptionalCompletion);
    REQUIRE(d.irecv(c.receive, 2, data.data(), sizes.data(), tags.data(), &request) == kOk);
    CHECK(fake().last_optional);
    void* send = nullptr;
    int done = 0;
    std::array<int, 8> got{};
    for (const char* text : {"abc", "de"}) {
      REQUIRE(d.isend(c.send, const_cast<char*>(text), text[2] == 'c' ? 3 : 2, &send) == kOk);
      REQUIRE(d.t.test(send, &done, nullptr) == kOk);
    }
    REQUIRE(d.t.test(request, &done, got.data()) == kOk);
    CHECK(done == 1);
    CHECK(got[0] == 3);
    CHECK(got[1] == 2);
    CHECK(a == std::array<char, 3>{'a', 'b', 'c'});
    request = nullptr;
    REQUIRE(d.irecv(c.receive, 1, data.data(), sizes.data(), tags.data(), &request) == kOk);
    CHECK_FALSE(fake().last_optional);
    REQUIRE(d.isend(c.send, a.data(), 0, &send) == kOk);  // an empty message
    REQUIRE(d.t.test(send, &done, nullptr) == kOk);
    REQUIRE(d.t.test(request, &done, got.data()) == kOk);
    CHECK(got[0] == 0);
    CHECK(d.t.close_send(c.send) == kOk);
    CHECK(d.t.close_receive(c.receive) == kOk);
  }

  SUBCASE("memory") {
    const Connection c = connect(d);
    std::array<char, 16> buffer{};
    void* region = nullptr;
    CHECK(d.t.register_memory(c.send, buffer.data(), 16, abi::kMemoryHost, &region) == kOk);
    CHECK(region != nullptr);
    CHECK(d.t.deregister_memory(c.send, region) == kOk);
    CHECK(d.t.deregister_memory(c.send, nullptr) == kInvalid);
    CHECK(d.t.register_memory(c.send, buffer.data(), 16, abi::kMemoryCuda, &region) == kInvalid);
    CHECK(region == nullptr);
    CHECK(d.t.register_memory(nullptr, buffer.data(), 16, abi::kMemoryHost, &region) == kInvalid);
    CHECK(d.t.register_dmabuf(c.send, buffer.data(), 16, abi::kMemoryDmaBuf, 0, 3, &region) ==
          kInvalid);
    CHECK(d.t.register_memory(c.receive, buffer.data(), 16, abi::kMemoryHost, &region) == kOk);
    CHECK(d.t.deregister_memory(c.receive, region) == kOk);
    CHECK(d.t.register_memory(c.send, nullptr, 0, abi::kMemoryHost, &region) == kOk);
    CHECK(d.t.register_memory(c.send, nullptr, 16, abi::kMemoryHost, &region) == kInvalid);
    CHECK(d.t.register_memory(c.send, buffer.data(), 16, abi::kMemoryHost, nullptr) == kInvalid);
    CHECK(d.t.deregister_memory(nullptr, region) == kInvalid);
    fake().kinds = abi::kMemoryHost | abi::kMemoryDmaBuf;
    CHECK(d.t.register_dmabuf(c.receive, buffer.data(), 16, abi::kMemoryCuda, 4096, 3, &region) ==
          kOk);
    CHECK(fake().last_range.dmabuf == 3);
    CHECK(fake().last_range.dmabuf_offset == 4096);
    CHECK(fake().last_range.kind == abi::kMemoryDmaBuf);
    CHECK(d.t.deregister_memory(c.receive, region) == kOk);
    CHECK(d.t.deregister_memory(c.receive, buffer.data()) == kInvalid);
    fake().kinds = abi::kMemoryHost;
    void* request = buffer.data();
    std::array<int, 1> sizes{16};
    void* data = buffer.data();
    CHECK(d.t.iflush(c.receive, 1, &data, sizes.data(), nullptr, &request) == kOk);
    CHECK(request == nullptr);  // nothing to wait for
    CHECK(fake().flushed.at(0).data == data);
    CHECK(fake().flushed.at(0).size == 16);
    CHECK(d.t.iflush(c.receive, 1, &data, nullptr, nullptr, &request) == kOk);
    CHECK(d.t.iflush(c.receive, 9, &data, sizes.data(), nullptr, &request) == kInvalid);
    fake().flushes_take_time = true;
    CHECK(d.t.iflush(c.receive, 1, &data, sizes.data(), nullptr, &request) == kOk);
    REQUIRE(request != nullptr);
    int done = 0;
    CHECK(d.t.test(request, &done, nullptr) == kOk);
    CHECK(done == 1);
    fake().flushes_take_time = false;
    CHECK(d.t.iflush(c.receive, 0, &data, sizes.data(), nullptr, &request) == kInvalid);
    CHECK(d.t.iflush(c.receive, 1, &data, sizes.data(), nullptr, nullptr) == kInvalid);
    CHECK(d.t.iflush(c.send, 1, &data, sizes.data(), nullptr, &request) == kInvalid);
    CHECK(d.t.close_send(c.send) == kOk);
    CHECK(d.t.close_receive(c.receive) == kOk);
  }

  SUBCASE("nonsense is refused, never followed") {
    const Connection c = connect(d);
    HandleBytes handle{};
    void* out = nullptr;
    void* garbage = &out;  // a real address, but none of ours
    int done = 0;
    std::array<char, 4> buffer{};
    void* data = buffer.data();
    typename Table::Size size = 4;
    int tag = 0;
    CHECK(d.listen(0, nullptr, &out) == kInvalid);
    CHECK(d.listen(0, handle.data(), nullptr) == kInvalid);
    CHECK(d.connect(0, nullptr, &out) == kInvalid);
    handle.fill(std::byte{0xff});
    CHECK(d.connect(0, handle.data(), &out) != kOk);  // the Net refuses the handle
    CHECK(out == nullptr);
    for (void* comm : {static_cast<void*>(nullptr), garbage, c.send}) {
      CHECK(d.t.accept(comm, &out, nullptr) == kInvalid);
      CHECK(d.irecv(comm, 1, &data, &size, &tag, &out) == kInvalid);
      CHECK(d.t.close_receive(comm) == kInvalid);
      CHECK(d.t.close_listen(comm) == kInvalid);
      CHECK(d.t.test(comm, &done, nullptr) == kInvalid);
      CHECK(d.t.iflush(comm, 1, &data, nullptr, nullptr, &out) == kInvalid);
    }
    CHECK(d.isend(c.receive, buffer.data(), 4, &out) == kInvalid);
    CHECK(d.isend(garbage, buffer.data(), 4, &out) == kInvalid);
    CHECK(d.isend(c.send, nullptr, 4, &out) == kInvalid);
    CHECK(d.isend(c.send, buffer.data(), 4, nullptr) == kInvalid);
    if constexpr (std::is_same_v<Table, abi::NetV8>) {
      CHECK(d.isend(c.send, buffer.data(), -1, &out) == kInvalid);
    } else {
      CHECK(d.isend(c.send, buffer.data(), std::size_t{1} << 41U, &out) == kInvalid);
    }
    CHECK(d.irecv(c.receive, 0, &data, &size, &tag, &out) == kInvalid);
    CHECK(d.irecv(c.receive, 9, &data, &size, &tag, &out) == kInvalid);
    CHECK(d.irecv(c.receive, -1, &data, &size, &tag, &out) == kInvalid);
    CHECK(d.irecv(c.receive, 1, nullptr, &size, &tag, &out) == kInvalid);
    CHECK(d.irecv(c.receive, 1, &data, nullptr, &tag, &out) == kInvalid);
    CHECK(d.irecv(c.receive, 1, &data, &size, nullptr, &out) == kInvalid);
    CHECK(d.irecv(c.receive, 1, &data, &size, &tag, nullptr) == kInvalid);
    void* null_data = nullptr;
    CHECK(d.irecv(c.receive, 1, &null_data, &size, &tag, &out) == kInvalid);
    CHECK(d.t.test(nullptr, &done, nullptr) == kInvalid);
    void* request = nullptr;
    REQUIRE(d.isend(c.send, buffer.data(), 4, &request) == kOk);
    CHECK(d.t.test(request, nullptr, nullptr) == kInvalid);
    CHECK(d.t.test(request, &done, nullptr) == kOk);
    CHECK(d.t.close_send(c.send) == kOk);
    CHECK(d.t.close_receive(c.receive) == kOk);
    CHECK(d.isend(c.send, buffer.data(), 4, &out) == kInvalid);  // after its end
  }

  SUBCASE("a comm takes its requests with it, and no other's") {
    std::array<char, 4> buffer{};
    void* data = buffer.data();
    typename Table::Size size = 4;
    int tag = 0;
    int done = 0;
    const Connection kept = connect(d);
    void* other = nullptr;
    REQUIRE(d.irecv(kept.receive, 1, &data, &size, &tag, &other) == kOk);
    // More rounds than the table has slots: none leaks.
    for (std::uint32_t round = 0; round < abi::HandleTable::kSlots / 16; ++round) {
      const Connection c = connect(d);
      std::array<void*, 32> requests{};
      for (void*& request : requests) {
        REQUIRE(d.irecv(c.receive, 1, &data, &size, &tag, &request) == kOk);
        REQUIRE(request != nullptr);
      }
      REQUIRE(d.t.close_receive(c.receive) == kOk);
      REQUIRE(d.t.test(requests[0], &done, nullptr) == kInvalid);
      REQUIRE(d.t.test(requests[31], &done, nullptr) == kInvalid);
      REQUIRE(d.t.close_send(c.send) == kOk);
    }
    REQUIRE(d.t.test(other, &done, nullptr) == kOk);
    CHECK(done == 0);
    CHECK(d.t.close_send(kept.send) == kOk);
    CHECK(d.t.close_receive(kept.receive) == kOk);
  }

  SUBCASE("what the Net throws stays inside") {
    fake().throw_next = true;
    int count = 0;
    CHECK(d.t.devices(&count) == 3);
  }

  if constexpr (D::kContext) {
    const int ended = fake().finalizes;
    CHECK(d.t.finalize(d.context) == kOk);
    CHECK(fake().finalizes == ended + 1);
    CHECK(d.t.finalize(d.context) == kInvalid);
    CHECK(d.t.finalize(nullptr) == kInvalid);
    void* comm = nullptr;
    HandleBytes handle{};
    CHECK(d.listen(0, handle.data(), &comm) == kInvalid);  // the context is gone
    CHECK(d.connect(0, handle.data(), &comm) == kInvalid);
    fake().next_init = fabric::Result::system_error;
    CHECK(d.init() == 2);
    CHECK(d.context == nullptr);
  }
}

TEST_CASE("the wait extension") {
  CHECK(fabricWait_v1(250) == kOk);
  CHECK(fake().waited_us == 250);
  CHECK(fabricWait_v1(-1) == kInvalid);
  CHECK(fabricWake_v1() == kOk);
  CHECK(fake().wakes == 1);
}

TEST_CASE("a send comm that is cancelled is gone, and nothing else can be") {
  std::array<std::byte, 128> handle{};
  void* listener = nullptr;
  void* comm = nullptr;
  abi::OffloadHandle* offload = nullptr;
  REQUIRE(ncclNetPlugin_v9.listen(0, handle.data(), &listener) == kOk);
  REQUIRE(ncclNetPlugin_v9.connect(0, handle.data(), &comm, &offload) == kOk);
  CHECK(fabricCancelSend_v1(listener) == kInvalid);
  CHECK(fabricCancelSend_v1(nullptr) == kInvalid);
  CHECK(fake().cancels == 0);
  CHECK(fabricCancelSend_v1(comm) == kOk);
  CHECK(fake().cancels == 1);
  CHECK(fabricCancelSend_v1(comm) == kInvalid);
  CHECK(ncclNetPlugin_v9.close_send(comm) == kInvalid);
  CHECK(ncclNetPlugin_v9.close_listen(listener) == kOk);
}

TEST_CASE("handles: slots are reused, keys are not; threads may take and give at once") {
  auto table = std::make_unique<abi::HandleTable>();
  int object = 0;
  const std::uint32_t slot = table->reserve();
  void* first = table->publish(slot, abi::Kind::request, &object);
  CHECK(table->find(abi::Kind::request, first) == &object);
  CHECK(table->find(abi::Kind::send, first) == nullptr);
  CHECK(table->release(abi::Kind::request, first) == &object);
  CHECK(table->release(abi::Kind::request, first) == nullptr);
  const std::uint32_t again = table->reserve();
  CHECK(again == slot);
  void* second = table->publish(again, abi::Kind::request, &object);
  CHECK(second != first);
  CHECK(table->find(abi::Kind::request, first) == nullptr);
  table->release(abi::Kind::request, second);

  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      int own = 0;
      for (int i = 0; i < 20'000; ++i) {
        const std::uint32_t s = table->reserve();
        void* key = table->publish(s, abi::Kind::request, &own);
        if (table->find(abi::Kind::request, key) != &own) ++wrong;
        if (table->release(abi::Kind::request, key) != &own) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);

  std::vector<std::uint32_t> all;
  for (std::uint32_t s = table->reserve(); s != abi::HandleTable::kNone; s = table->reserve()) {
    all.push_back(s);
  }
  CHECK(all.size() == abi::HandleTable::kSlots);
  table->give_back(all.back());
  CHECK(table->reserve() == all.back());
}
