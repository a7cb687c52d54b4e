// Hello, challenge, proof and welcome.
#include <algorithm>

#include "host/bytes.h"
#include "host/wire.h"

namespace fabric::host {

namespace {

constexpr std::size_t kTagSize = 8;
constexpr std::uint8_t kBeside = 1;  // a flag; the others are not looked at

void put_table(Writer& writer, const RailTable& table) {
  for (const Address& address : table) {
    writer.put(address.ip);
    writer.put(address.port);
  }
}

RailTable get_table(Reader& reader) {
  RailTable table;
  for (Address& address : table) {
    address.ip = reader.get<std::array<std::uint8_t, 16>>();
    address.port = reader.get<std::uint16_t>();
  }
  return table;
}

// Pads to the fixed size and signs.
template <std::size_t N>
std::array<std::byte, N> sealed(Bytes body, const Secret& secret) {
  body.resize(N - kTagSize);
  const std::uint64_t tag = siphash(secret, body);
  std::array<std::byte, N> out{};
  std::copy(body.begin(), body.end(), out.begin());
  std::memcpy(out.data() + N - kTagSize, &tag, kTagSize);
  return out;
}

bool genuine(std::span<const std::byte> bytes, const Secret& secret) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, bytes.data() + bytes.size() - kTagSize, kTagSize);
  return siphash(secret, bytes.first(bytes.size() - kTagSize)) == tag;
}

}  // namespace

HelloBytes encode(const Hello& hello, const Secret& secret) {
  Bytes body;
  Writer writer(body);
  writer.put(kHelloMagic);
  writer.put(hello.listen_id);
  writer.put(hello.version_min);
  writer.put(hello.version_max);
  writer.put(hello.kind);
  writer.put(hello.rails);
  writer.put(hello.initiator_rail);
  writer.put(hello.acceptor_rail);
  writer.put(hello.primary_rail);
  writer.put(hello.beside ? kBeside : std::uint8_t{0});
  writer.put(hello.chunk_size);
  writer.put(hello.epoch);
  writer.put(hello.initiator);
  writer.put(hello.acceptor);
  writer.put(hello.comm);
  writer.put(hello.nonce);
  put_table(writer, hello.listeners);
  writer.put(hello.run_incarnation);
  return sealed<kHelloSize>(std::move(body), secret);
}

std::optional<HelloClaim> claim_of(std::span<const std::byte, kHelloSize> bytes) {
  constexpr std::size_t kKindAt = 10;
  constexpr std::size_t kInitiatorAt = 24;
  Reader reader(bytes);
  HelloClaim claim;
  if (reader.get<std::uint32_t>() != kHelloMagic) {
    return std::nullopt;
  }
  claim.listen_id = reader.get<std::uint32_t>();
  claim.kind = static_cast<HelloKind>(Reader(bytes.subspan(kKindAt)).get<std::uint8_t>());
  claim.initiator = Reader(bytes.subspan(kInitiatorAt)).get<std::uint64_t>();
  return claim;
}

std::optional<Hello> decode_hello(std::span<const std::byte, kHelloSize> bytes,
                                  const Secret& secret) {
  if (!genuine(bytes, secret)) {
    return std::nullopt;
  }
  Reader reader(bytes);
  Hello hello;
  const auto magic = reader.get<std::uint32_t>();
  hello.listen_id = reader.get<std::uint32_t>();
  hello.version_min = reader.get<std::uint8_t>();
  hello.version_max = reader.get<std::uint8_t>();
  const auto kind = reader.get<std::uint8_t>();
  hello.kind = static_cast<HelloKind>(kind);
  hello.rails = reader.get<std::uint8_t>();
  hello.initiator_rail = reader.get<std::uint8_t>();
  hello.acceptor_rail = reader.get<std::uint8_t>();
  hello.primary_rail = reader.get<std::uint8_t>();
  const auto flags = reader.get<std::uint8_t>();
  hello.beside = (flags & kBeside) != 0;
  hello.chunk_size = reader.get<std::uint32_t>();
  hello.epoch = reader.get<core::Epoch>();
  hello.initiator = reader.get<std::uint64_t>();
  hello.acceptor = reader.get<std::uint64_t>();
  hello.comm = reader.get<std::uint64_t>();
  hello.nonce = reader.get<std::uint64_t>();
  hello.listeners = get_table(reader);
  hello.run_incarnation = reader.get<std::uint64_t>();
  if (magic != kHelloMagic || kind < 1 || kind > 4 ||
      (hello.kind == HelloKind::one_sided && hello.version_max < kWireVersionOneSided) ||
      (hello.kind != HelloKind::one_sided && hello.beside) || hello.rails == 0 ||
      hello.rails > core::kMaxRails || hello.initiator_rail >= hello.rails ||
      hello.acceptor_rail >= core::kMaxRails || hello.primary_rail >= hello.rails ||
      hello.version_min > hello.version_max) {
    return std::nullopt;
  }
  return hello;
}

