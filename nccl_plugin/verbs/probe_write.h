// The witness of a path: an empty RDMA WRITE on a queue pair of its own, over the same rail and
// service level. It says whether the path or only the connection is stuck: the NIC's own timers
// cannot be trusted with that (some take 7 retries for "for ever").
#pragma once

#include <cstdint>
#include <memory>

#include "verbs/queue_pair.h"

namespace fabric::verbs {

class ProbeWrite {
 public:
  // Null: `error` says why.
  static std::unique_ptr<ProbeWrite> make(std::shared_ptr<Device> device, Error& error);

  bool connect(const PathSettings& settings, const PathTerms& ours, const PathTerms& theirs,
               Error& error);
  [[nodiscard]] QueuePairTerms terms(std::uint32_t psn) const { return {pair_->number(), psn}; }

  // Sends one, unless one is on its way or the path has none any more.
  void send();
  // Looks for the answer. `now`: ns.
  void poll(std::int64_t now);
  // When the last one was answered, ns; 0: never.
  [[nodiscard]] std::int64_t answered_at() const { return answered_at_; }
  [[nodiscard]] bool failed() const { return pair_->failed() || broken_; }
  // Ends it. True: nothing of it is left in the device.
  bool end() { return pair_->destroy(); }

 private:
  ProbeWrite(std::unique_ptr<CompletionQueue> queue, std::unique_ptr<QueuePair> pair)
      : queue_(std::move(queue)), pair_(std::move(pair)) {}

  std::unique_ptr<CompletionQueue> queue_;  // outlives the pair
  std::unique_ptr<QueuePair> pair_;
  std::uint64_t address_ = 0;
  std::uint32_t key_ = 0;
  std::int64_t answered_at_ = 0;
  bool broken_ = false;
};

}  // namespace fabric::verbs
