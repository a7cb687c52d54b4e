// The probe packet: version 1, 192 bytes, little-endian, one UDP datagram each.
//
//   0 magic u32 | 4 version u8 | 5 flags u8 | 6 size u16 | 8 host_id u32 | 12 path u32
//  16 incarnation | 24 challenge | 32 response | 40 peer_incarnation
//  48 seq | 56 tx_ref_seq | 64 tx_ref_stamp | 72 rx_ref_seq | 80 rx_ref_stamp
//  88 rx_max | 96 rx_bitmap | 104 rx_lost u32 | 108 rx_missed u32 | 112 rx_silent_us u32
// 116 interval_us u32 | 120 due_time | 128 awake_us u32 | 132 clock_message[32] | 164 next_due u32
// 168 peer_report u64 | 176 tag[16]
//
// The tag is keyed BLAKE2s-128 over a pseudo-header (source address and port, destination address
// and port: 36 bytes, addresses as IPv6 or IPv4-mapped, ports little-endian) and bytes 0..175. So
// a packet captured on one path proves nothing on another, nor sent back to its sender.
//
// `rx_*` and `rx_ref_*` are feedback about the receiver's packets, of its incarnation
// `peer_incarnation` (0: none yet). `challenge` is the sender's nonce for this path, `response` the
// last challenge it saw from the receiver: a new incarnation counts only once it has answered.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/blake2s.h"

namespace fabric::prober {

inline constexpr std::uint32_t kWireMagic = 0x42525046;  // "FPRB"
inline constexpr std::uint8_t kWireVersion = 1;
inline constexpr std::size_t kWireSize = 192;
inline constexpr std::size_t kWireBody = kWireSize - kTagSize;
using WireBytes = std::array<std::uint8_t, kWireSize>;

inline constexpr std::uint8_t kWireTrainMask = 3;     // position in a train: 1..3, 0 single
inline constexpr std::uint8_t kWireReport = 1 << 2;   // extra packet: a miss or a challenge
inline constexpr std::uint8_t kWireStalled = 1 << 3;  // the sender was not scheduled lately
inline constexpr std::uint8_t kWireHwStamps = 1 << 4;
// The sender will send no more on this path, by intent: its silence is no fault. Packets that bear
// it are reports too, so a receiver that does not know the flag takes them for a sign of life.
inline constexpr std::uint8_t kWireBye = 1 << 5;
// The sender takes this path's packets from any dynamic source port (clock_ports::kLeastPort) too:
// by address and host.
inline constexpr std::uint8_t kWireRoams = 1 << 6;
inline constexpr std::uint8_t kWireMtu = 1 << 7;  // the sender answers packets of core/mtu.h

// IPv6, or IPv4-mapped; port in host order.
struct Address {
  std::array<std::uint8_t, 16> ip{};
  std::uint16_t port = 0;
  bool is_v4() const;
  friend bool operator==(const Address&, const Address&) = default;
};

// Source and destination, as a tag covers them.
using PseudoHeader = std::array<std::uint8_t, TagText::kHead>;
PseudoHeader pseudo_header(const Address& source, const Address& destination);

// What one host's clock service tells another's (clocksync/mesh/codec.py); all zero: nothing.
using ClockMessage = std::array<std::uint64_t, 4>;

struct Packet {
  std::uint8_t flags = 0;
  std::uint32_t host_id = 0;
  std::uint32_t path = 0;  // the sender's index, for its own transmit stamps
  std::uint64_t incarnation = 0;
  std::uint64_t challenge = 0;
  std::uint64_t response = 0;
  std::uint64_t peer_incarnation = 0;
  std::uint64_t seq = 0;
  std::uint64_t tx_ref_seq = 0;    // an earlier packet of the sender's
  std::int64_t tx_ref_stamp = 0;   // and when it left; 0: not known
  std::uint64_t rx_ref_seq = 0;    // a packet of the receiver's
  std::int64_t rx_ref_stamp = 0;   // and when it arrived; 0: none
  std::uint64_t rx_max = 0;        // the receiver's highest sequence that arrived
  std::uint64_t rx_bitmap = 0;     // bit i: rx_max - i arrived
  std::uint32_t rx_lost = 0;       // of the receiver's packets, cumulative in its incarnation
  std::uint32_t rx_missed = 0;     // conclusive misses in a row, now
  std::uint32_t rx_silent_us = 0;  // since the sender last heard the receiver
  std::uint32_t interval_us = 0;   // between the sender's packets on this path
  // When it was due on the sender's CLOCK_MONOTONIC (what has no slot: when it was written), and
  // how long the sender had been running without a gap by then: all that was due in that time was
  // sent.
  std::int64_t due_time = 0;  // 0: an older sender, which says neither
  std::uint32_t awake_us = 0;
  ClockMessage clock_message{};  // of the clock mesh, carried and not looked into
  std::uint32_t next_due = 0;    // of the next single packet (core/due_time.h); 0: none
  // What the sender sees elsewhere (core/peer_reports.h); 0: nothing.
  std::uint64_t peer_report = 0;
  friend bool operator==(const Packet&, const Packet&) = default;
};

// The first key signs; all are accepted, so keys can be rotated host by host.
class Keyring {
 public:
  Keyring() = default;
  explicit Keyring(std::span<const Key> keys);
  Tag sign(std::span<const std::uint8_t> head, std::span<const std::uint8_t> body) const;
  bool verify(std::span<const std::uint8_t> head, std::span<const std::uint8_t> body,
              std::span<const std::uint8_t> tag) const;
  // As sign, of each text.
  void sign_all(std::span<const TagText* const> texts, std::span<Tag> tags) const;
  // As verify: sets good[i] to 1 when tags[i] is that of texts[i] by any key.
  void verify_all(std::span<const TagText* const> texts, std::span<const Tag> tags,
                  std::span<std::uint8_t> good) const;
  bool empty() const { return keys_.empty(); }

 private:
  std::vector<TagKey> keys_;
};

// Text of a key file: one key a line, 64 hexadecimal digits; blank lines and # comments allowed.
// Returns nothing, and sets `error`, when there is no key or a line is something else.
std::optional<std::vector<Key>> parse_keys(std::string_view text, std::string& error);

enum class WireError : std::uint8_t { kNone, kShort, kMagic, kVersion, kAuth };

WireBytes encode(const Packet& packet, const Keyring& keys, const Address& source,
                 const Address& destination);

// Fills `packet` only when it returns kNone. Never reads outside `bytes`.
WireError decode(std::span<const std::uint8_t> bytes, const Keyring& keys, const Address& source,
                 const Address& destination, Packet& packet);

// The parts of encode and decode, for many packets at once (Keyring::sign_all, verify_all).
WireBytes encode_untagged(const Packet& packet);
void put_tag(WireBytes& bytes, const Tag& tag);
// kNone: it has the length, magic and version of a packet, and so a tag.
WireError check_shape(std::span<const std::uint8_t> bytes);
Tag tag_of(std::span<const std::uint8_t> bytes);
TagText tag_text(std::span<const std::uint8_t> bytes, const Address& source,
                 const Address& destination);

// The same without checking the tag, for tools and tests.
WireError decode_unauthenticated(std::span<const std::uint8_t> bytes, Packet& packet);

// What identifies a packet of our own that comes back with its transmit stamp; not authenticated,
// for it never left the kernel. `bytes` may have link and IP headers in front.
struct OwnPacket {
  std::uint64_t incarnation;
  std::uint32_t path;
  std::uint64_t seq;
};
std::optional<OwnPacket> identify_own(std::span<const std::uint8_t> bytes);

}  // namespace fabric::prober
