// The opening of a connection, at either end, up to where the listener believes the hello. No
// socket and no clock: the caller reads into room(), tells what came, and does what is returned.
//
// | dials | listens |
// |---|---|
// | hello | |
// | | challenge: a fresh nonce |
// | proof: a tag over that nonce and the hello, by the listener's secret | |
// | | welcome |
//
// A hello of a version before kWireVersionChallenge is done without a challenge: whether to let it
// in is the caller's to decide.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "host/wire.h"

namespace fabric::host {

// The end that listens.
class AcceptorHandshake {
 public:
  using SecretOf = std::function<std::optional<Secret>(const HelloClaim&)>;
  using Draw = std::function<ChallengeNonce()>;
  enum class Next : std::uint8_t {
    more,       // read on
    challenge,  // send challenge(), and read on
    done,       // hello() has proved itself, or is of a version that cannot
    refuse,     // not one of ours
  };

  // Where the next bytes go. What comes behind them is the link's.
  std::span<std::byte> room();
  // So many bytes came into room(). `highest`: the version that is offered.
  Next received(std::size_t count, std::uint8_t highest, const SecretOf& secret_of,
                const Draw& draw);
  // Something came.
  [[nodiscard]] bool begun() const { return got_ != 0; }
  // A hello with a right tag came.
  [[nodiscard]] bool signed_hello() const { return hello_.has_value(); }
  // With `challenge` and `done`.
  [[nodiscard]] const ChallengeBytes& challenge() const { return challenge_; }
  [[nodiscard]] const Hello& hello() const { return *hello_; }
  [[nodiscard]] const Secret& secret() const { return *secret_; }

 private:
  Next take_hello(std::uint8_t highest, const SecretOf& secret_of, const Draw& draw);

  HelloBytes bytes_{};
  ProofBytes proof_{};
  ProofBytes wanted_{};
  ChallengeBytes challenge_{};
  std::optional<Hello> hello_;
  std::optional<Secret> secret_;
  std::size_t got_ = 0;  // of hello and proof
};

// The end that dials.
class DialerHandshake {
 public:
  enum class Next : std::uint8_t {
    more,    // read on
    prove,   // send proof(), and read on
    done,    // welcome() came
    failed,  // not who was dialled
  };

  DialerHandshake(const Hello& hello, const Secret& secret);
  // To be sent first.
  [[nodiscard]] const HelloBytes& hello() const { return hello_; }
  std::span<std::byte> room();
  Next received(std::size_t count);
  [[nodiscard]] const ProofBytes& proof() const { return proof_; }
  [[nodiscard]] const Welcome& welcome() const { return welcome_; }

 private:
  HelloBytes hello_;
  ProofBytes proof_{};
  Welcome welcome_;
  Secret secret_;
  std::uint64_t nonce_;
  bool challenged_ = false;
  WelcomeBytes bytes_{};  // a challenge, or the welcome
  std::size_t got_ = 0;
  std::size_t wanted_ = kChallengeSize;  // the shorter of the two: then it is known which it is
};

}  // namespace fabric::host
