// The ring of CTS lines: 64-byte lines (verbs/cts_line.h) that the receiver writes by RDMA into the
// sender's memory, each behind the other. Pure.
//
// The receiver keeps the same ring in memory of its own, from which its NIC reads. The sender
// learns how many lines were written by the immediate of the write that follows them, so it never
// reads a line too early. The receiver overwrites a line when its group is done: then the sender
// has read it, or has learned of that group otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/fifo.h"
#include "core/receive_core.h"
#include "verbs/cts_line.h"

namespace fabric::verbs {

// Of a ring; a power of two. NCCL has 32 receives of 8 slots under way at most.
inline constexpr std::uint32_t kRingLines = 512;

// The receiver's end.
class CtsWriter {
 public:
  // `lines`: kRingLines * kLineSize bytes.
  explicit CtsWriter(std::span<std::byte> lines) : lines_(lines) {}

  // Lines that may be written now.
  [[nodiscard]] std::uint32_t room(const core::ReceiveCore& core);
  // There has to be room for its slots. Throws std::length_error without, and for a slot beyond
  // kCtsSizeMax.
  void put(const core::Cts& cts);

  // Lines one behind the other in the ring that were put and not taken by next_run() yet.
  struct Run {
    std::uint32_t first = 0;  // index in the ring
    std::uint32_t count = 0;
  };
  std::optional<Run> next_run();
  // How many runs next_run() will give.
  [[nodiscard]] std::uint32_t runs() const;
  // Lines that were put so far; wraps.
  [[nodiscard]] std::uint32_t written() const { return written_; }

 private:
  struct Posted {
    core::GroupId group = 0;
    std::uint32_t lines = 0;
  };

  std::span<std::byte> lines_;
  std::uint32_t written_ = 0;
  std::uint32_t taken_ = 0;
  std::uint32_t held_ = 0;  // lines of `posted_`
  core::Fifo<Posted> posted_;
};

// The sender's end.
class CtsReader {
 public:
  // `lines`: kRingLines * kLineSize bytes, which the peer writes.
  explicit CtsReader(std::span<const std::byte> lines) : lines_(lines) {}

  // The peer has written `written` lines so far (modulo 2^32). Hands each group that is complete to
  // `on_cts(core::Cts)`. False: what is there is no CTS line.
  template <typename F>
  bool read(std::uint32_t written, F&& on_cts) {
    if (written - read_ > kRingLines) {
      // The writer was round once more; what it overwrote belonged to groups that are done.
      read_ = written - kRingLines;
      partial_ = {};
    }
    for (; read_ != written; ++read_) {
      const std::size_t at = std::size_t{read_ % kRingLines} * kLineSize;
      const auto cts = decode_cts(read_line(lines_.subspan(at).first<kLineSize>()));
      if (!cts) {
        return false;
      }
      if (add(*cts)) {
        on_cts(partial_);
        partial_ = {};
      }
    }
    return true;
  }

 private:
  // Is the group complete by it? Lines of another group than the one begun are dropped: see read().
  bool add(const CtsLine& cts);

  std::span<const std::byte> lines_;
  std::uint32_t read_ = 0;
  core::Cts partial_;
  std::uint8_t have_ = 0;  // slots of it
};

}  // namespace fabric::verbs