std::uint8_t common_version(std::uint8_t min, std::uint8_t max, std::uint8_t highest) {
  std::uint8_t version = std::min(max, highest);
  version = version == kWireVersionUnsafe ? std::uint8_t{kWireVersionUnsafe - 1} : version;
  return version >= std::max(min, kWireVersionMin) ? version : std::uint8_t{0};
}

WelcomeBytes encode(const Welcome& welcome, const Secret& secret) {
  Bytes body;
  Writer writer(body);
  writer.put(kWelcomeMagic);
  writer.put(welcome.version);
  writer.put(welcome.status);
  writer.put(welcome.rails);
  // Version 1 had the primary rail here, which nobody ever read, and refuses one beyond `rails`.
  writer.put(welcome.status == WelcomeStatus::version ? welcome.version_min : std::uint8_t{0});
  writer.put(welcome.floor);
  writer.put(welcome.incarnation);
  writer.put(welcome.nonce);
  put_table(writer, welcome.listeners);
  return sealed<kWelcomeSize>(std::move(body), secret);
}

std::optional<Welcome> decode_welcome(std::span<const std::byte, kWelcomeSize> bytes,
                                      const Secret& secret) {
  if (!genuine(bytes, secret)) {
    return std::nullopt;
  }
  Reader reader(bytes);
  Welcome welcome;
  const auto magic = reader.get<std::uint32_t>();
  welcome.version = reader.get<std::uint8_t>();
  const auto status = reader.get<std::uint8_t>();
  welcome.status = static_cast<WelcomeStatus>(status);
  welcome.rails = reader.get<std::uint8_t>();
  welcome.version_min = reader.get<std::uint8_t>();
  welcome.floor = reader.get<core::Epoch>();
  welcome.incarnation = reader.get<std::uint64_t>();
  welcome.nonce = reader.get<std::uint64_t>();
  welcome.listeners = get_table(reader);
  const bool known = welcome.version >= kWireVersionMin && welcome.version <= kWireVersion &&
                     welcome.version != kWireVersionUnsafe;
  if (magic != kWelcomeMagic || status > static_cast<std::uint8_t>(WelcomeStatus::stream) ||
      (!known && welcome.status != WelcomeStatus::version) || welcome.rails == 0 ||
      welcome.rails > core::kMaxRails) {
    return std::nullopt;
  }
  return welcome;
}

ChallengeBytes encode(const Challenge& challenge, const Secret& secret) {
  Bytes body;
  Writer writer(body);
  writer.put(kChallengeMagic);
  writer.put(challenge.version);
  writer.put(std::array<std::uint8_t, 3>{});
  writer.put(challenge.nonce);
  writer.put(challenge.hello_nonce);
  return sealed<kChallengeSize>(std::move(body), secret);
}

std::optional<Challenge> decode_challenge(std::span<const std::byte, kChallengeSize> bytes,
                                          const Secret& secret) {
  if (!genuine(bytes, secret)) {
    return std::nullopt;
  }
  Reader reader(bytes);
  Challenge challenge;
  const auto magic = reader.get<std::uint32_t>();
  challenge.version = reader.get<std::uint8_t>();
  reader.get<std::array<std::uint8_t, 3>>();
  challenge.nonce = reader.get<ChallengeNonce>();
  challenge.hello_nonce = reader.get<std::uint64_t>();
  const bool known =
      challenge.version >= kWireVersionChallenge && challenge.version <= kWireVersion;
  return magic == kChallengeMagic && known ? std::optional(challenge) : std::nullopt;
}

ProofBytes proof_of(const HelloBytes& hello, const ChallengeNonce& nonce, const Secret& secret) {
  Bytes body;
  Writer writer(body);
  writer.put(kProofMagic);
  writer.put(std::uint32_t{0});
  writer.put(nonce);
  ProofBytes out{};
  std::copy(body.begin(), body.end(), out.begin());
  writer.put(hello);
  const std::uint64_t tag = siphash(secret, body);
  std::memcpy(out.data() + kProofSize - kTagSize, &tag, kTagSize);
  return out;
}

}  // namespace fabric::host
