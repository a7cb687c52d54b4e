// Both ends of a comm with one-sided paths, for tests of the cores alone.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

#include "core/receive_core.h"
#include "core/send_core.h"

namespace fabric::core::one_sided {

inline constexpr std::uint32_t kChunk = 4096;
inline constexpr PathIndex kPrimary = path_index(0, 0);
inline constexpr PathIndex kOther = path_index(1, 2);
inline constexpr std::uint32_t kPlenty = 64;  // credits

// A comm with memory at both ends. A write is memcpy() to where the sender says.
struct Comm {
  SendCore sender;
  ReceiveCore receiver{kChunk};
  std::vector<std::byte> from = std::vector<std::byte>(40'000);
  std::vector<std::byte> to = std::vector<std::byte>(40'000);

  explicit Comm(CopyPool* pool = nullptr) : sender(kChunk, pool) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = static_cast<std::byte>(i * 31 & 0xff);
    }
  }
  Epoch connect(PathIndex path, std::uint32_t credits = kPlenty) {
    const Epoch epoch = sender.dial(path);
    sender.one_sided(path, credits);
    REQUIRE(receiver.admit(path, epoch, PathKind::one_sided, credits));
    return epoch;
  }
  GroupId receive(std::size_t size, int tag = 0, bool device = false) {
    Buffer buffer;
    buffer.slot.device = device;
    buffer.data = to.data();
    buffer.slot.size = size;
    buffer.slot.where = 0x10000;
    buffer.slot.tag = tag;
    buffer.slot.keys = {100, 101, 102};
    const GroupId group = receiver.post(std::array{buffer});
    while (const auto cts = receiver.next_cts()) {
      sender.on_cts(*cts);
    }
    return group;
  }
  std::vector<Outgoing> take_all(PathIndex path) {
    std::vector<Outgoing> taken;
    while (const auto out = sender.take(path)) {
      taken.push_back(*out);
    }
    return taken;
  }
  void write(const Outgoing& out) {
    std::memcpy(to.data() + (out.where - 0x10000), out.data, out.header.length);
  }
};

inline Landed notice(const Outgoing& out) {
  return {.group = static_cast<std::uint16_t>(out.header.group % kLandedGroups),
          .slot = out.header.slot,
          .chunk = out.chunk,
          .length = out.header.length,
          .last = out.last};
}

}  // namespace fabric::core::one_sided
