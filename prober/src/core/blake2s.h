// Keyed BLAKE2s (RFC 7693) with a 16-byte digest: the tag of a probe packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fabric::prober {

inline constexpr std::size_t kKeySize = 32;
inline constexpr std::size_t kTagSize = 16;
using Key = std::array<std::uint8_t, kKeySize>;
using Tag = std::array<std::uint8_t, kTagSize>;

// Incremental; `digest_size` 1..32, key 0..32 bytes.
class Blake2s {
 public:
  Blake2s(std::span<const std::uint8_t> key, std::size_t digest_size);
  void update(std::span<const std::uint8_t> data);
  // Absorbs what is there if it fills a block. The promise: at least a byte follows.
  void more_follows();
  // Ends the computation; the object is spent afterwards.
  std::array<std::uint8_t, 32> finish();

 private:
  friend class TagKey;
  void compress(bool last);

  std::array<std::uint32_t, 8> h_;
  std::array<std::uint8_t, 64> block_{};
  std::size_t fill_ = 0;
  std::uint64_t total_ = 0;
};

// What a probe's tag is made of: the pseudo-header and the packet without its tag, with zeros up to
// a whole block.
struct TagText {
  static constexpr std::size_t kHead = 36;
  static constexpr std::size_t kBody = 176;
  static constexpr std::size_t kSize = kHead + kBody;
  std::array<std::uint8_t, 256> bytes{};
  std::span<const std::uint8_t> head() const { return {bytes.data(), kHead}; }
  std::span<const std::uint8_t> body() const { return {bytes.data() + kHead, kBody}; }
};

// A key with its first block already absorbed.
class TagKey {
 public:
  explicit TagKey(const Key& key);
  // Head and body are not both empty.
  Tag tag(std::span<const std::uint8_t> head, std::span<const std::uint8_t> body) const;
  // Of each text, eight at a time.
  void tags(std::span<const TagText* const> texts, std::span<Tag> out) const;

 private:
  // Fewer are sooner done one by one.
  static constexpr std::size_t kWorthLanes = 3;
  Blake2s start_;
};

// Takes the same time wherever the two differ.
bool equal_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

}  // namespace fabric::prober
