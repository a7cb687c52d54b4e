#include "host/handshake.h"

#include <algorithm>
#include <cstring>

namespace fabric::host {

namespace {

std::uint32_t magic_of(std::span<const std::byte> bytes) {
  std::uint32_t magic = 0;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic;
}

}  // namespace

std::span<std::byte> AcceptorHandshake::room() {
  return got_ < kHelloSize ? std::span(bytes_).subspan(got_)
                           : std::span(proof_).subspan(got_ - kHelloSize);
}

AcceptorHandshake::Next AcceptorHandshake::received(std::size_t count, std::uint8_t highest,
                                                    const SecretOf& secret_of, const Draw& draw) {
  const bool unnamed = got_ < sizeof kHelloMagic;
  got_ += count;
  if (unnamed && got_ >= sizeof kHelloMagic && magic_of(bytes_) != kHelloMagic) {
    return Next::refuse;
  }
  if (got_ < kHelloSize) {
    return Next::more;
  }
  if (got_ == kHelloSize) {
    return take_hello(highest, secret_of, draw);
  }
  if (got_ < kHelloSize + kProofSize) {
    return Next::more;
  }
  return proof_ == wanted_ ? Next::done : Next::refuse;
}

AcceptorHandshake::Next AcceptorHandshake::take_hello(std::uint8_t highest,
                                                      const SecretOf& secret_of, const Draw& draw) {
  const auto claim = claim_of(bytes_);
  secret_ = claim ? secret_of(*claim) : std::nullopt;
  hello_ = secret_ ? decode_hello(bytes_, *secret_) : std::nullopt;
  if (!hello_) {
    return Next::refuse;
  }
  Challenge challenge;
  challenge.version = common_version(hello_->version_min, hello_->version_max, highest);
  if (challenge.version < kWireVersionChallenge) {
    return Next::done;
  }
  challenge.nonce = draw();
  challenge.hello_nonce = hello_->nonce;
  challenge_ = encode(challenge, *secret_);
  wanted_ = proof_of(bytes_, challenge.nonce, *secret_);
  return Next::challenge;
}

DialerHandshake::DialerHandshake(const Hello& hello, const Secret& secret)
    : hello_(encode(hello, secret)), secret_(secret), nonce_(hello.nonce) {}

std::span<std::byte> DialerHandshake::room() {
  return std::span(bytes_).subspan(got_, wanted_ - got_);
}

DialerHandshake::Next DialerHandshake::received(std::size_t count) {
  got_ += count;
  if (got_ < wanted_) {
    return Next::more;
  }
  const std::uint32_t magic = magic_of(bytes_);
  if (magic == kWelcomeMagic && wanted_ < kWelcomeSize) {
    wanted_ = kWelcomeSize;
    return Next::more;
  }
  if (magic == kWelcomeMagic) {
    const auto welcome = decode_welcome(bytes_, secret_);
    welcome_ = welcome.value_or(Welcome{});
    return welcome && welcome->nonce == nonce_ ? Next::done : Next::failed;
  }
  const auto challenge = decode_challenge(std::span(bytes_).first<kChallengeSize>(), secret_);
  if (!challenge || challenge->hello_nonce != nonce_ || std::exchange(challenged_, true)) {
    return Next::failed;
  }
  proof_ = proof_of(hello_, challenge->nonce, secret_);
  got_ = 0;
  return Next::prove;
}

}  // namespace fabric::host
