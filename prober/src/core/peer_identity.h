// Whether a packet is the peer's own. Its tag shows only that a host with the key wrote it; this
// asks for its incarnation, and for how its sequence goes on.
//
// Each of our packets carries a challenge, a nonce of this path, and each of the peer's the
// challenge that it saw last. A host that cannot read our packets to the peer cannot answer, key or
// not. What has to be answered, and by which challenge:
//  - A new incarnation: the present one.
//  - A sequence that is ReceiveWindow::kSpan or more ahead: the present one, or the last that the
//    peer is known to have. A peer that was not heard for a while has that.
//  - A sequence that is kFar or more ahead, or kSpan or more behind: one that was drawn after such
//    a packet came, so that no recording has its answer. Answered from behind, the sequences begin
//    anew there: what was beyond it was not the peer's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>

#include "core/window.h"
#include "core/wire.h"

namespace fabric::prober {

class PeerIdentity {
 public:
  using Random = std::function<std::uint64_t()>;
  static constexpr std::uint64_t kFar = std::uint64_t{1} << 20;
  enum class Follows : std::uint8_t {
    kInOrder,
    kAnew,      // the window has to begin anew with this packet
    kUnproven,  // too far ahead for what it answers
    kBehind,    // a replay, unless the peer answers a challenge from there
  };

  explicit PeerIdentity(Random random) : random_(std::move(random)), challenge_(random_()) {}

  // Of its present life; 0: none is established.
  std::uint64_t incarnation() const { return incarnation_; }
  std::uint64_t challenge() const { return challenge_; }
  // One of the lives that ended last.
  bool retired(std::uint64_t incarnation) const {
    return std::find(retired_.begin(), retired_.end(), incarnation) != retired_.end();
  }
  bool answers(const Packet& packet) const { return packet.response == challenge_; }

  // The packet's incarnation, which has answered, is the present life.
  void establish(const Packet& packet) {
    if (incarnation_ != 0) retired_[retired_count_++ % retired_.size()] = incarnation_;
    incarnation_ = packet.incarnation;
    answered_ = challenge_;
    draw(false);
  }

  // Of a packet of the present life, when `window` is what was heard of it.
  Follows follow(const Packet& packet, const ReceiveWindow& window) {
    const std::uint64_t highest = window.highest();
    const std::uint64_t ahead = packet.seq > highest ? packet.seq - highest : 0;
    const std::uint64_t behind = packet.seq < highest ? highest - packet.seq : 0;
    const bool jumps = ahead >= kFar || behind >= ReceiveWindow::kSpan;
    if (highest != 0 && packet.seq != 0 && jumps) return follow_jump(packet, ahead != 0);
    if (highest != 0 && ahead >= ReceiveWindow::kSpan && !answers(packet) &&
        packet.response != answered_) {
      return Follows::kUnproven;
    }
    if (answers(packet)) {
      answered_ = challenge_;
      drawn_for_jump_ = false;  // whoever repeats this packet could answer it, too
    }
    return Follows::kInOrder;
  }

 private:
  Follows follow_jump(const Packet& packet, bool ahead) {
    if (!drawn_for_jump_) {
      draw(true);
    } else if (answers(packet)) {
      answered_ = challenge_;
      draw(false);
      return ahead ? Follows::kInOrder : Follows::kAnew;
    }
    return ahead ? Follows::kUnproven : Follows::kBehind;
  }

  void draw(bool for_jump) {
    do {
      challenge_ = random_();
    } while (challenge_ == 0);
    drawn_for_jump_ = for_jump;
  }

  Random random_;
  std::uint64_t incarnation_ = 0;
  std::array<std::uint64_t, 4> retired_{};
  std::size_t retired_count_ = 0;
  std::uint64_t challenge_;
  std::uint64_t answered_ = 0;  // the last that the peer has answered
  // No packet that followed has answered the present challenge.
  bool drawn_for_jump_ = false;
};

}  // namespace fabric::prober
