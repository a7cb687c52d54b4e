// What travels between two plugins. Little-endian, fixed sizes.
//
// Versions: both ends take the highest that both know; this code speaks versions 6 to 3 and 1. The
// handle (host/handle.h) says what the listener speaks, so that who connects knows before it dials
// that they have none in common. Hello and welcome keep their layout in all versions, so that two
// that have none in common can say so. `path_validation`, `path_validation_done`, `addresses` and
// `eager` are of version 3; on a connection that agreed on version 1 they are refused. Version 4
// has one-sided paths (keys in a CTS, HelloKind::one_sided, `terms`, what RDMA may carry in
// `rails`), and its chunks say what follows them; a peer of an older version is offered none of
// that, and all its paths are streams. Version 5 has receives into device memory (a flag in a CTS,
// in a frame and in a line of verbs/cts_line.h): no peer of an older version is ever told of one.
// Version 6 has challenge and proof; a listener lets a peer of an older version in only with
// FABRIC_UNPROVEN=1. Version 2 had the frames of version 3, but its `eager`
// lacked the tag, so a message could land in another receive's buffer. Nobody speaks it any more: a
// peer that knows 1 and 2 is spoken to in version 1 (common_version).
//
// A connection opens with a Hello by the sender of the traffic (or by whoever asks whether a
// process still lives). A hello can be recorded and said again, so nothing of it is believed yet:
// the listener answers with a Challenge, a fresh nonce, and the other end with a Proof, a tag over
// that nonce and its whole hello (host/handshake.h). Then the listener sends a Welcome; it closes
// without a word when hello or proof is not one of ours. Then come frames: a FrameHeader and
// `length` bytes. Parsers take hostile bytes: they return nothing rather than read past the end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/types.h"
#include "host/address.h"
#include "host/siphash.h"

