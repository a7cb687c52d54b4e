#include "verbs/completion_queue.h"

#include <endian.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "src/descriptors.h"

namespace fabric::verbs {

Fault fault_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return Fault::none;
    case IBV_WC_WR_FLUSH_ERR:
      return Fault::flushed;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ABORT_ERR:
    // The peer's queue pair has failed, or is not yet or no longer there.
    case IBV_WC_REM_OP_ERR:
    // What rxe says on a 6.1 kernel when its own interface is down.
    case IBV_WC_LOC_QP_OP_ERR:
      return Fault::path;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_MW_BIND_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_ACCESS_ERR:
      return Fault::memory;
    default:
      return Fault::device;
  }
}

std::unique_ptr<CompletionQueue> CompletionQueue::make(std::shared_ptr<Device> device, int entries,
                                                       bool channel, Error& error) {
  const Functions& verbs = device->verbs();
  ibv_comp_channel* events = nullptr;
  if (channel) {
    {
      const ForkLock lock;
      events = verbs.create_comp_channel(device->context());
      if (events != nullptr) {
        hold_descriptor(events->fd);
      }
    }
    if (events == nullptr) {
      error = failed("ibv_create_comp_channel", device->name(), errno);
      return nullptr;
    }
  }
  // From here on its destructor cleans up.
  std::unique_ptr<CompletionQueue> made(new CompletionQueue(std::move(device), events));
  if (events != nullptr) {
    const int flags = ::fcntl(events->fd, F_GETFL);
    if (flags < 0 || ::fcntl(events->fd, F_SETFL, flags | O_NONBLOCK) < 0) {
      error = failed("fcntl of a completion channel", made->device_->name(), errno);
      return nullptr;
    }
  }
  made->cq_ = verbs.create_cq(made->device_->context(), entries, nullptr, events, 0);
  if (made->cq_ == nullptr) {
    error = failed("ibv_create_cq", made->device_->name(), errno);
    return nullptr;
  }
  made->entries_ = made->cq_->cqe;
  return made;
}

CompletionQueue::~CompletionQueue() {
  const Functions& verbs = device_->verbs();
  if (cq_ != nullptr) {
    drain_events();
    if (unacknowledged_ != 0) {
      verbs.ack_cq_events(cq_, unacknowledged_);
    }
    if (!device_->destroyed(verbs.destroy_cq(cq_))) {
      return;  // it still uses the channel
    }
  }
  if (channel_ != nullptr) {
    let_descriptor_go(channel_->fd);
    device_->destroyed(verbs.destroy_comp_channel(channel_));
  }
}

int CompletionQueue::poll(std::span<Completion> out) {
  std::array<ibv_wc, 16> found{};
  const int most = static_cast<int>(std::min(out.size(), found.size()));
  const int count = device_->verbs().poll_cq(cq_, most, found.data());
  for (int i = 0; i < count; ++i) {
    const ibv_wc& wc = found[static_cast<std::size_t>(i)];
    Completion& completion = out[static_cast<std::size_t>(i)];
    completion = {wc.wr_id, wc.status};
    if (wc.status == IBV_WC_SUCCESS) {
      completion.has_immediate = (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
      completion.immediate = completion.has_immediate ? be32toh(wc.imm_data) : 0;
      completion.bytes = wc.byte_len;
    }
  }
  return count;
}

int CompletionQueue::arm() { return device_->verbs().req_notify_cq(cq_, 0); }

void CompletionQueue::drain_events() {
  constexpr unsigned kAcknowledgeAt = 256;  // each call takes a lock of the library
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  while (channel_ != nullptr && device_->verbs().get_cq_event(channel_, &cq, &user) == 0) {
    ++unacknowledged_;
  }
  if (unacknowledged_ >= kAcknowledgeAt) {
    device_->verbs().ack_cq_events(cq_, unacknowledged_);
    unacknowledged_ = 0;
  }
}

int CompletionQueue::fd() const { return channel_ == nullptr ? -1 : channel_->fd; }

}  // namespace fabric::verbs
