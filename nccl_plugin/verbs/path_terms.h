// What one end of a verbs connection tells the other, in the hello and the welcome of its path:
// queue pairs, addresses, and the memory that the other end writes. Pure.
//
// 88 bytes, little-endian, the GID in network order. A decoder takes a longer text of the same
// version and ignores what is behind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "verbs/gid_choice.h"

namespace fabric::verbs {

inline constexpr std::size_t kPathTermsSize = 88;
inline constexpr std::uint8_t kPathTermsVersion = 1;
inline constexpr std::uint32_t kMostQueueEntries = 32768;

// Memory that the peer may write.
struct RemoteMemory {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint32_t entries = 0;  // of what it holds: lines of a ring
  friend bool operator==(const RemoteMemory&, const RemoteMemory&) = default;
};

struct QueuePairTerms {
  std::uint32_t number = 0;  // 24 bits
  std::uint32_t psn = 0;     // 24 bits: the first that this end sends
  friend bool operator==(const QueuePairTerms&, const QueuePairTerms&) = default;
};

struct PathTerms {
  bool ethernet = false;
  std::uint8_t mtu = 0;  // ibv_mtu: 1 (256 bytes) to 5 (4096)
  std::uint16_t lid = 0;
  Gid gid{};
  QueuePairTerms data;
  QueuePairTerms witness;
  // Sender's terms: its ring of CTS lines. Receiver's: the cell that counts lines taken from it.
  RemoteMemory ring;
  // How many chunks this end's receive queue has room for.
  std::uint32_t receive_entries = 0;
  // The P_Key, in host order: both ends have to mean the same partition.
  std::uint16_t pkey = 0;
  // 0 to 15, and how many READs this end answers at a time: for flushes of GPU memory.
  std::uint8_t reads = 0;
  friend bool operator==(const PathTerms&, const PathTerms&) = default;
};

std::array<std::byte, kPathTermsSize> encode(const PathTerms& terms);
// nullopt: too short, of another version, or a value that no peer of ours says.
std::optional<PathTerms> decode_path_terms(std::span<const std::byte> bytes);

// Can these two ends form a connection? Empty, or the reason why not.
std::string mismatch(const PathTerms& ours, const PathTerms& theirs);

}  // namespace fabric::verbs
