// Both ends of a comm with two connected paths, for tests of the cores alone.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>

#include "core/receive_core.h"
#include "core/send_core.h"

namespace fabric::core::kit {

constexpr std::uint32_t kChunk = 4096;
constexpr PathIndex kPrimary = path_index(0, 0);
constexpr PathIndex kOther = path_index(1, 1);

struct Pair {
  SendCore sender;
  ReceiveCore receiver;
  std::array<Epoch, kMaxPaths> epoch{};

  explicit Pair(bool eager = true, std::uint32_t chunk = kChunk) : sender(chunk), receiver(chunk) {
    sender.allow_eager(eager);
    receiver.expect_eager(eager);
    for (const PathIndex path : {kPrimary, kOther}) {
      epoch[path] = sender.dial(path);
      receiver.admit(path, epoch[path]);
    }
  }
  Sequence send(const std::string& text, int tag = 0) {
    return sender.post(text.data(), text.size(), tag).value();
  }
  // Carries one chunk over; the verdict says what became of it.
  Verdict carry(PathIndex path, const Outgoing& out) {
    const Placement placement = receiver.begin(path, epoch[path], out.header);
    if (placement.verdict == Verdict::place && out.header.length != 0) {
      std::memcpy(placement.data, out.data, out.header.length);
    }
    if (placement.verdict == Verdict::place || placement.verdict == Verdict::duplicate) {
      receiver.finish(path);
    }
    return placement.verdict;
  }
  Verdict carry(PathIndex path) {
    const auto out = sender.take(path);
    REQUIRE(out);
    const Verdict verdict = carry(path, *out);
    sender.written(path);
    return verdict;
  }
  void carry_all(PathIndex path = kPrimary) {
    while (sender.has_chunk()) {
      carry(path);
    }
  }
  void tell() {
    if (const auto below = receiver.next_done_below()) {
      sender.on_state({*below, {}});
    }
    while (const auto next = receiver.next_acknowledgement()) {
      sender.on_acknowledge(next->group, next->slot);
    }
    while (const auto cts = receiver.next_cts()) {
      sender.on_cts(*cts);
    }
  }
};

inline Buffer buffer(std::string& text, int tag = 0) {
  Buffer made;
  made.data = reinterpret_cast<std::byte*>(text.data());
  made.slot.size = text.size();
  made.slot.tag = tag;
  return made;
}

}  // namespace fabric::core::kit
