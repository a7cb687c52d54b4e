// A completion queue, and what a completion says.
//
// Each connection has its own: as large as its send and receive queues together, it cannot
// overflow, and nothing of a connection that is gone is ever read on behalf of the next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "verbs/device.h"

namespace fabric::verbs {

// What a completion's status says about who is at fault.
enum class Fault : std::uint8_t {
  none,     // success
  flushed,  // the queue pair was in ERR already: says nothing by itself
  path,     // the peer's NIC did not answer (or not in time)
  memory,   // a key, an address or a size was refused: another path will refuse it, too
  device,   // the device or the queue pair is broken
};
Fault fault_of(ibv_wc_status status);

struct Completion {
  std::uint64_t id = 0;  // as posted
  ibv_wc_status status = IBV_WC_SUCCESS;
  // Valid on success alone: an error completion has neither an opcode nor an immediate.
  bool has_immediate = false;
  std::uint32_t immediate = 0;  // host order
  std::uint32_t bytes = 0;      // of a receive
};

class CompletionQueue {
 public:
  // With `channel` its events wake whoever polls fd(). Null: `error` says why.
  static std::unique_ptr<CompletionQueue> make(std::shared_ptr<Device> device, int entries,
                                               bool channel, Error& error);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // How many are in `out`; below 0: the queue is broken (overrun, or the device is gone).
  int poll(std::span<Completion> out);
  // The next completion makes fd() readable. Poll once more afterwards: what came before it does
  // not. 0 or an errno.
  int arm();
  // Reads the events that made fd() readable. Whoever arms next gets a new one.
  void drain_events();
  [[nodiscard]] int fd() const;  // -1: without a channel
  [[nodiscard]] ibv_cq* get() const { return cq_; }
  [[nodiscard]] int entries() const { return entries_; }

 private:
  CompletionQueue(std::shared_ptr<Device> device, ibv_comp_channel* channel)
      : device_(std::move(device)), channel_(channel) {}

  std::shared_ptr<Device> device_;
  ibv_comp_channel* channel_;
  ibv_cq* cq_ = nullptr;
  int entries_ = 0;
  unsigned unacknowledged_ = 0;  // events
};

}  // namespace fabric::verbs
