// The opening of a connection without sockets: who proves what, byte by byte, by version.
#include "host/handshake.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "host/descriptor_budget.h"

using namespace fabric;
using namespace fabric::host;

namespace {

using AcceptorNext = AcceptorHandshake::Next;
using DialerNext = DialerHandshake::Next;

constexpr Secret kSecret{std::byte{1}, std::byte{2}};
constexpr Secret kOther{std::byte{9}};

Hello some_hello(std::uint64_t nonce = 7) {
  Hello hello;
  hello.rails = 2;
  hello.listen_id = 3;
  hello.initiator = 4242;
  hello.nonce = nonce;
  return hello;
}

AcceptorHandshake::SecretOf knows(const Secret& secret) {
  return [secret](const HelloClaim&) { return std::optional(secret); };
}

// Each draw is another.
AcceptorHandshake::Draw counting() {
  return [number = std::uint64_t{0}]() mutable { return ChallengeNonce{++number, 5}; };
}

// Both ends are fed `piece` bytes at a time at most, and behave as they do over a socket.
template <typename Handshake, typename Feed>
auto feed(Handshake& end, std::span<const std::byte> bytes, std::size_t piece, Feed received) {
  auto next = decltype(received(std::size_t{0}))::more;
  while (!bytes.empty()) {
    const std::span<std::byte> room = end.room();
    const std::size_t count = std::min({piece, room.size(), bytes.size()});
    std::copy_n(bytes.begin(), count, room.begin());
    bytes = bytes.subspan(count);
    next = received(count);
  }
  return next;
}

AcceptorNext to_acceptor(AcceptorHandshake& end, std::span<const std::byte> bytes,
                         std::size_t piece = 1000, std::uint8_t highest = kWireVersion,
                         const AcceptorHandshake::Draw& draw = counting()) {
  return feed(end, bytes, piece, [&](std::size_t count) {
    return end.received(count, highest, knows(kSecret), draw);
  });
}

DialerNext to_dialer(DialerHandshake& end, std::span<const std::byte> bytes,
                     std::size_t piece = 1000) {
  return feed(end, bytes, piece, [&](std::size_t count) { return end.received(count); });
}

WelcomeBytes welcome_to(const Hello& hello) {
  Welcome welcome;
  welcome.rails = 1;
  welcome.nonce = hello.nonce;
  return encode(welcome, kSecret);
}

}  // namespace

TEST_CASE("a dialler proves its hello, in pieces of any size") {
  for (const std::size_t piece : {1U, 7U, 1000U}) {
    AcceptorHandshake acceptor;
    DialerHandshake dialer(some_hello(), kSecret);
    CHECK_FALSE(acceptor.begun());
    REQUIRE(to_acceptor(acceptor, dialer.hello(), piece) == AcceptorNext::challenge);
    CHECK(acceptor.signed_hello());
    REQUIRE(to_dialer(dialer, acceptor.challenge(), piece) == DialerNext::prove);
    REQUIRE(to_acceptor(acceptor, dialer.proof(), piece) == AcceptorNext::done);
    CHECK(acceptor.hello().initiator == 4242);
    CHECK(acceptor.secret() == kSecret);
    REQUIRE(to_dialer(dialer, welcome_to(some_hello()), piece) == DialerNext::done);
    CHECK(dialer.welcome().nonce == 7);
  }
}

TEST_CASE("what was recorded of one connection proves nothing on another") {
  const auto draw = counting();
  AcceptorHandshake first;
  DialerHandshake dialer(some_hello(), kSecret);
  REQUIRE(to_acceptor(first, dialer.hello(), 1000, kWireVersion, draw) == AcceptorNext::challenge);
  REQUIRE(to_dialer(dialer, first.challenge()) == DialerNext::prove);
  // The same bytes again.
  AcceptorHandshake again;
  REQUIRE(to_acceptor(again, dialer.hello(), 1000, kWireVersion, draw) == AcceptorNext::challenge);
  CHECK(again.challenge() != first.challenge());
  CHECK(to_acceptor(again, dialer.proof()) == AcceptorNext::refuse);
  // The answer to this very nonce, for another hello.
  AcceptorHandshake other;
  REQUIRE(to_acceptor(other, encode(some_hello(8), kSecret), 1000, kWireVersion, [] {
            return ChallengeNonce{1, 5};
          }) == AcceptorNext::challenge);
  CHECK(to_acceptor(other, dialer.proof()) == AcceptorNext::refuse);
  // Frames where the proof should be.
  AcceptorHandshake frames;
  REQUIRE(to_acceptor(frames, dialer.hello()) == AcceptorNext::challenge);
  Bytes close;
  append_frame(close, FrameType::close, 777);
  append_frame(close, FrameType::close, 777);
  CHECK(to_acceptor(frames, close) == AcceptorNext::refuse);
}

