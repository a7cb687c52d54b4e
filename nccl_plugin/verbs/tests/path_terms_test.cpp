// The codec of terms: round trips, and whatever bytes a peer may send.
#include "verbs/path_terms.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace fabric::verbs;

namespace {

PathTerms terms() {
  PathTerms said;
  said.ethernet = true;
  said.mtu = 3;
  said.gid[0] = 0xfd;
  said.gid[15] = 2;
  said.data = {0xabcdef, 0x123456};
  said.witness = {17, 0xffffff};
  said.ring = {0x7f00'0000'1000, 0xdeadbeef, 512};
  said.receive_entries = 128;
  said.pkey = 0xffff;
  said.reads = 1;
  return said;
}

}  // namespace

TEST_CASE("path terms: what is said is understood") {
  CHECK(decode_path_terms(encode(terms())) == terms());
  PathTerms infiniband = terms();
  infiniband.ethernet = false;
  infiniband.gid = {};
  infiniband.lid = 12;
  CHECK(decode_path_terms(encode(infiniband)) == infiniband);
}

TEST_CASE("path terms: a longer text is of a newer minor; a shorter one is none") {
  const auto bytes = encode(terms());
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.resize(200);
  CHECK(decode_path_terms(longer) == terms());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK(!decode_path_terms(std::span(bytes).first(length)));
  }
}

TEST_CASE("path terms: values that no peer of ours says are refused") {
  const auto refused = [](auto change) {
    PathTerms said = terms();
    change(said);
    return !decode_path_terms(encode(said));
  };
  CHECK(refused([](PathTerms& t) { t.mtu = 0; }));
  CHECK(refused([](PathTerms& t) { t.mtu = 6; }));
  CHECK(refused([](PathTerms& t) { t.gid = {}; }));
  CHECK(refused([](PathTerms& t) { t.ethernet = false; }));  // and no LID
  CHECK(refused([](PathTerms& t) { t.data.number = 0; }));
  CHECK(refused([](PathTerms& t) { t.data.number = 1U << 24U; }));
  CHECK(refused([](PathTerms& t) { t.witness.psn = 1U << 24U; }));
  CHECK(refused([](PathTerms& t) { t.witness.number = t.data.number; }));
  CHECK(refused([](PathTerms& t) { t.ring.address = 0; }));
  CHECK(refused([](PathTerms& t) { t.ring.entries = 0; }));
  CHECK(refused([](PathTerms& t) { t.ring.entries = kMostQueueEntries + 1; }));
  CHECK(refused([](PathTerms& t) { t.receive_entries = 0; }));
  CHECK(refused([](PathTerms& t) { t.receive_entries = kMostQueueEntries + 1; }));
  CHECK(refused([](PathTerms& t) { t.reads = 16; }));
}

TEST_CASE("path terms: any bytes are refused, or mean what is encoded again") {
  std::mt19937 random(20261127);
  const auto good = encode(terms());
  std::size_t taken = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::vector<std::byte> bytes(good.begin(), good.end());
    for (unsigned changes = random() % 4; changes != 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    bytes.resize(random() % 8 == 0 ? random() % 100 : bytes.size());
    if (const auto said = decode_path_terms(bytes)) {
      ++taken;
      CHECK(decode_path_terms(encode(*said)) == said);
    }
  }
  CHECK(taken > 1000);
}

TEST_CASE("path terms: ends that cannot connect say why") {
  const PathTerms ours = terms();
  PathTerms theirs = terms();
  CHECK(mismatch(ours, theirs).empty());
  theirs.pkey = 0x7fff;  // a limited member of the same partition
  CHECK(mismatch(ours, theirs).empty());
  theirs.pkey = 0x8001;
  CHECK(mismatch(ours, theirs) == "the P_Keys differ");
  theirs = terms();
  theirs.ethernet = false;
  CHECK(mismatch(ours, theirs) == "this rail is RoCE and the peer's is InfiniBand");
  theirs = terms();
  theirs.gid = {};
  theirs.gid[10] = theirs.gid[11] = 0xff;
  theirs.gid[12] = 10;
  CHECK(mismatch(ours, theirs).find("::ffff:10.0.0.0") != std::string::npos);
}
