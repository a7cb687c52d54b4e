#include "core/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/blake2s_lanes.h"

namespace fabric::prober {
namespace {

constexpr std::size_t kClockMessageAt = 132;
constexpr std::array<std::uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

template <typename T>
void put(WireBytes& out, std::size_t at, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(out.data() + at, &bits, sizeof bits);
    return;
  }
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out[at + i] = static_cast<std::uint8_t>(bits >> (8 * i));
}

template <typename T>
T get(std::span<const std::uint8_t> in, std::size_t at) {
  if constexpr (std::endian::native == std::endian::little) {
    T value;
    std::memcpy(&value, in.data() + at, sizeof value);
    return value;
  }
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bits |= static_cast<std::uint64_t>(in[at + i]) << (8 * i);
  return static_cast<T>(bits);
}

static_assert(TagText::kBody == kWireBody);

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string_view trim(std::string_view s) {
  const auto first = s.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

PseudoHeader pseudo_header(const Address& source, const Address& destination) {
  PseudoHeader out{};
  std::size_t at = 0;
  for (const Address* a : {&source, &destination}) {
    std::copy(a->ip.begin(), a->ip.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
    out[at + 16] = static_cast<std::uint8_t>(a->port & 0xff);
    out[at + 17] = static_cast<std::uint8_t>(a->port >> 8);
    at += 18;
  }
  return out;
}

bool Address::is_v4() const {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), ip.begin());
}

Keyring::Keyring(std::span<const Key> keys) {
  for (const Key& key : keys) keys_.emplace_back(key);
}

Tag Keyring::sign(std::span<const std::uint8_t> head, std::span<const std::uint8_t> body) const {
  return keys_.front().tag(head, body);
}

bool Keyring::verify(std::span<const std::uint8_t> head, std::span<const std::uint8_t> body,
                     std::span<const std::uint8_t> tag) const {
  return std::any_of(keys_.begin(), keys_.end(), [&](const TagKey& key) {
    return equal_constant_time(key.tag(head, body), tag);
  });
}

std::optional<std::vector<Key>> parse_keys(std::string_view text, std::string& error) {
  std::vector<Key> keys;
  int line_number = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = trim(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    ++line_number;
    if (line.empty() || line.front() == '#') continue;
    Key key{};
    bool good = line.size() == 2 * kKeySize;
    for (std::size_t i = 0; good && i < kKeySize; ++i) {
      const int high = hex_digit(line[2 * i]);
      const int low = hex_digit(line[2 * i + 1]);
      good = high >= 0 && low >= 0;
      key[i] = static_cast<std::uint8_t>(high * 16 + low);
    }
    if (!good) {
      error = "line " + std::to_string(line_number) + ": a key is 64 hexadecimal digits";
      return std::nullopt;
    }
    keys.push_back(key);
  }
  if (keys.empty()) {
    error = "no key in it";
    return std::nullopt;
  }
  return keys;
}

void Keyring::sign_all(std::span<const TagText* const> texts, std::span<Tag> tags) const {
  keys_.front().tags(texts, tags);
}

void Keyring::verify_all(std::span<const TagText* const> texts, std::span<const Tag> tags,
                         std::span<std::uint8_t> good) const {
  std::array<Tag, blake2s::kLanes> own{};
  for (std::size_t at = 0; at < texts.size(); at += own.size()) {
    const auto some = texts.subspan(at, std::min(own.size(), texts.size() - at));
    bool all = false;
    for (auto key = keys_.begin(); !all && key != keys_.end(); ++key) {
      key->tags(some, own);
      all = true;
      for (std::size_t i = 0; i < some.size(); ++i) {
        if (equal_constant_time(own[i], tags[at + i])) good[at + i] = 1;
        all = all && good[at + i] != 0;
      }
    }
  }
}

WireBytes encode_untagged(const Packet& p) {
  WireBytes out{};
  put(out, 0, kWireMagic);
  put(out, 4, kWireVersion);
  put(out, 5, p.flags);
  put(out, 6, static_cast<std::uint16_t>(kWireSize));
  put(out, 8, p.host_id);
  put(out, 12, p.path);
  put(out, 16, p.incarnation);
  put(out, 24, p.challenge);
  put(out, 32, p.response);
  put(out, 40, p.peer_incarnation);
  put(out, 48, p.seq);
  put(out, 56, p.tx_ref_seq);
  put(out, 64, p.tx_ref_stamp);
  put(out, 72, p.rx_ref_seq);
  put(out, 80, p.rx_ref_stamp);
  put(out, 88, p.rx_max);
  put(out, 96, p.rx_bitmap);
  put(out, 104, p.rx_lost);
  put(out, 108, p.rx_missed);
  put(out, 112, p.rx_silent_us);
  put(out, 116, p.interval_us);
  put(out, 120, p.due_time);
  put(out, 128, p.awake_us);
  for (std::size_t i = 0; i < p.clock_message.size(); ++i)
    put(out, kClockMessageAt + 8 * i, p.clock_message[i]);
  put(out, 164, p.next_due);
  put(out, 168, p.peer_report);
  return out;
}

void put_tag(WireBytes& bytes, const Tag& tag) {
  std::copy(tag.begin(), tag.end(), bytes.begin() + kWireBody);
}

Tag tag_of(std::span<const std::uint8_t> bytes) {
  Tag out{};
  std::copy_n(bytes.begin() + kWireBody, out.size(), out.begin());
  return out;
}

TagText tag_text(std::span<const std::uint8_t> bytes, const Address& source,
                 const Address& destination) {
  TagText out;
  const PseudoHeader head = pseudo_header(source, destination);
  std::copy(head.begin(), head.end(), out.bytes.begin());
  std::copy_n(bytes.begin(), TagText::kBody, out.bytes.begin() + TagText::kHead);
  return out;
}

WireBytes encode(const Packet& p, const Keyring& keys, const Address& source,
                 const Address& destination) {
  WireBytes out = encode_untagged(p);
  const std::span<const std::uint8_t> body(out.data(), kWireBody);
  put_tag(out, keys.sign(pseudo_header(source, destination), body));
  return out;
}

WireError check_shape(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < 8) return WireError::kShort;
  if (get<std::uint32_t>(bytes, 0) != kWireMagic) return WireError::kMagic;
  if (get<std::uint8_t>(bytes, 4) != kWireVersion) return WireError::kVersion;
  if (bytes.size() != kWireSize || get<std::uint16_t>(bytes, 6) != kWireSize) {
    return WireError::kShort;
  }
  return WireError::kNone;
}

