#include "core/blake2s.h"

#include <algorithm>
#include <bit>

#include "core/blake2s_lanes.h"
#include "core/blake2s_tables.h"

namespace fabric::prober {
namespace {

using blake2s::kIv;
using blake2s::kSigma;

std::uint32_t load32(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
         static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
}

}  // namespace

Blake2s::Blake2s(std::span<const std::uint8_t> key, std::size_t digest_size) {
  std::copy(std::begin(kIv), std::end(kIv), h_.begin());
  h_[0] ^= 0x01010000U ^ static_cast<std::uint32_t>(key.size() << 8) ^
           static_cast<std::uint32_t>(digest_size);
  if (!key.empty()) {
    std::copy(key.begin(), key.end(), block_.begin());
    fill_ = block_.size();
  }
}

void Blake2s::compress(bool last) {
  std::array<std::uint32_t, 16> v{};
  std::array<std::uint32_t, 16> m{};
  for (std::size_t i = 0; i < 8; ++i) {
    v[i] = h_[i];
    v[i + 8] = kIv[i];
  }
  v[12] ^= static_cast<std::uint32_t>(total_);
  v[13] ^= static_cast<std::uint32_t>(total_ >> 32);
  if (last) v[14] = ~v[14];
  for (std::size_t i = 0; i < 16; ++i) m[i] = load32(block_.data() + 4 * i);
  const auto mix = [&](std::size_t a, std::size_t b, std::size_t c, std::size_t d, std::uint32_t x,
                       std::uint32_t y) __attribute__((always_inline)) {
    v[a] = v[a] + v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] = v[c] + v[d];
    v[b] = std::rotr(v[b] ^ v[c], 12);
    v[a] = v[a] + v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 8);
    v[c] = v[c] + v[d];
    v[b] = std::rotr(v[b] ^ v[c], 7);
  };
#pragma GCC unroll 10  // with all indices known, most of the state stays in registers
  for (const auto& s : kSigma) {
    mix(0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (std::size_t i = 0; i < 8; ++i) h_[i] ^= v[i] ^ v[i + 8];
}

void Blake2s::more_follows() {
  if (fill_ != block_.size()) return;
  total_ += block_.size();
  compress(false);
  fill_ = 0;
}

void Blake2s::update(std::span<const std::uint8_t> data) {
  while (!data.empty()) {
    // A full block is compressed only when more follows: the last one needs the final flag.
    more_follows();
    const std::size_t take = std::min(block_.size() - fill_, data.size());
    std::copy_n(data.begin(), take, block_.begin() + static_cast<std::ptrdiff_t>(fill_));
    fill_ += take;
    data = data.subspan(take);
  }
}

std::array<std::uint8_t, 32> Blake2s::finish() {
  total_ += fill_;
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(fill_), block_.end(), std::uint8_t{0});
  compress(true);
  std::array<std::uint8_t, 32> out{};
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t b = 0; b < 4; ++b) {
      out[4 * i + b] = static_cast<std::uint8_t>(h_[i] >> (8 * b));
    }
  }
  return out;
}

TagKey::TagKey(const Key& key) : start_(key, kTagSize) { start_.more_follows(); }

Tag TagKey::tag(std::span<const std::uint8_t> head, std::span<const std::uint8_t> body) const {
  Blake2s hash = start_;
  hash.update(head);
  hash.update(body);
  const auto digest = hash.finish();
  Tag out{};
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

void TagKey::tags(std::span<const TagText* const> texts, std::span<Tag> out) const {
  while (!texts.empty()) {
    const std::size_t count = std::min(texts.size(), blake2s::kLanes);
    if (count < kWorthLanes) {
      for (std::size_t i = 0; i < count; ++i) out[i] = tag(texts[i]->head(), texts[i]->body());
    } else {
      std::array<const std::uint8_t*, blake2s::kLanes> messages{};
      for (std::size_t i = 0; i < messages.size(); ++i) {
        messages[i] = texts[i < count ? i : 0]->bytes.data();
      }
      std::uint32_t words[8][blake2s::kLanes];
      blake2s::hash_lanes(start_.h_.data(), start_.total_, messages.data(), TagText::kSize, words);
      for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t at = 0; at < kTagSize; ++at) {
          out[i][at] = static_cast<std::uint8_t>(words[at / 4][i] >> (8 * (at % 4)));
        }
      }
    }
    texts = texts.subspan(count);
    out = out.subspan(count);
  }
}

bool equal_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return false;
  unsigned differ = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned>(a[i] ^ b[i]);
  return differ == 0;
}

}  // namespace fabric::prober
