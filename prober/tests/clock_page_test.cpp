#include "shell/clock_page.h"

#include <doctest/doctest.h>
#include <fabric/clock.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "shell/clock.h"

using namespace fabric::prober;

namespace {

constexpr Nanos kSecond = 1'000'000'000;

// A page as clocksync/page/clock_page.py writes it.
struct Setup {
  std::string directory;
  fabric_clock_page page{
      FABRIC_CLOCK_MAGIC, FABRIC_CLOCK_VERSION, sizeof(fabric_clock_page), 0, {}};

  Setup() {
    std::string name = "/tmp/prober-clock-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    directory = name;
  }
  ~Setup() {
    ::unlink(path().c_str());
    ::rmdir(directory.c_str());
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
  std::string path() const { return directory + "/clock"; }

  fabric_clock_line line() const {
    fabric_clock_line out{};
    out.raw_ns = read_clock(CLOCK_MONOTONIC_RAW);
    out.fabric_ns = 1'700'000'000 * kSecond;
    out.bound_ns = 700;
    out.fresh_ns = kSecond;
    out.end_ns = 60 * kSecond;
    out.state = FABRIC_CLOCK_LOCKED;
    out.epoch = 5;
    return out;
  }
  void store(fabric_clock_line line, std::size_t size = FABRIC_CLOCK_SIZE) {
    using Parts = std::array<std::uint64_t, sizeof(fabric_clock_line) / 8>;
    const auto parts = std::bit_cast<Parts>(line);
    line.check = FABRIC_CLOCK_SALT;
    for (std::size_t i = 1; i < parts.size(); ++i) line.check ^= parts[i];
    page.line[++page.seq & 1] = line;
    std::vector<char> whole(size);
    std::memcpy(whole.data(), &page, std::min(size, sizeof page));
    const std::string draft = directory + "/draft";
    std::ofstream(draft, std::ios::binary).write(whole.data(), static_cast<std::streamsize>(size));
    REQUIRE(::rename(draft.c_str(), path().c_str()) == 0);
  }
};

}  // namespace

TEST_CASE("Fabric time beside CLOCK_MONOTONIC, from when there is a page to when there is none") {
  Setup at;
  ClockPage reader(at.directory);
  Nanos now = read_clock(CLOCK_MONOTONIC);
  CHECK_FALSE(reader.look(now));
  const auto line = at.line();
  const Nanos before = read_clock(CLOCK_MONOTONIC);
  const Nanos raw_less_mono = read_clock(CLOCK_MONOTONIC_RAW) - before;
  const Nanos unsure = read_clock(CLOCK_MONOTONIC) - before;
  at.store(line);
  CHECK_FALSE(reader.look(now + kSecond / 20));  // it looks for a file ten times a second
  const Nanos looked = read_clock(CLOCK_MONOTONIC);
  const auto got = reader.look(now + kSecond / 5);
  const Nanos look_took = read_clock(CLOCK_MONOTONIC) - looked;
  REQUIRE(got);
  const Nanos ahead = line.fabric_ns - line.raw_ns + raw_less_mono;
  // However slow the machine. A thousandth: what the kernel may slew CLOCK_MONOTONIC by meanwhile.
  const auto slewed = [&] { return (read_clock(CLOCK_MONOTONIC) - before) / 1000; };
  CHECK(std::abs(got->ahead - ahead) <= got->bound + unsure + slewed());
  CHECK(got->bound >= 700);
  CHECK(got->bound <= 700 + look_took);
  CHECK(got->epoch == 5);
  // Another file has its name, with another time.
  auto other = line;
  other.fabric_ns += 9 * kSecond;
  other.epoch = 6;
  at.store(other);
  CHECK(reader.look(now + kSecond)->epoch == 5);
  const auto next = reader.look(now + 2 * kSecond);
  REQUIRE(next);
  CHECK(next->epoch == 6);
  CHECK(std::abs(next->ahead - ahead - 9 * kSecond) <= next->bound + unsure + slewed());
  ::unlink(at.path().c_str());
  CHECK(reader.look(now + 2 * kSecond + 1));
  CHECK_FALSE(reader.look(now + 4 * kSecond));
}

TEST_CASE("A page that says no time, or nonsense, is none") {
  const Nanos now = read_clock(CLOCK_MONOTONIC);
  Setup at;
  const auto refused = [&](const fabric_clock_line& line, std::size_t size = FABRIC_CLOCK_SIZE) {
    at.store(line, size);
    ClockPage reader(at.directory);
    return !reader.look(now);
  };
  const auto good = at.line();
  CHECK_FALSE(refused(good));
  CHECK(refused(good, 100));
  auto bad = good;
  bad.state = FABRIC_CLOCK_UNSYNCED;
  CHECK(refused(bad));
  bad = good;
  bad.state = 9;
  CHECK(refused(bad));
  bad = good;
  bad.raw_ns -= 100 * kSecond;  // the service has been dead for longer than its line is good for
  CHECK(refused(bad));
  bad = good;
  bad.fabric_ns = std::numeric_limits<Nanos>::max() / 2 + 10 * kSecond;
  CHECK(refused(bad));
  bad = good;
  bad.fabric_ns = -kSecond;
  CHECK(refused(bad));
  bad = good;
  bad.bound_ns = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused(bad));
  // What is too far off is for whoever uses it to refuse; it is not cut to what would do.
  bad = good;
  bad.bound_ns = 1e15;
  at.store(bad);
  const auto wide = ClockPage(at.directory).look(now);
  REQUIRE(wide);
  CHECK(wide->bound > FabricTime::kMostBound);
  at.page.version = FABRIC_CLOCK_VERSION + 1;
  CHECK(refused(good));
}
