// Packets of the link's MTU, now and then: a port whose MTU is too small drops large packets and
// passes the small ones that all else is judged by. Pure.
//
// A round on a path is a small packet and a large one, back to back from the same ports, so that
// every switch sends both the same way. The peer answers each with a small one. The sender learns
// whether its large packets arrive; the receiver, told by the small one that a large one follows,
// learns the same at once. A round whose small packet is not answered proves nothing.
//
// The wire, little-endian, version 1; peers of older versions are sent none (kWireMtu):
//   0 magic u32 | 4 version u8 | 5 kind u8 | 6 limit u16 | 8 host_id u32 | 12 size u32
//  16 incarnation | 24 peer_incarnation | 32 number | 40 tag[16], and zeros up to `size` bytes
// The tag is keyed BLAKE2s-128 over the pseudo-header of core/wire.h and bytes 0..39.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/stalls.h"
#include "core/wire.h"

namespace fabric::prober::mtu {

inline constexpr std::uint32_t kMagic = 0x554d5446;  // "FTMU"
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kBody = 40;
inline constexpr std::size_t kSize = kBody + kTagSize;
inline constexpr std::uint32_t kLeast = 600;       // bytes: less is no large packet
inline constexpr std::uint32_t kMost = 65'507;     // of UDP over IPv4
inline constexpr Nanos kAnswered = 1'000'000'000;  // an answer that takes longer is none
inline constexpr Nanos kPace = 5'000'000'000;      // a round on each link
inline constexpr Nanos kHaste = 1'000'000'000;     // the same while large packets are missing
inline constexpr std::uint32_t kProven = 5;        // so many in a row end the haste for a path

enum class Kind : std::uint8_t { kSmall = 1, kLarge = 2, kAnswer = 3 };

struct Packet {
  Kind kind = Kind::kSmall;
  std::uint16_t limit = 0;  // UDP payload that the sender's device takes in one packet
  std::uint32_t host_id = 0;
  // UDP payload of the round's large packet, 0: it has none. Of an answer: of the packet that it
  // answers, 0: the small one.
  std::uint32_t size = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t peer_incarnation = 0;
  std::uint64_t number = 0;  // of the round, rising in the sender's incarnation
  friend bool operator==(const Packet&, const Packet&) = default;
};
using Bytes = std::array<std::uint8_t, kSize>;

Bytes encode(const Packet& packet, const Keyring& keys, const Address& source,
             const Address& destination);
// Whether a datagram claims to be one.
bool claims(std::span<const std::uint8_t> bytes);
// `bytes`: the datagram's beginning, `length` its length. Nothing: it is none, or not authentic.
std::optional<Packet> decode(std::span<const std::uint8_t> bytes, std::size_t length,
                             const Keyring& keys, const Address& source,
                             const Address& destination);

// What to send: `size` bytes, of which the first are `bytes` and the others zeros.
struct Outgoing {
  std::uint16_t link = 0;
  Address destination{};
  Bytes bytes{};
  std::uint32_t size = kSize;
};

// One path. Sizes are UDP payloads in bytes.
class Path {
 public:
  // Packets of ours, or of the peer's, as far as this end knows.
  struct Way {
    std::uint32_t size = 0;     // of the newest round
    std::uint32_t missing = 0;  // large ones in a row that did not arrive though small ones did
    Nanos passed = 0;           // when the newest large one arrived; 0: none yet
  };
  const Way& tx() const { return tx_; }
  const Way& rx() const { return rx_; }
  bool tested() const { return tx_.size != 0 || rx_.size != 0; }
  bool open() const { return sent_ != 0; }

  // Begins a round of this number; returns the size of its large packet, 0: none, for the peer's
  // limit is not known yet or too low.
  std::uint32_t begin(std::uint64_t number, std::uint32_t most, Nanos now);
  // It could not be sent: the round proves nothing.
  void cancel() { sent_ = 0; }
  // Ends rounds whose time is over.
  void expire(Nanos now);
  // A packet of the peer's established incarnation; true: answer it.
  bool take(const Packet& packet, Nanos now);

 private:
  Way tx_;
  std::uint64_t number_ = 0;
  Nanos sent_ = 0;  // 0: no round is open
  bool small_answered_ = false;
  std::uint16_t peer_limit_ = 0;

  Way rx_;
  std::uint64_t peer_incarnation_ = 0;
  std::uint64_t peer_number_ = 0;
  Nanos announced_ = 0;  // when the small packet said that a large one follows; 0: none is awaited
};

}  // namespace fabric::prober::mtu
