// GPU memory, as far as it can be tested without any: the flush, and what the kernel offers.
#include "verbs/gdr.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "verbs/flush_pair.h"
#include "verbs/tests/kit.h"

using namespace fabric::verbs;
using fake::Call;

TEST_CASE("flush: a read through the NIC, one at a time") {
  fake::Network network;
  network.add_nic("a0", "10.0.0.1");
  const auto device = test::open("a0");
  RailPort port(device, 1, {}, {});
  test::Memory buffer(device, 64);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.bytes.data());
  Error error;
  const auto pair = FlushPair::make(port, error);
  INFO(error.text);
  REQUIRE(pair != nullptr);
  CHECK(pair->poll() == Flush::idle);
  for (int i = 0; i < 5; ++i) {
    CHECK(pair->start(address, buffer.region->remote_key()));
    CHECK(!pair->start(address, buffer.region->remote_key()));
    CHECK(pair->poll() == Flush::pending);
    network.run();
    CHECK(pair->poll() == Flush::done);
    CHECK(pair->poll() == Flush::idle);
  }
}

TEST_CASE("flush: one that fails is said once more and for ever") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  const auto device = test::open("a0");
  RailPort port(device, 1, {}, {});
  test::Memory buffer(device, 64);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.bytes.data());
  Error error;
  const auto pair = FlushPair::make(port, error);
  REQUIRE(pair != nullptr);
  CHECK(pair->start(address, buffer.region->remote_key() + 1));
  network.run();
  CHECK(pair->poll() == Flush::failed);
  CHECK(pair->failed());
  CHECK(pair->poll() == Flush::failed);
  CHECK(!pair->start(address, buffer.region->remote_key()));
  for (const Call call : {Call::reg_mr, Call::create_cq, Call::create_qp, Call::to_rts}) {
    nic.fail(call, ENOMEM);
    CHECK(FlushPair::make(port, error) == nullptr);
    CHECK(error.code == ENOMEM);
  }
}

TEST_CASE("gdr: what modules and the device say") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  const auto device = test::open("a0");
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("gdr." + std::to_string(::getpid()));
  std::filesystem::create_directories(root);
  CHECK(!gpu_support(*device, root).peer_memory);
  CHECK(gpu_support(*device, root).dmabuf);
  const auto module = root / "sys/kernel/mm/memory_peers/nv_mem_nc";
  std::filesystem::create_directories(module);
  std::ofstream(module / "version") << "1.3\n";
  nic.fail(Call::reg_dmabuf_mr, EOPNOTSUPP);
  const GpuSupport support = gpu_support(*device, root);
  std::filesystem::remove_all(root);
  CHECK(support.peer_memory);
  CHECK(support.module == "/sys/kernel/mm/memory_peers/nv_mem_nc/version 1.3");
  CHECK(!support.dmabuf);
}