namespace fabric::host {

inline constexpr std::uint32_t kHelloMagic = 0x4c484246;      // "FBHL"
inline constexpr std::uint32_t kWelcomeMagic = 0x43574246;    // "FBWC"
inline constexpr std::uint32_t kChallengeMagic = 0x48434246;  // "FBCH"
inline constexpr std::uint32_t kProofMagic = 0x46504246;      // "FBPF"
inline constexpr std::uint8_t kWireVersion = 6;
inline constexpr std::uint8_t kWireVersionChallenge = 6;
inline constexpr std::uint8_t kWireVersionDevice = 5;
inline constexpr std::uint8_t kWireVersionOneSided = 4;
inline constexpr std::uint8_t kWireVersionEager = 3;  // has all that TCP uses
inline constexpr std::uint8_t kWireVersionUnsafe = 2;
inline constexpr std::uint8_t kWireVersionMin = 1;
inline constexpr std::uint32_t kValidationSize = 64 * 1024;  // bytes
inline constexpr std::uint32_t kMaxControlFrame = 1U << 20U;
inline constexpr std::uint32_t kMaxTerms = 1024;  // bytes

using RailTable = std::array<Address, core::kMaxRails>;  // listeners; absent rails are all zero

enum class HelloKind : std::uint8_t {
  control = 1,         // control link of a process pair over one pair of rails
  data = 2,            // one path of one comm
  liveness_probe = 3,  // is this process alive? Answered and closed
  one_sided = 4,  // as data, but the path is one-sided: `terms` follow the hello and the welcome
};

struct Hello {
  std::uint8_t version_min = kWireVersionMin;
  std::uint8_t version_max = kWireVersion;
  HelloKind kind = HelloKind::control;
  std::uint8_t rails = 0;  // how many the initiator has
  std::uint8_t initiator_rail = 0;
  std::uint8_t acceptor_rail = 0;
  std::uint8_t primary_rail = 0;  // of the comm, at the initiator
  // one_sided: beside the path's stream, in whose place it comes when that is fenced. Else the path
  // has no other connection any more.
  bool beside = false;
  std::uint32_t listen_id = 0;  // whose secret signs
  std::uint32_t chunk_size = 0;
  core::Epoch epoch = 0;        // data: of the path. control: 0
  std::uint64_t initiator = 0;  // incarnation of the process
  std::uint64_t acceptor = 0;   // incarnation that is expected
  std::uint64_t comm = 0;       // otherwise: the number of `listeners`, as in AddressReport
  std::uint64_t nonce = 0;
  RailTable listeners{};  // the initiator's, so that it can be probed
  // Of the initiator's fabric-run (host/fenced_runs.h). Older releases padded with zeros here, in
  // every version, and read over it. The acceptor's is in its handle.
  std::uint64_t run_incarnation = 0;
};

enum class WelcomeStatus : std::uint8_t {
  ok = 0,
  stale = 1,              // an epoch that was fenced already: dial again with the present one
  closed = 2,             // the comm is not (or no longer) here
  wrong_incarnation = 3,  // another incarnation lives here
  version = 4,            // no version in common; `version` and `version_min` say which we speak
  stream = 5,  // to a hello of a one-sided path: there is none to be had here, dial a stream
};

struct Welcome {
  std::uint8_t version = kWireVersion;  // agreed on
  std::uint8_t version_min = 0;         // with `version`
  WelcomeStatus status = WelcomeStatus::ok;
  std::uint8_t rails = 0;
  core::Epoch floor = 0;  // with `stale`: the lowest epoch that is taken
  std::uint64_t incarnation = 0;
  std::uint64_t nonce = 0;  // the hello's
  RailTable listeners{};
};

inline constexpr std::size_t kHelloSize = 240;
inline constexpr std::size_t kWelcomeSize = 184;
inline constexpr std::size_t kChallengeSize = 40;
inline constexpr std::size_t kProofSize = 32;
using HelloBytes = std::array<std::byte, kHelloSize>;
using WelcomeBytes = std::array<std::byte, kWelcomeSize>;
using ChallengeBytes = std::array<std::byte, kChallengeSize>;
using ProofBytes = std::array<std::byte, kProofSize>;

// What the listener draws anew for each hello.
using ChallengeNonce = std::array<std::uint64_t, 2>;

struct Challenge {
  std::uint8_t version = kWireVersion;  // agreed on
  ChallengeNonce nonce{};
  std::uint64_t hello_nonce = 0;  // the hello's
};

HelloBytes encode(const Hello& hello, const Secret& secret);
// What to look the secret up by; nothing when it is no hello at all. Not authenticated yet.
struct HelloClaim {
  HelloKind kind = HelloKind::control;
  std::uint32_t listen_id = 0;
  std::uint64_t initiator = 0;
};
std::optional<HelloClaim> claim_of(std::span<const std::byte, kHelloSize> bytes);
// Nothing: wrong tag or shape. The versions are the caller's to compare (common_version).
std::optional<Hello> decode_hello(std::span<const std::byte, kHelloSize> bytes,
                                  const Secret& secret);
// The highest that the other (which speaks `min` to `max`) and this end (which offers up to
// `highest`) know, kWireVersionUnsafe apart; 0: none.
std::uint8_t common_version(std::uint8_t min, std::uint8_t max, std::uint8_t highest);
WelcomeBytes encode(const Welcome& welcome, const Secret& secret);
std::optional<Welcome> decode_welcome(std::span<const std::byte, kWelcomeSize> bytes,
                                      const Secret& secret);

ChallengeBytes encode(const Challenge& challenge, const Secret& secret);
std::optional<Challenge> decode_challenge(std::span<const std::byte, kChallengeSize> bytes,
                                          const Secret& secret);
// The answer: the nonce, and a tag over it and all of the hello.
ProofBytes proof_of(const HelloBytes& hello, const ChallengeNonce& nonce, const Secret& secret);

enum class FrameType : std::uint16_t {
  chunk = 1,  // sender → receiver on a data connection
  cts = 2,    // receiver → sender on a data connection
  acknowledge = 3,
  state = 4,  // the receiver's whole state; on control links the answer to a fence
  close = 5,  // the comm is closed in good order
  ping = 6,
  pong = 7,
  rails = 8,  // weights and health of the writer's rails
  fence = 9,
  // The receiver gave a path up by itself: the answer to the fence that would follow, before it is
  // asked. Repeated until a fence of that epoch comes.
  retired = 10,
  // A path that came back has to deliver this much before it is trusted: a header as of a chunk,
  // and kValidationSize bytes that mean nothing. Sender → receiver on a data connection.
  path_validation = 11,
  path_validation_done = 12,  // the answer on the same connection
  addresses = 13,             // where the writer's rails listen now; on control links
  eager = 14,                 // a chunk that did not wait for its CTS; `count` is its era
  terms = 15,                 // of a one-sided path: opaque here, kMaxTerms bytes at most
};

// Such a frame goes from sender to receiver on a data connection, and its body is no control frame.
[[nodiscard]] constexpr bool carries_payload(FrameType type) {
  return type == FrameType::chunk || type == FrameType::eager || type == FrameType::path_validation;
}

// Is this frame part of that version? What is not is no frame of ours.
constexpr bool speaks(std::uint8_t version, FrameType type) {
  return version >= kWireVersionOneSided || type <= FrameType::retired ||
         (version >= kWireVersionEager && type <= FrameType::eager);
}

struct FrameHeader {
  FrameType type = FrameType::ping;
  std::uint16_t count = 0;
  std::uint32_t length = 0;
  std::uint64_t comm = 0;
};
inline constexpr std::size_t kFrameHeaderSize = 16;
inline constexpr std::size_t kChunkHeaderSize = 40;

// Streams go by the first two arrays, one-sided paths by the others. Those travel from version 4; a
// report without them says the same of both kinds.
struct RailsReport {
  std::uint64_t number = 0;  // the highest wins
  std::array<std::uint16_t, core::kMaxRails> weight{};
  std::array<bool, core::kMaxRails> down{};
  std::array<std::uint16_t, core::kMaxRails> rdma_weight{};
  std::array<bool, core::kMaxRails> rdma_down{};

