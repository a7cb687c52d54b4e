#include "verbs/flush_pair.h"

#include <array>

namespace fabric::verbs {

namespace {

constexpr QueueDepths kDepths{2, 1, 0};

}  // namespace

std::unique_ptr<FlushPair> FlushPair::make(RailPort& port, Error& error) {
  auto reading = port.read(error);
  if (!reading) {
    return nullptr;
  }
  const auto& device = port.device();
  std::unique_ptr<FlushPair> made(new FlushPair);
  made->device_ = device;
  made->memory_ = PeerMemory::make(device, 1, error);
  if (made->memory_ == nullptr) {
    return nullptr;
  }
  made->queue_ =
      CompletionQueue::make(device, static_cast<int>(kDepths.send + kDepths.receive), false, error);
  if (made->queue_ == nullptr) {
    return nullptr;
  }
  made->pair_ = QueuePair::make(device, *made->queue_, kDepths, error);
  if (made->pair_ == nullptr) {
    return nullptr;
  }
  reading->terms.data = {made->pair_->number(), 0};
  const bool ready = made->pair_->to_init(reading->settings, error) &&
                     made->pair_->to_rtr(reading->settings, reading->terms, reading->terms,
                                         reading->terms.data, error) &&
                     made->pair_->to_rts(reading->settings, 0, error);
  return ready ? std::move(made) : nullptr;
}

FlushPair::~FlushPair() {
  // A READ of a queue pair that the device keeps may still write to the memory.
  if (pair_ != nullptr && !pair_->destroy()) {
    static_cast<void>(memory_.release());
  }
}

bool FlushPair::start(std::uint64_t address, std::uint32_t key) {
  if (failed_ || pair_->sends_outstanding() != 0) {
    return false;
  }
  failed_ = pair_->post_read(memory_->bytes().data(), 1, memory_->local_key(), address, key) !=
            Posted::done;
  return !failed_;
}

Flush FlushPair::poll() {
  std::array<Completion, 1> found{};
  const int count = failed_ ? 0 : queue_->poll(found);
  if (count == 0) {
    return failed_ ? Flush::failed : pair_->sends_outstanding() == 0 ? Flush::idle : Flush::pending;
  }
  failed_ = count < 0 || !valid(found[0]);
  return failed_ ? Flush::failed : Flush::done;
}

bool FlushPair::valid(const Completion& completion) {
  status_ = completion.status;
  return pair_->completed(completion.id) && status_ == IBV_WC_SUCCESS;
}

std::string FlushPair::why() const {
  if (pair_->last_error() != 0) {
    return verbs::failed("ibv_post_send", device_->name(), pair_->last_error()).text;
  }
  const std::string on = "READ on " + device_->name() + ": ";
  return on + (status_ == IBV_WC_SUCCESS ? "the completion queue is broken"
                                         : device_->verbs().wc_status_str(status_));
}

}  // namespace fabric::verbs
