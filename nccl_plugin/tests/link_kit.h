// Links that do nothing of themselves, for tests of Sender and Receiver that play what they need.
#pragma once

#include "core/schedule.h"
#include "host/context.h"
#include "host/link.h"

namespace fabric::host::test {

inline constexpr core::PathIndex kPrimary = core::path_index(0, 0);
inline constexpr std::uint64_t kId = 7;
inline constexpr std::uint32_t kChunk = 4096;

class IdleOut : public LinkOut {
 public:
  void advance(SendProgress&) override {}
  void start_validation() override {}
  std::optional<core::PathSample> sample() override { return std::nullopt; }
  [[nodiscard]] std::size_t backlog() const override { return 0; }
  void limit_unsent(std::size_t) override {}
  [[nodiscard]] int descriptor() const override { return -1; }
  void close() override {}
  void discard() override {}
};

class IdleIn : public LinkIn {
 public:
  [[nodiscard]] bool pending() const override { return false; }
  [[nodiscard]] bool ended() const override { return false; }
  [[nodiscard]] bool in_chunk() const override { return false; }
  void answer(core::ReceiveCore& core, ReceiveProgress&) override { core.clear_output(); }
  bool send_state(const core::ReceiverState&, ReceiveProgress&) override { return true; }
  void flush(ReceiveProgress&) override {}
  [[nodiscard]] bool unsent() const override { return false; }
  void acknowledge() override {}
  std::optional<core::PathSample> sample() override { return std::nullopt; }
  [[nodiscard]] std::size_t backlog() const override { return 0; }
  void tick() override {}
  [[nodiscard]] int descriptor() const override { return -1; }
  void close(const core::ReceiverState&) override {}
  void discard() override {}
};

// The peer answers, and nothing is amiss.
inline PeerFacts facts_now() {
  PeerFacts facts;
  facts.version = kWireVersion;
  facts.base = facts.control_live = core::bit(kPrimary);
  facts.weight.fill(core::kFullWeight);
  facts.rdma.weight.fill(core::kFullWeight);
  return facts;
}

}  // namespace fabric::host::test