  // Apart from the number.
  [[nodiscard]] bool same_rails(const RailsReport& other) const {
    return weight == other.weight && down == other.down && rdma_weight == other.rdma_weight &&
           rdma_down == other.rdma_down;
  }
};

struct PathEpoch {
  core::PathIndex path = 0;
  core::Epoch epoch = 0;
  std::uint32_t reason = 0;
};

struct StateFrame {
  std::optional<PathEpoch> fenced;  // which fence it answers
  core::ReceiverState state;
};

using Bytes = std::vector<std::byte>;

std::optional<FrameHeader> decode_frame_header(std::span<const std::byte> bytes);
// 16 bytes of frame header, 8 group, 8 message size, 8 offset. `count` is the slot; in version 3
// with 256 added when the caller waits for a small message, and 512 when the copy budget is low; in
// version 4 and later with 1024 times `follow` added. An `eager` chunk is its message, and has tag
// (4) and flags (4; 1: copy budget low) in the offset's place.
std::array<std::byte, kChunkHeaderSize> encode_chunk(std::uint64_t comm,
                                                     const core::ChunkHeader& header);
std::optional<core::ChunkHeader> decode_chunk(std::span<const std::byte> bytes);
std::array<std::byte, kChunkHeaderSize> encode_path_validation(std::uint64_t comm);

void append_frame(Bytes& out, FrameType type, std::uint64_t comm);     // without a body
void append_number(Bytes& out, FrameType type, std::uint64_t number);  // ping, pong
void append_cts(Bytes& out, std::uint64_t comm, const core::Cts& cts);
void append_acknowledge(Bytes& out, std::uint64_t comm, core::GroupId group, std::uint8_t slot);
void append_state(Bytes& out, std::uint64_t comm, const StateFrame& frame,
                  FrameType type = FrameType::state);
// As the peer reads it, with which `version` of the wire was agreed on.
void append_rails(Bytes& out, const RailsReport& report, std::uint8_t version = kWireVersion);
struct AddressReport {
  std::uint64_t number = 0;  // the highest wins; from 1
  std::uint8_t rails = 0;
  RailTable listeners{};
};
void append_addresses(Bytes& out, const AddressReport& report);
std::optional<AddressReport> decode_addresses(std::span<const std::byte> body);
void append_terms(Bytes& out, std::uint64_t comm, std::span<const std::byte> terms);
void append_path(Bytes& out, FrameType type, std::uint64_t comm, const PathEpoch& path);

std::optional<std::uint64_t> decode_number(std::span<const std::byte> body);
std::optional<core::Cts> decode_cts(std::span<const std::byte> body);
std::optional<std::pair<core::GroupId, std::uint8_t>> decode_acknowledge(
    std::span<const std::byte> body);
std::optional<StateFrame> decode_state(std::span<const std::byte> body);
std::optional<RailsReport> decode_rails(std::span<const std::byte> body);
std::optional<PathEpoch> decode_path(std::span<const std::byte> body);

}  // namespace fabric::host
