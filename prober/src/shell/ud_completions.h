// One completion queue of a verbs port, with the device's time stamps where it makes some.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "verbs/library.h"

namespace fabric::prober {

// What of a completion matters here; the status is IBV_WC_SUCCESS where the rest is of use.
struct UdCompletion {
  std::uint64_t id = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::uint32_t length = 0;  // of a received packet, with its GRH
  std::uint32_t source_pair = 0;
  std::uint16_t source_lid = 0;
  bool has_grh = false;
  std::optional<std::uint64_t> ticks;  // of the device's clock (core/device_clock.h)
};

class UdCompletions {
 public:
  explicit UdCompletions(const verbs::Functions& verbs) : verbs_(verbs) {}
  ~UdCompletions() { close(); }
  UdCompletions(const UdCompletions&) = delete;
  UdCompletions& operator=(const UdCompletions&) = delete;

  // `stamped`: with time stamps, if the device will. 0, or the error.
  int open(ibv_context* context, std::size_t entries, ibv_comp_channel* channel, bool stamped);
  // Its queue pair has to be gone.
  void close();

  ibv_cq* queue() const { return queue_; }
  bool stamped() const { return extended_ != nullptr; }
  // How many there were, `out.size()` at most; negative: the device failed.
  int poll(std::span<UdCompletion> out);

 private:
  int poll_stamped(std::span<UdCompletion> out);

  const verbs::Functions& verbs_;
  ibv_cq* queue_ = nullptr;
  ibv_cq_ex* extended_ = nullptr;  // the same
};

}  // namespace fabric::prober
