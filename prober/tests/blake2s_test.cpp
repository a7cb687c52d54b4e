// Vectors: RFC 7693 appendix B (unkeyed "abc") and appendix E (the self-test over keyed and unkeyed
// digests of several lengths).
#include "core/blake2s.h"

#include <doctest/doctest.h>

#include "core/blake2s_lanes.h"

#include <algorithm>
#include <string_view>
#include <vector>

using namespace fabric::prober;

namespace {

std::span<const std::uint8_t> bytes(std::string_view s) {
  return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()};
}

// Deterministic sequences of RFC 7693 appendix E.
std::vector<std::uint8_t> selftest_sequence(std::size_t length, std::uint32_t seed) {
  std::vector<std::uint8_t> out(length);
  std::uint32_t a = 0xDEAD4BADU * seed;
  std::uint32_t b = 1;
  for (auto& byte : out) {
    const std::uint32_t t = a + b;
    a = b;
    b = t;
    byte = static_cast<std::uint8_t>(t >> 24);
  }
  return out;
}

}  // namespace

TEST_CASE("BLAKE2s-256 of abc is RFC 7693's") {
  Blake2s hash({}, 32);
  hash.update(bytes("abc"));
  const std::array<std::uint8_t, 32> expected = {0x50, 0x8C, 0x5E, 0x8C, 0x32, 0x7C, 0x14, 0xE2,
                                                 0xE1, 0xA7, 0x2B, 0xA3, 0x4E, 0xEB, 0x45, 0x2F,
                                                 0x37, 0x45, 0x8B, 0x20, 0x9E, 0xD6, 0x3A, 0x29,
                                                 0x4D, 0x99, 0x9B, 0x4C, 0x86, 0x67, 0x59, 0x82};
  CHECK(hash.finish() == expected);
}

TEST_CASE("The grand hash of RFC 7693 appendix E") {
  const std::array<std::uint8_t, 32> expected = {0x6A, 0x41, 0x1F, 0x08, 0xCE, 0x25, 0xAD, 0xCD,
                                                 0xFB, 0x02, 0xAB, 0xA6, 0x41, 0x45, 0x1C, 0xEC,
                                                 0x53, 0xC5, 0x98, 0xB2, 0x4F, 0x4F, 0xC7, 0x87,
                                                 0xFB, 0xDC, 0x88, 0x79, 0x7F, 0x4C, 0x1D, 0xFE};
  Blake2s grand({}, 32);
  for (const std::size_t digest : {16U, 20U, 28U, 32U}) {
    for (const std::size_t length : {0U, 3U, 64U, 65U, 255U, 1024U}) {
      const auto input = selftest_sequence(length, static_cast<std::uint32_t>(length));
      Blake2s plain({}, digest);
      plain.update(input);
      const auto short_one = plain.finish();
      grand.update(std::span(short_one).first(digest));
      const auto key = selftest_sequence(digest, static_cast<std::uint32_t>(digest));
      Blake2s keyed(key, digest);
      keyed.update(input);
      const auto keyed_one = keyed.finish();
      grand.update(std::span(keyed_one).first(digest));
    }
  }
  CHECK(grand.finish() == expected);
}

TEST_CASE("However the input is cut, the tag is the same") {
  Key key{};
  key.fill(7);
  const auto input = selftest_sequence(300, 5);
  const TagKey tag(key);
  const Tag whole = tag.tag({}, input);
  for (std::size_t cut = 0; cut <= input.size(); cut += 13) {
    CHECK(tag.tag(std::span(input).first(cut), std::span(input).subspan(cut)) == whole);
  }
}

TEST_CASE("Constant-time comparison compares") {
  const std::array<std::uint8_t, 3> a = {1, 2, 3};
  const std::array<std::uint8_t, 3> b = {1, 2, 4};
  CHECK(equal_constant_time(a, a));
  CHECK_FALSE(equal_constant_time(a, b));
  CHECK_FALSE(equal_constant_time(a, std::span(b).first(2)));
}

TEST_CASE("Tags of many texts are those of each by itself, by every instruction set") {
  Key key{};
  std::copy_n(selftest_sequence(key.size(), 7).begin(), key.size(), key.begin());
  const TagKey signer(key);
  for (std::size_t count = 0; count <= 20; ++count) {
    std::vector<TagText> texts(count);
    std::vector<const TagText*> at;
    std::vector<Tag> tags(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto bytes = selftest_sequence(TagText::kSize, static_cast<std::uint32_t>(i + 1));
      std::copy(bytes.begin(), bytes.end(), texts[i].bytes.begin());
      at.push_back(&texts[i]);
    }
    signer.tags(at, tags);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(tags[i] == signer.tag(texts[i].head(), texts[i].body()));
    }
  }
}

TEST_CASE("Lanes end messages of every length as one hash does") {
  using namespace fabric::prober::blake2s;
  const std::array<std::uint32_t, 8> start = {0x6a09e667 ^ 0x01010020,
                                              0xbb67ae85,
                                              0x3c6ef372,
                                              0xa54ff53a,
                                              0x510e527f,
                                              0x9b05688c,
                                              0x1f83d9ab,
                                              0x5be0cd19};
  for (const std::size_t length : {1U, 63U, 64U, 65U, 128U, 200U, 256U}) {
    std::vector<std::array<std::uint8_t, 256>> texts(kLanes);
    const std::uint8_t* messages[kLanes];
    for (std::size_t l = 0; l < kLanes; ++l) {
      const auto bytes = selftest_sequence(length, static_cast<std::uint32_t>(l + 3));
      texts[l].fill(0);
      std::copy(bytes.begin(), bytes.end(), texts[l].begin());
      messages[l] = texts[l].data();
    }
    std::uint32_t plain[8][kLanes];
    std::uint32_t chosen[8][kLanes];
    hash_lanes_plain(start.data(), 0, messages, length, plain);
    hash_lanes(start.data(), 0, messages, length, chosen);
    for (std::size_t l = 0; l < kLanes; ++l) {
      Blake2s one({}, 32);
      one.update({messages[l], length});
      const auto digest = one.finish();
      for (std::size_t byte = 0; byte < digest.size(); ++byte) {
        CHECK(static_cast<std::uint8_t>(plain[byte / 4][l] >> (8 * (byte % 4))) == digest[byte]);
        CHECK(plain[byte / 4][l] == chosen[byte / 4][l]);
      }
    }
  }
}
