// Devices and registered memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "host/fd.h"
#include "verbs/copy_pool.h"
#include "verbs/rail_devices.h"
#include "verbs/region_cache.h"
#include "verbs/tests/kit.h"

using namespace fabric::verbs;
using fake::Call;

TEST_CASE("devices: one that does not open is named, and the others are used") {
  fake::Network network;
  network.add_nic("a0", "10.0.0.1").fail(Call::alloc_pd, ENOMEM);
  network.add_nic("a1", "10.0.1.1");
  std::vector<Error> errors;
  const auto devices = open_devices(
      fake::Network::functions(), [](const std::string&) { return true; }, errors);
  REQUIRE(devices.size() == 1);
  CHECK(devices[0]->name() == "a1");
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].text == "ibv_alloc_pd on a0: Cannot allocate memory");
  CHECK(network.find("a0")->objects == 0);
}

TEST_CASE("devices: none, and not allowed") {
  fake::Network network;
  std::vector<Error> errors;
  const auto all = [](const std::string&) { return true; };
  CHECK(open_devices(fake::Network::functions(), all, errors).empty());
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].text == "this host has no RDMA devices");
  network.add_nic("a0", "10.0.0.1").fail(Call::get_device_list, EPERM);
  CHECK(open_devices(fake::Network::functions(), all, errors).empty());
  REQUIRE(errors.size() == 2);
  CHECK(errors[1].code == EPERM);
}

TEST_CASE("devices: EIO on destroy says that the device is gone; any other refusal leaks") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  {
    const auto device = test::open("a0");
    test::Memory gone(device, 64);
    nic.fail(Call::dereg_mr, EIO);
    gone.region.reset();
    CHECK(device->gone());
    CHECK(device->refused() == 0);
  }
  CHECK(nic.objects == 0);
  {
    const auto device = test::open("a0");
    test::Memory busy(device, 64);
    nic.fail(Call::dereg_mr, EBUSY);
    busy.region.reset();
    CHECK(!device->gone());
    CHECK(device->refused() == 1);
    // What the device still has is freed here, or else the test leaks.
    network.find("a0")->registered.clear();
  }
  CHECK(nic.objects == 2);  // the region and the context
}

TEST_CASE("region: a refusal names the device, the size and the limit on locked memory") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  nic.fail(Call::reg_mr, ENOMEM);
  std::vector<std::byte> bytes(4096);
  Error error;
  CHECK(Region::make(test::open("a0"), bytes.data(), bytes.size(), true, error) == nullptr);
  CHECK(error.code == ENOMEM);
  CHECK(error.text.starts_with("ibv_reg_mr_iova2 on a0: Cannot allocate memory (4096 bytes)"));
  CHECK(takes_dmabuf(*test::open("a0")));
  nic.fail(Call::reg_dmabuf_mr, EOPNOTSUPP);
  CHECK(!takes_dmabuf(*test::open("a0")));
}

TEST_CASE("cache: one registration for each page range and device, counted") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  network.add_nic("a1", "10.0.1.1");
  const auto first = test::open("a0");
  RegionCache cache({first, test::open("a1"), nullptr, first}, true);
  std::vector<std::byte> bytes(8 * 4096);
  Error error;
  auto whole = cache.acquire(bytes.data(), bytes.size(), error);
  REQUIRE(whole != nullptr);
  CHECK(whole->rails() == 0b1011);
  CHECK(whole->on(0) == whole->on(3));  // the same device
  CHECK(whole->on(0) != whole->on(1));
  CHECK(nic.regions() == 1);
  auto part = cache.acquire(bytes.data() + 100, 5000, error);
  CHECK(part == whole);  // within it
  CHECK(cache.size() == 1);
  whole.reset();
  CHECK(cache.size() == 1);
  part.reset();
  CHECK(cache.size() == 0);
  CHECK(nic.regions() == 0);
}

TEST_CASE("cache: what nobody registered is never reached by what was registered there before") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  RegionCache cache({test::open("a0")}, false);
  std::vector<std::byte> bytes(4 * 4096);
  Error error;
  const auto before = cache.acquire(bytes.data(), bytes.size(), error);
  REQUIRE(before != nullptr);
  CHECK(cache.renew(before, bytes.data(), bytes.size(), 0) == before);
  auto apart = cache.make_apart(bytes.data(), 4096, error);
  REQUIRE(apart != nullptr);
  CHECK(apart != before);
  CHECK(apart->on(0)->remote_key() != before->on(0)->remote_key());
  CHECK(nic.regions() == 2);
  CHECK(cache.acquire(bytes.data(), 4096, error) == before);  // and it is not shared
  apart.reset();
  CHECK(nic.regions() == 1);
}

