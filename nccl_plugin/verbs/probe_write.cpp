#include "verbs/probe_write.h"

#include <array>

namespace fabric::verbs {

namespace {

constexpr std::uint32_t kDepth = 2;

}  // namespace

std::unique_ptr<ProbeWrite> ProbeWrite::make(std::shared_ptr<Device> device, Error& error) {
  auto queue = CompletionQueue::make(device, kDepth + 1, false, error);
  if (queue == nullptr) {
    return nullptr;
  }
  auto pair = QueuePair::make(std::move(device), *queue, {kDepth, 1, 0}, error);
  return pair == nullptr
             ? nullptr
             : std::unique_ptr<ProbeWrite>(new ProbeWrite(std::move(queue), std::move(pair)));
}

bool ProbeWrite::connect(const PathSettings& settings, const PathTerms& ours,
                         const PathTerms& theirs, Error& error) {
  address_ = theirs.ring.address;
  key_ = theirs.ring.key;
  return pair_->to_init(settings, error) &&
         pair_->to_rtr(settings, ours, theirs, theirs.witness, error) &&
         pair_->to_rts(settings, ours.witness.psn, error);
}

void ProbeWrite::send() {
  if (pair_->sends_outstanding() == 0 && !failed()) {
    pair_->post_write({nullptr, 0, 0, address_, key_, std::nullopt});
  }
}

void ProbeWrite::poll(std::int64_t now) {
  std::array<Completion, kDepth> found{};
  const int count = broken_ ? 0 : queue_->poll(found);
  broken_ = broken_ || count < 0;
  for (int i = 0; i < count; ++i) {
    const Completion& completion = found[static_cast<std::size_t>(i)];
    if (!pair_->completed(completion.id) || completion.status != IBV_WC_SUCCESS) {
      broken_ = true;
    } else {
      answered_at_ = now;
    }
  }
}

}  // namespace fabric::verbs
