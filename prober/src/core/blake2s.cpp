#include "core/blake2s.h"

#include <algorithm>
#include <bit>

namespace fabric::prober {
namespace {

constexpr std::array<std::uint32_t, 8> kIv = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

constexpr std::uint8_t kSigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                         {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                         {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                         {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                         {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                         {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                         {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                         {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                         {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                         {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

std::uint32_t load32(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
         static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
}

}  // namespace

Blake2s::Blake2s(std::span<const std::uint8_t> key, std::size_t digest_size) : h_(kIv) {
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

bool equal_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return false;
  unsigned differ = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned>(a[i] ^ b[i]);
  return differ == 0;
}

}  // namespace fabric::prober