TEST_CASE("every bit of a proof counts, and so does the secret") {
  AcceptorHandshake acceptor;
  DialerHandshake dialer(some_hello(), kSecret);
  REQUIRE(to_acceptor(acceptor, dialer.hello()) == AcceptorNext::challenge);
  REQUIRE(to_dialer(dialer, acceptor.challenge()) == DialerNext::prove);
  for (std::size_t bit = 0; bit < 8 * kProofSize; ++bit) {
    ProofBytes bent = dialer.proof();
    bent[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    AcceptorHandshake tried = acceptor;
    CHECK(to_acceptor(tried, bent) == AcceptorNext::refuse);
  }
  CHECK(to_acceptor(acceptor, dialer.proof()) == AcceptorNext::done);
  const auto challenge = decode_challenge(acceptor.challenge(), kSecret);
  REQUIRE(challenge);
  CHECK(proof_of(dialer.hello(), challenge->nonce, kSecret) == dialer.proof());
  CHECK(proof_of(dialer.hello(), challenge->nonce, kOther) != dialer.proof());
}

TEST_CASE("a hello of a version without challenges is done at once; the caller decides") {
  for (std::uint8_t offered = kWireVersionMin; offered <= kWireVersion + 1; ++offered) {
    for (std::uint8_t highest = kWireVersionMin; highest <= kWireVersion; ++highest) {
      CAPTURE(offered);
      CAPTURE(highest);
      Hello hello = some_hello();
      hello.version_max = offered;
      AcceptorHandshake acceptor;
      const bool both = std::min(offered, highest) >= kWireVersionChallenge;
      CHECK(to_acceptor(acceptor, encode(hello, kSecret), 1000, highest) ==
            (both ? AcceptorNext::challenge : AcceptorNext::done));
    }
  }
  AcceptorHandshake unsigned_one;
  CHECK(to_acceptor(unsigned_one, encode(some_hello(), kOther)) == AcceptorNext::refuse);
  CHECK_FALSE(unsigned_one.signed_hello());
}

TEST_CASE("what does not begin as a hello is refused at its fourth byte") {
  AcceptorHandshake acceptor;
  const std::array<std::byte, 4> http{std::byte{'G'}, std::byte{'E'}, std::byte{'T'},
                                      std::byte{' '}};
  CHECK(to_acceptor(acceptor, std::span(http).first(3), 1) == AcceptorNext::more);
  CHECK(to_acceptor(acceptor, std::span(http).last(1), 1) == AcceptorNext::refuse);
}

TEST_CASE("a dialler answers one challenge, of whom it dialled, to its own hello") {
  const auto answered = [](const Challenge& challenge, const Secret& secret) {
    DialerHandshake dialer(some_hello(), kSecret);
    return to_dialer(dialer, encode(challenge, secret));
  };
  const Challenge good{kWireVersion, {1, 2}, 7};
  CHECK(answered(good, kSecret) == DialerNext::prove);
  CHECK(answered(good, kOther) == DialerNext::failed);
  CHECK(answered({kWireVersion, {1, 2}, 8}, kSecret) == DialerNext::failed);
  CHECK(answered({kWireVersionChallenge - 1, {1, 2}, 7}, kSecret) == DialerNext::failed);
  CHECK(answered({kWireVersion + 1, {1, 2}, 7}, kSecret) == DialerNext::failed);
  const ChallengeBytes bytes = encode(good, kSecret);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    ChallengeBytes bent = bytes;
    bent[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    DialerHandshake dialer(some_hello(), kSecret);
    CHECK(to_dialer(dialer, bent) != DialerNext::prove);
  }
  DialerHandshake dialer(some_hello(), kSecret);
  REQUIRE(to_dialer(dialer, bytes) == DialerNext::prove);
  CHECK(to_dialer(dialer, bytes) == DialerNext::failed);
}

TEST_CASE("an older listener sends its welcome at once") {
  DialerHandshake dialer(some_hello(), kSecret);
  CHECK(to_dialer(dialer, welcome_to(some_hello()), 13) == DialerNext::done);
  DialerHandshake other(some_hello(), kSecret);
  CHECK(to_dialer(other, welcome_to(some_hello(8))) == DialerNext::failed);  // recorded
}

TEST_CASE("strangers get a quarter of the descriptors, and an eighth is reserved") {
  const auto check = [](rlim_t limit, std::size_t strangers, std::size_t reserved_from) {
    CAPTURE(limit);
    const DescriptorBudget budget = DescriptorBudget::of(limit);
    CHECK(budget.strangers == strangers);
    CHECK(budget.reserved_from == reserved_from);
  };
  check(0, 8, 0);
  check(24, 8, 21);
  check(300, 75, 263);
  check(1024, 256, 896);
  check(rlim_t{1} << 20U, 512, (std::size_t{1} << 20U) - 256);
  check(RLIM_INFINITY, 512, (std::size_t{1} << 30U) - 256);
}
