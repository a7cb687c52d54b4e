#include "core/mtu.h"

#include <algorithm>

namespace fabric::prober::mtu {
namespace {

template <typename T>
void put(Bytes& out, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out[at + i] = static_cast<std::uint8_t>(std::uint64_t{value} >> (8 * i));
}

template <typename T>
T get(std::span<const std::uint8_t> in, std::size_t at) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) bits |= std::uint64_t{in[at + i]} << (8 * i);
  return static_cast<T>(bits);
}

}  // namespace

Bytes encode(const Packet& p, const Keyring& keys, const Address& source,
             const Address& destination) {
  Bytes out{};
  put(out, 0, kMagic);
  put(out, 4, kVersion);
  put(out, 5, static_cast<std::uint8_t>(p.kind));
  put(out, 6, p.limit);
  put(out, 8, p.host_id);
  put(out, 12, p.size);
  put(out, 16, p.incarnation);
  put(out, 24, p.peer_incarnation);
  put(out, 32, p.number);
  const auto head = pseudo_header(source, destination);
  const Tag tag = keys.sign(head, std::span(out).first(kBody));
  std::copy(tag.begin(), tag.end(), out.begin() + kBody);
  return out;
}

bool claims(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 4 && get<std::uint32_t>(bytes, 0) == kMagic;
}

std::optional<Packet> decode(std::span<const std::uint8_t> bytes, std::size_t length,
                             const Keyring& keys, const Address& source,
                             const Address& destination) {
  if (!claims(bytes) || bytes.size() < kSize || bytes[4] != kVersion) return std::nullopt;
  Packet p;
  const std::uint8_t kind = bytes[5];
  if (kind < 1 || kind > 3) return std::nullopt;
  p.kind = static_cast<Kind>(kind);
  p.limit = get<std::uint16_t>(bytes, 6);
  p.host_id = get<std::uint32_t>(bytes, 8);
  p.size = get<std::uint32_t>(bytes, 12);
  p.incarnation = get<std::uint64_t>(bytes, 16);
  p.peer_incarnation = get<std::uint64_t>(bytes, 24);
  p.number = get<std::uint64_t>(bytes, 32);
  if (length != (p.kind == Kind::kLarge ? p.size : kSize) || p.size > kMost) return std::nullopt;
  if (p.kind == Kind::kLarge && p.size < kLeast) return std::nullopt;
  const auto head = pseudo_header(source, destination);
  if (!keys.verify(head, bytes.first(kBody), bytes.subspan(kBody, kTagSize))) return std::nullopt;
  return p;
}

std::uint32_t Path::begin(std::uint64_t number, std::uint32_t most, Nanos now) {
  const std::uint32_t size = std::min({most, std::uint32_t{peer_limit_}, kMost});
  number_ = number;
  sent_ = now;
  small_answered_ = false;
  if (size < kLeast) return tx_.size = 0;
  // Another size is another question: what was missing of the old one says nothing of it.
  if (size != tx_.size) tx_.missing = 0;
  return tx_.size = size;
}

void Path::expire(Nanos now) {
  if (sent_ != 0 && now - sent_ >= kAnswered) {
    sent_ = 0;
    if (small_answered_ && tx_.size != 0) ++tx_.missing;
  }
  if (announced_ != 0 && now - announced_ >= kAnswered) {
    announced_ = 0;
    ++rx_.missing;
  }
}

bool Path::take(const Packet& packet, Nanos now) {
  if (packet.kind == Kind::kAnswer) {
    if (sent_ == 0 || packet.number != number_) return false;
    if (packet.size == 0) {
      small_answered_ = true;
      peer_limit_ = packet.limit;
    } else if (packet.size == tx_.size) {
      sent_ = 0;
      tx_.missing = 0;
      tx_.passed = now;
    }
    return false;
  }
  if (packet.incarnation != peer_incarnation_) {
    peer_incarnation_ = packet.incarnation;
    peer_number_ = 0;
    announced_ = 0;
  }
  if (packet.kind == Kind::kSmall) {
    if (packet.number <= peer_number_) return false;
    if (announced_ != 0) ++rx_.missing;  // the next round has begun without it
    peer_number_ = packet.number;
    if (packet.size != rx_.size) rx_.missing = 0;
    rx_.size = packet.size;
    announced_ = packet.size != 0 ? now : 0;
    return true;
  }
  // The large one of the newest round, once; it may have overtaken the small one.
  const bool awaited = announced_ != 0 && packet.number == peer_number_;
  if (!awaited && packet.number <= peer_number_) return false;
  peer_number_ = packet.number;
  announced_ = 0;
  rx_ = {packet.size, 0, now};
  return true;
}

}  // namespace fabric::prober::mtu
