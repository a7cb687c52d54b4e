#include "shell/clock_words.h"

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

#include "fabric/clock_words.h"

using namespace fabric::prober;
namespace page = fabric::clock_words;

namespace {

constexpr Nanos kSecond = 1'000'000'000;
constexpr Nanos kNow = 100 * kSecond;

// A page as clocksync/page/latch.py writes it; renamed into place, or written in place.
struct Setup {
  std::string directory;
  page::Page bytes{page::kMagic, page::kVersion, sizeof(page::Page), 0, {}};

  Setup() {
    std::string name = "/tmp/prober-words-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    directory = name;
  }
  ~Setup() {
    ::unlink(path().c_str());
    ::rmdir(directory.c_str());
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
  std::string path() const { return directory + "/words"; }

  void say(Nanos when, const std::vector<Word>& words) {
    ++bytes.seq;
    page::Record& record = bytes.record[bytes.seq & 1];
    record = {};
    record.mono_ns = static_cast<std::uint64_t>(when);
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::copy(words[i].begin(), words[i].end(), record.word[i]);
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
  ClockWords words(s.path());
  CHECK_FALSE(words.look(kNow));  // there is none
  s.say(kNow, {{1, 2, 3, 4}, {5, 0, 0, 0}});
  s.store();
  CHECK_FALSE(words.look(kNow + 1));  // looked for just now
  CHECK(words.look(kNow + kSecond / 5));
  CHECK(words.words() == std::vector<Word>{{1, 2, 3, 4}, {5, 0, 0, 0}});
  CHECK_FALSE(words.look(kNow + kSecond / 4));
  s.say(kNow + kSecond / 3, {{9, 9, 9, 9}});
  s.store();
  CHECK(words.look(kNow + kSecond / 2));
  CHECK(words.words() == std::vector<Word>{{9, 9, 9, 9}});
}

TEST_CASE("a link's own word is that of its index") {
  Setup s;
  s.say(kNow, {{1, 2, 3, 4}});
  page::Record& record = s.bytes.record[s.bytes.seq & 1];
  record.link[7][0] = 5;
  record.check ^= 5;
  s.store();
  ClockWords words(s.path());
  CHECK(words.look(kNow));
  CHECK(words.words().size() == 1);
  REQUIRE(words.links().size() == page::kLinks);
  CHECK(words.links()[7] == Word{5, 0, 0, 0});
  CHECK(words.links()[6] == Word{});
  CHECK(words.look(kNow + 2 * kSecond));
  CHECK(words.links().empty());
}

TEST_CASE("what a service said that is silent since is not told on") {
  Setup s;
  s.say(kNow, {{1, 2, 3, 4}});
  s.store();
  ClockWords words(s.path());
  CHECK(words.look(kNow + kSecond / 2));
  CHECK(words.look(kNow + 2 * kSecond));
  CHECK(words.words().empty());
  CHECK_FALSE(words.look(kNow + 3 * kSecond));
  s.say(kNow + 4 * kSecond, {{7, 7, 7, 7}});
  s.store(page::kFileSize, true);  // another file took its place
  CHECK(words.look(kNow + 4 * kSecond + 1));
  CHECK(words.words().size() == 1);
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
  ClockWords words(s.path());
  CHECK_FALSE(words.look(kNow));
  CHECK(words.words().empty());
}

TEST_CASE("any bytes are words or none") {
  Setup s;
  s.say(kNow, {{1, 2, 3, 4}});
  std::mt19937_64 rng(1);
  ClockWords words(s.path());
  const page::Page sound = s.bytes;
  for (int i = 0; i < 2000; ++i) {
    s.bytes = sound;
    auto* raw = reinterpret_cast<std::uint8_t*>(&s.bytes);
    for (std::uint64_t n = rng() % 4; n != 0; --n) {
      raw[rng() % sizeof s.bytes] = static_cast<std::uint8_t>(rng());
    }
    s.store();
    words.look(kNow + i * kSecond);
    CHECK(words.words().size() <= page::kWords);
  }
}
