#include "shell/clock_outbox.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "fabric/clock_outbox.h"

using namespace fabric::prober;
namespace page = fabric::clock_outbox;

namespace {

constexpr Nanos kSecond = 1'000'000'000;
constexpr Nanos kNow = 100 * kSecond;

// A page as clocksync/page/latch.py writes it; renamed into place, or written in place.
struct Setup {
  std::string directory;
  page::Page bytes{page::kMagic, page::kVersion, sizeof(page::Page), 0, {}};

  Setup() {
    std::string name = "/tmp/prober-outbox-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    directory = name;
  }
  ~Setup() {
    ::unlink(path().c_str());
    ::rmdir(directory.c_str());
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
  std::string path() const { return directory + "/clock-outbox"; }

  void say(Nanos when, const std::vector<ClockMessage>& messages) {
    ++bytes.seq;
    page::Record& record = bytes.record[bytes.seq & 1];
    record = {};
    record.mono_ns = static_cast<std::uint64_t>(when);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      std::copy(messages[i].begin(), messages[i].end(), record.message[i]);
    }
    const auto parts = std::bit_cast<std::array<std::uint64_t, sizeof(page::Record) / 8>>(record);
    record.check = page::kSalt;
    for (std::size_t i = 1; i < parts.size(); ++i) record.check ^= parts[i];
  }
  void store(std::size_t size = page::kFileSize, bool anew = false) const {
    if (anew) ::unlink(path().c_str());
    std::vector<char> whole(size);
    std::memcpy(whole.data(), &bytes, std::min(size, sizeof bytes));
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    if (!file.is_open()) file.open(path(), std::ios::out | std::ios::binary);
    file.write(whole.data(), static_cast<std::streamsize>(whole.size()));
  }
};

}  // namespace

TEST_CASE("what the clock service says is read, once for each time it says something") {
  Setup s;
  ClockOutbox outbox(s.path());
  CHECK_FALSE(outbox.look(kNow));  // there is none
  s.say(kNow, {{1, 2, 3, 4}, {5, 0, 0, 0}});
  s.store();
  CHECK_FALSE(outbox.look(kNow + 1));  // looked for just now
  CHECK(outbox.look(kNow + kSecond / 5));
  CHECK(outbox.messages() == std::vector<ClockMessage>{{1, 2, 3, 4}, {5, 0, 0, 0}});
  CHECK_FALSE(outbox.look(kNow + kSecond / 4));
  s.say(kNow + kSecond / 3, {{9, 9, 9, 9}});
  s.store();
  CHECK(outbox.look(kNow + kSecond / 2));
  CHECK(outbox.messages() == std::vector<ClockMessage>{{9, 9, 9, 9}});
}

TEST_CASE("a link's own message is that of its index") {
  Setup s;
  s.say(kNow, {{1, 2, 3, 4}});
  page::Record& record = s.bytes.record[s.bytes.seq & 1];
  record.link[7][0] = 5;
  record.check ^= 5;
  s.store();
  ClockOutbox outbox(s.path());
  CHECK(outbox.look(kNow));
  CHECK(outbox.messages().size() == 1);
  REQUIRE(outbox.links().size() == page::kLinks);
  CHECK(outbox.links()[7] == ClockMessage{5, 0, 0, 0});
  CHECK(outbox.links()[6] == ClockMessage{});
  CHECK(outbox.look(kNow + 2 * kSecond));
  CHECK(outbox.links().empty());
}

TEST_CASE("what a service said that is silent since is not told on") {
  Setup s;
  s.say(kNow, {{1, 2, 3, 4}});
  s.store();
  ClockOutbox outbox(s.path());
  CHECK(outbox.look(kNow + kSecond / 2));
  CHECK(outbox.look(kNow + 2 * kSecond));
  CHECK(outbox.messages().empty());
  CHECK_FALSE(outbox.look(kNow + 3 * kSecond));
  s.say(kNow + 4 * kSecond, {{7, 7, 7, 7}});
  s.store(page::kFileSize, true);  // another file took its place
  CHECK(outbox.look(kNow + 4 * kSecond + 1));
  CHECK(outbox.messages().size() == 1);
}

TEST_CASE("what is no page, or damaged, is none") {
  Setup s;
  s.say(kNow, {{1, 2, 3, 4}});
  SUBCASE("too short") { s.store(sizeof(page::Page)); }
  SUBCASE("of another version") {
    s.bytes.version = page::kVersion + 1;
    s.store();
  }
  SUBCASE("another file") {
    s.bytes.magic = 1;
    s.store();
  }
  SUBCASE("with a wrong check") {
    ++s.bytes.record[1].check;
    s.store();
  }
  SUBCASE("from a time to come") {
    s.say(kNow + 10 * kSecond, {{1, 2, 3, 4}});
    s.store();
  }
  ClockOutbox outbox(s.path());
  CHECK_FALSE(outbox.look(kNow));
  CHECK(outbox.messages().empty());
}

TEST_CASE("any bytes are messages or none") {
  Setup s;
  s.say(kNow, {{1, 2, 3, 4}});
  std::mt19937_64 rng(1);
  ClockOutbox outbox(s.path());
  const page::Page sound = s.bytes;
  for (int i = 0; i < 2000; ++i) {
    s.bytes = sound;
    auto* raw = reinterpret_cast<std::uint8_t*>(&s.bytes);
    for (std::uint64_t n = rng() % 4; n != 0; --n) {
      raw[rng() % sizeof s.bytes] = static_cast<std::uint8_t>(rng());
    }
    s.store();
    outbox.look(kNow + i * kSecond);
    CHECK(outbox.messages().size() <= page::kMessages);
  }
}
