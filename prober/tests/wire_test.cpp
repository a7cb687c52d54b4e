#include "core/wire.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "util.h"

using namespace fabric::prober;
using namespace fabric::prober::test;

namespace {

Packet random_packet(std::mt19937_64& rng) {
  Packet p;
  p.flags = static_cast<std::uint8_t>(rng());
  p.host_id = static_cast<std::uint32_t>(rng());
  p.path = static_cast<std::uint32_t>(rng());
  p.incarnation = rng();
  p.challenge = rng();
  p.response = rng();
  p.peer_incarnation = rng();
  p.seq = rng();
  p.tx_ref_seq = rng();
  p.tx_ref_stamp = static_cast<std::int64_t>(rng());
  p.rx_ref_seq = rng();
  p.rx_ref_stamp = static_cast<std::int64_t>(rng());
  p.rx_max = rng();
  p.rx_bitmap = rng();
  p.rx_lost = static_cast<std::uint32_t>(rng());
  p.rx_missed = static_cast<std::uint32_t>(rng());
  p.rx_silent_us = static_cast<std::uint32_t>(rng());
  p.interval_us = static_cast<std::uint32_t>(rng());
  p.due_time = static_cast<std::int64_t>(rng());
  p.awake_us = static_cast<std::uint32_t>(rng());
  for (std::uint64_t& part : p.clock_message) part = rng();
  p.next_due = static_cast<std::uint32_t>(rng());
  p.peer_report = rng();
  return p;
}

}  // namespace

TEST_CASE("What is encoded is decoded, on both address families") {
  std::mt19937_64 rng(1);
  const Keyring keys = ring_of({key(1)});
  for (int i = 0; i < 200; ++i) {
    const Packet sent = random_packet(rng);
    const bool four = i % 2 == 0;
    const Address a = four ? v4(0, 1) : v6(0, 1);
    const Address b = four ? v4(0, 2) : v6(0, 2);
    Packet got;
    REQUIRE(decode(encode(sent, keys, a, b), keys, a, b, got) == WireError::kNone);
    CHECK(got == sent);
  }
}

TEST_CASE("The layout is little-endian and fixed") {
  Packet p;
  p.seq = 0x0102030405060708;
  p.interval_us = 0x0a0b0c0d;
  const WireBytes bytes = encode(p, ring_of({key(1)}), v4(0, 1), v4(0, 2));
  CHECK(bytes.size() == 192);
  CHECK(bytes[0] == 'F');
  CHECK(bytes[3] == 'B');
  CHECK(bytes[4] == 1);
  CHECK(bytes[48] == 0x08);
  CHECK(bytes[55] == 0x01);
  CHECK(bytes[116] == 0x0d);
}

// Of a prober from before byes and peer reports: byte 168 was reserved.
constexpr std::string_view kOlder =
    "465052420107c00005000000060000000700000000000000080000000000000009000000000000000a000000"
    "000000000b000000000000000c000000000000000d000000000000000e000000000000000f00000000000000"
    "1000000000000000110000000000000012000000130000001400000015000000160000000000000017000000"
    "00000000180000000000000019000000000000001a000000000000001b0000001c0000000000000000000000"
    "ab0d80cebe55800dd0568b30ed9d5789";

TEST_CASE("A packet of the version before is understood, and says nothing about others") {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < kOlder.size(); i += 2) {
    bytes.push_back(
        static_cast<std::uint8_t>(std::stoul(std::string(kOlder.substr(i, 2)), nullptr, 16)));
  }
  Key k;
  std::iota(k.begin(), k.end(), std::uint8_t{0});
  const Keyring keys = ring_of({k});
  Packet p;
  REQUIRE(decode(bytes, keys, v4(0, 1), v4(0, 2), p) == WireError::kNone);
  CHECK(p.flags == 7);
  CHECK(p.host_id == 5);
  CHECK(p.incarnation == 7);
  CHECK(p.rx_bitmap == 17);
  CHECK(p.next_due == 28);
  CHECK(p.peer_report == 0);
  // What we would send in its place is the same, bit for bit: it understands us, too.
  const WireBytes ours = encode(p, keys, v4(0, 1), v4(0, 2));
  CHECK(std::ranges::equal(ours, bytes));
}

