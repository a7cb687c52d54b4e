// Remembers, by buffer, over which rails the data of a comm's latest receives landed. A flush reads
// through these NICs and no others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "src/net.h"

namespace fabric::host {

class LandedBuffers {
 public:
  // So many buffers are remembered: all receives that one comm may have under way.
  static constexpr std::size_t kMost = std::size_t{kMaxRequests} * kMaxGroupedReceives;

  // A receive into `size` bytes at `data` is done. `rails`: a bit for each rail; 0: no NIC wrote by
  // itself. The oldest receive is forgotten.
  void note(const void* data, std::size_t size, std::uint64_t rails);
  // The rails that have to be flushed for all of `ranges`. `all`: the answer when one of them is
  // not remembered. An empty range needs none.
  [[nodiscard]] std::uint64_t rails_of(std::span<const FlushRange> ranges, std::uint64_t all) const;

 private:
  struct Landed {
    const void* data = nullptr;
    std::size_t size = 0;
    std::uint64_t rails = 0;
  };
  [[nodiscard]] std::optional<std::uint64_t> find(const FlushRange& range) const;

  std::array<Landed, kMost> latest_{};
  std::size_t next_ = 0;  // where the next one goes: the oldest is there
};

}  // namespace fabric::host