WireError decode(std::span<const std::uint8_t> bytes, const Keyring& keys, const Address& source,
                 const Address& destination, Packet& p) {
  if (const WireError shape = check_shape(bytes); shape != WireError::kNone) return shape;
  if (!keys.verify(pseudo_header(source, destination), bytes.first(kWireBody),
                   bytes.subspan(kWireBody))) {
    return WireError::kAuth;
  }
  return decode_unauthenticated(bytes, p);
}

WireError decode_unauthenticated(std::span<const std::uint8_t> bytes, Packet& p) {
  if (const WireError shape = check_shape(bytes); shape != WireError::kNone) return shape;
  p.flags = get<std::uint8_t>(bytes, 5);
  p.host_id = get<std::uint32_t>(bytes, 8);
  p.path = get<std::uint32_t>(bytes, 12);
  p.incarnation = get<std::uint64_t>(bytes, 16);
  p.challenge = get<std::uint64_t>(bytes, 24);
  p.response = get<std::uint64_t>(bytes, 32);
  p.peer_incarnation = get<std::uint64_t>(bytes, 40);
  p.seq = get<std::uint64_t>(bytes, 48);
  p.tx_ref_seq = get<std::uint64_t>(bytes, 56);
  p.tx_ref_stamp = get<std::int64_t>(bytes, 64);
  p.rx_ref_seq = get<std::uint64_t>(bytes, 72);
  p.rx_ref_stamp = get<std::int64_t>(bytes, 80);
  p.rx_max = get<std::uint64_t>(bytes, 88);
  p.rx_bitmap = get<std::uint64_t>(bytes, 96);
  p.rx_lost = get<std::uint32_t>(bytes, 104);
  p.rx_missed = get<std::uint32_t>(bytes, 108);
  p.rx_silent_us = get<std::uint32_t>(bytes, 112);
  p.interval_us = get<std::uint32_t>(bytes, 116);
  p.due_time = get<std::int64_t>(bytes, 120);
  p.awake_us = get<std::uint32_t>(bytes, 128);
  for (std::size_t i = 0; i < p.clock_message.size(); ++i) {
    p.clock_message[i] = get<std::uint64_t>(bytes, kClockMessageAt + 8 * i);
  }
  p.next_due = get<std::uint32_t>(bytes, 164);
  p.peer_report = get<std::uint64_t>(bytes, 168);
  return WireError::kNone;
}

std::optional<OwnPacket> identify_own(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kWireSize) return std::nullopt;
  // The packet is the last thing in the frame: whatever headers there are come before it.
  const auto p = bytes.last(kWireSize);
  if (get<std::uint32_t>(p, 0) != kWireMagic || get<std::uint8_t>(p, 4) != kWireVersion) {
    return std::nullopt;
  }
  return OwnPacket{get<std::uint64_t>(p, 16), get<std::uint32_t>(p, 12), get<std::uint64_t>(p, 48)};
}

}  // namespace fabric::prober