TEST_CASE("cache: a dmabuf is registered by whole pages from its offset, and shared with nobody") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  RegionCache cache({test::open("a0")}, false);
  constexpr std::size_t kPage = 4096;
  const fabric::host::Fd memory(::memfd_create("device", MFD_CLOEXEC));
  REQUIRE(::ftruncate(memory.get(), 4 * kPage) == 0);
  const DmaBuf dmabuf{memory.get(), kPage};
  auto* const address = reinterpret_cast<std::byte*>(std::uintptr_t{0x7000'0000});
  Error error;
  const auto first = cache.acquire(address + 100, kPage, error, &dmabuf);
  REQUIRE(first != nullptr);
  const fake::Registered& registered = nic.registered.at(first->on(0)->remote_key());
  CHECK(registered.address == reinterpret_cast<std::uintptr_t>(address));
  CHECK(registered.length == 2 * kPage);
  nic.reach(first->on(0)->remote_key(), registered.address)[100] = std::byte{42};
  std::byte stored{};
  REQUIRE(::pread(memory.get(), &stored, 1, kPage + 100) == 1);
  CHECK(stored == std::byte{42});
  const auto second = cache.acquire(address + 100, kPage, error, &dmabuf);
  REQUIRE(second != nullptr);
  CHECK(second != first);
  CHECK(cache.renew(first, address + 100, kPage, 0, &dmabuf) == first);
}

TEST_CASE("cache: a NIC that refuses is left out; all refuse: an error") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  fake::Nic& other = network.add_nic("a1", "10.0.1.1");
  RegionCache cache({test::open("a0"), test::open("a1")}, false);
  std::vector<std::byte> bytes(4096);
  nic.fail(Call::reg_mr, ENOMEM);
  Error error;
  const auto buffer = cache.acquire(bytes.data(), bytes.size(), error);
  REQUIRE(buffer != nullptr);
  CHECK(buffer->rails() == 0b10);
  REQUIRE(buffer->errors().size() == 1);
  std::vector<std::byte> more(1 << 20);
  nic.fail(Call::reg_mr, ENOMEM);
  other.fail(Call::reg_mr, EFAULT);
  CHECK(cache.acquire(more.data(), more.size(), error) == nullptr);
  CHECK(error.code == ENOMEM);
  CHECK(cache.size() == 1);
}

TEST_CASE("cache: a device that came refuses: it is not asked again with each message") {
  fake::Network network;
  network.add_nic("a0", "10.0.0.1");
  RegionCache cache({test::open("a0")}, false);
  std::vector<std::byte> bytes(4096);
  Error error;
  const auto before = cache.acquire(bytes.data(), bytes.size(), error);
  REQUIRE(before != nullptr);
  network.find("a0")->unplug();
  constexpr unsigned kMany = 1000;
  fake::Nic& again = network.add_nic("a0", "10.0.0.1");
  cache.set_devices({test::open("a0")});
  again.fail(Call::reg_mr, ENOMEM, kMany);
  std::int64_t now = 1'000'000'000'000;
  std::shared_ptr<const RegisteredBuffer> held;
  const auto renewed = [&] {
    held = cache.renew(before, bytes.data(), bytes.size(), now);
    return held != before;
  };
  for (unsigned i = 0; i < kMany; ++i) {
    CHECK_FALSE(renewed());
  }
  CHECK(again.planned(Call::reg_mr) == ENOMEM);  // asked once so far
  now += RegionCache::kRenewLeastNs;
  CHECK_FALSE(renewed());
  now += 2 * RegionCache::kRenewLeastNs - 1;
  again.fail(Call::reg_mr, ENOMEM, 0);
  CHECK_FALSE(renewed());  // it waits twice as long
  now += 1;
  CHECK(renewed());
  CHECK(again.regions() == 1);
}

TEST_CASE("copies: a registration ends with the last copy that is known by it, in a busy job") {
  fake::Network network;
  network.add_nic("a0", "10.0.0.1");
  fake::Nic& other = network.add_nic("a1", "10.0.1.1");
  const auto second = test::open("a1");
  RegionCache cache({test::open("a0"), second}, false);
  Error error;
  const auto pool = RegisteredCopyPool::make(
      cache, [] { return std::int64_t{1}; }, error);
  REQUIRE(pool != nullptr);
  std::byte* const first = pool->take(100);
  const fabric::core::Region known = pool->region(first);
  std::byte* busy = pool->take(100);  // from here on one copy at least is always under way
  network.find("a0")->unplug();
  CHECK(pool->region(busy) == known);  // nothing better is there yet
  network.add_nic("a0", "10.0.0.1");
  cache.set_devices({test::open("a0"), second});
  for (int i = 0; i < 10; ++i) {
    std::byte* const next = pool->take(i % 2 == 0 ? 100 : 5000);
    CHECK(pool->region(next) != known);
    pool->release(busy);
    busy = next;
  }
  CHECK(other.regions() == 2);  // the first copy is still under way
  pool->release(first);
  CHECK(other.regions() == 1);
  pool->release(busy);
}

TEST_CASE("devices: those that rails have are not opened again for a rail that has none") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  RailDevices devices(fake::Network::functions(), GidRules{}, PathSettings{});
  std::vector<RailName> rails(2);
  rails[0].address = nic.ports[0].gids[1].gid;
  rails[1].address = rails[0].address;
  rails[1].address[15] = 9;
  std::string notes;
  devices.find(rails, notes);
  REQUIRE(devices.port(0) != nullptr);
  CHECK(devices.port(1) == nullptr);
  nic.fail(Call::open_device, EBUSY, 100);
  notes.clear();
  devices.find(rails, notes);
  CHECK(notes.empty());
  network.add_nic("a1", "10.0.0.9");
  devices.find(rails, notes);
  REQUIRE(devices.port(1) != nullptr);
  CHECK(devices.port(1)->device()->name() == "a1");
}

TEST_CASE("devices: a rail without one is looked at seldomer the longer that lasts") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  CHECK(RailDevices::find_pause(0) == kSecond);
  CHECK(RailDevices::find_pause(80 * kSecond) == 10 * kSecond);
  CHECK(RailDevices::find_pause(24 * 3600 * kSecond) == 60 * kSecond);
}