TEST_CASE("Refused: short, long, other magic, other version, any flipped bit") {
  const Keyring keys = ring_of({key(1)});
  const Address a = v4(0, 1);
  const Address b = v4(0, 2);
  const WireBytes good = encode(Packet{}, keys, a, b);
  Packet out;
  for (std::size_t n = 0; n < 8; ++n) {
    CHECK(decode(std::span(good).first(n), keys, a, b, out) == WireError::kShort);
  }
  for (std::size_t n = 8; n < good.size(); ++n) {
    CHECK(decode(std::span(good).first(n), keys, a, b, out) == WireError::kShort);
  }
  std::vector<std::uint8_t> longer(good.begin(), good.end());
  longer.push_back(0);
  CHECK(decode(longer, keys, a, b, out) == WireError::kShort);
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      WireBytes bad = good;
      bad[i] = static_cast<std::uint8_t>(bad[i] ^ (1 << bit));
      const WireError got = decode(bad, keys, a, b, out);
      CHECK(got == (i < 4              ? WireError::kMagic
                    : i == 4           ? WireError::kVersion
                    : i == 6 || i == 7 ? WireError::kShort
                                       : WireError::kAuth));
    }
  }
}

TEST_CASE("A packet proves nothing on another path, nor sent back") {
  const Keyring keys = ring_of({key(1)});
  const WireBytes good = encode(Packet{}, keys, v4(0, 1), v4(0, 2));
  Packet out;
  CHECK(decode(good, keys, v4(0, 1), v4(0, 2), out) == WireError::kNone);
  CHECK(decode(good, keys, v4(1, 1), v4(1, 2), out) == WireError::kAuth);
  CHECK(decode(good, keys, v4(0, 2), v4(0, 1), out) == WireError::kAuth);
  CHECK(decode(good, keys, v4(0, 1, 9201), v4(0, 2), out) == WireError::kAuth);
}

TEST_CASE("Rotation: the second key is accepted, the first signs") {
  const Address a = v4(0, 1);
  const Address b = v4(0, 2);
  const Keyring older = ring_of({key(1)});
  const Keyring both = ring_of({key(2), key(1)});
  const Keyring newer = ring_of({key(2)});
  Packet out;
  CHECK(decode(encode(Packet{}, older, a, b), both, a, b, out) == WireError::kNone);
  CHECK(decode(encode(Packet{}, both, a, b), newer, a, b, out) == WireError::kNone);
  CHECK(decode(encode(Packet{}, both, a, b), older, a, b, out) == WireError::kAuth);
}

TEST_CASE("Key files") {
  std::string error;
  const std::string one(64, 'a');
  const std::string two = "00112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff";
  const auto keys = parse_keys("# new first\n" + two + "\n\n  " + one + " \r\n", error);
  REQUIRE(keys);
  REQUIRE(keys->size() == 2);
  CHECK((*keys)[0][1] == 0x11);
  CHECK((*keys)[1][0] == 0xaa);
  CHECK_FALSE(parse_keys("", error));
  CHECK(error == "no key in it");
  CHECK_FALSE(parse_keys(one + "\n" + one.substr(1), error));
  CHECK(error.find("line 2") == 0);
  CHECK_FALSE(parse_keys(std::string(64, 'g'), error));
}

TEST_CASE("A packet of our own is known behind any headers") {
  Packet p;
  p.incarnation = 77;
  p.path = 5;
  p.seq = 123;
  const WireBytes bytes = encode(p, ring_of({key(1)}), v4(0, 1), v4(0, 2));
  std::vector<std::uint8_t> frame(42 + bytes.size(), 0xee);
  std::copy(bytes.begin(), bytes.end(), frame.begin() + 42);
  const auto own = identify_own(frame);
  REQUIRE(own);
  CHECK(own->incarnation == 77);
  CHECK(own->path == 5);
  CHECK(own->seq == 123);
  CHECK_FALSE(identify_own(std::span(frame).first(100)));
}

TEST_CASE("Random and half-random bytes never decode") {
  std::mt19937_64 rng(20);
  const Keyring keys = ring_of({key(1), key(2)});
  const Address a = v6(0, 1);
  const Address b = v6(0, 2);
  const WireBytes good = encode(Packet{}, keys, a, b);
  Packet out;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> bytes(rng() % 400);
    for (auto& x : bytes) x = static_cast<std::uint8_t>(rng());
    const std::size_t keep = std::min<std::size_t>(bytes.size(), rng() % kWireBody);
    std::copy_n(good.begin(), keep, bytes.begin());
    CHECK(decode(bytes, keys, a, b, out) != WireError::kNone);
    identify_own(bytes);
  }
}
