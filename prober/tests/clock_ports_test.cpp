#include "shell/clock_ports.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

using namespace fabric::prober;
namespace page = fabric::clock_ports;

namespace {

constexpr Nanos kSecond = 1'000'000'000;

// A page as clocksync/page/latch.py writes it.
struct Setup {
  std::string directory;
  page::Page bytes{page::kMagic, page::kVersion, sizeof(page::Page), 0, {}};

  Setup() {
    std::string name = "/tmp/prober-ports-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    directory = name;
  }
  ~Setup() {
    ::unlink(path().c_str());
    ::rmdir(directory.c_str());
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
  std::string path() const { return directory + "/ports"; }

  void ask(const std::vector<std::uint16_t>& ports) {
    ++bytes.seq;
    page::Record& record = bytes.record[bytes.seq & 1];
    record = {};
    for (std::size_t i = 0; i < ports.size(); ++i) {
      record.entry[i].own[15] = 1;
      record.entry[i].peer[15] = 2;
      record.entry[i].host_id = 7;
      record.entry[i].peer_port = 9200;
      record.entry[i].port = ports[i];
    }
    seal(record);
  }
  static void seal(page::Record& record) {
    const auto parts = std::bit_cast<std::array<std::uint64_t, sizeof(page::Record) / 8>>(record);
    record.check = page::kSalt;
    for (std::size_t i = 1; i < parts.size(); ++i) record.check ^= parts[i];
  }
  void store() const {
    std::vector<char> whole(page::kFileSize);
    std::memcpy(whole.data(), &bytes, sizeof bytes);
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    if (!file.is_open()) file.open(path(), std::ios::out | std::ios::binary);
    file.write(whole.data(), static_cast<std::streamsize>(whole.size()));
  }
};

}  // namespace

TEST_CASE("ports that were asked for stay, whatever becomes of who asked") {
  Setup s;
  ClockPorts ports(s.path());
  CHECK_FALSE(ports.look(kSecond));
  CHECK(ports.wishes().empty());
  s.ask({61'000, 61'001});
  s.store();
  CHECK(ports.look(2 * kSecond));
  REQUIRE(ports.wishes().size() == 2);
  CHECK(ports.wishes()[1].port == 61'001);
  CHECK_FALSE(ports.look(3 * kSecond));
  CHECK_FALSE(ports.look(1000 * kSecond));
  CHECK(ports.wishes().size() == 2);
  ::unlink(s.path().c_str());
  CHECK_FALSE(ports.look(1002 * kSecond));
  CHECK(ports.wishes().size() == 2);
  s.ask({});
  s.store();
  CHECK(ports.look(1004 * kSecond));
  CHECK(ports.wishes().empty());
}

TEST_CASE("any bytes are ports or none") {
  Setup s;
  std::mt19937_64 rng(1);
  ClockPorts ports(s.path());
  std::size_t taken = 0;
  for (int i = 0; i < 2000; ++i) {
    s.ask({61'000, 61'001, 61'002});
    page::Record& record = s.bytes.record[s.bytes.seq & 1];
    auto* raw = reinterpret_cast<std::uint8_t*>(&record);
    for (std::uint64_t n = rng() % 64; n != 0; --n) {
      raw[rng() % 160] = static_cast<std::uint8_t>(rng());
    }
    if (i % 2 == 0) Setup::seal(record);
    s.store();
    taken += ports.look(i * 2 * kSecond) ? 1U : 0U;
    CHECK(ports.wishes().size() <= page::kEntries);
    for (const PortWish& wish : ports.wishes()) CHECK(wish.port >= page::kLeastPort);
  }
  CHECK(taken >= 1000);
  CHECK(taken < 2000);
}
