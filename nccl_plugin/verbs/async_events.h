// Asynchronous events of a device, and what they say about its ports.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "verbs/device.h"

namespace fabric::verbs {

inline constexpr std::size_t kMostPorts = 4;  // of a device; events of others are counted alone

// What the events said last. Written by whoever reads them; read by links, in any thread.
class PortHealth {
 public:
  // By number, from 1. A port of which no event came counts as up.
  [[nodiscard]] bool up(std::uint8_t port) const {
    return port > kMostPorts || (down_.load(std::memory_order_acquire) & (1U << port)) == 0;
  }
  void set(std::uint8_t port, bool up) {
    if (port <= kMostPorts) {
      const std::uint32_t bit = 1U << port;
      up ? down_.fetch_and(~bit, std::memory_order_acq_rel)
         : down_.fetch_or(bit, std::memory_order_acq_rel);
    }
  }

 private:
  std::atomic<std::uint32_t> down_{0};
};

// Events since the device was opened.
struct EventCounts {
  std::uint64_t port_down = 0;
  std::uint64_t port_up = 0;
  std::uint64_t address_change = 0;  // GID, LID, P_Key, subnet manager
  std::uint64_t queue_error = 0;     // of a queue pair or completion queue
  std::uint64_t fatal = 0;
  std::uint64_t other = 0;
};

class AsyncEvents {
 public:
  // Makes reading them never wait. `error`: they cannot be read, and read() does nothing.
  AsyncEvents(std::shared_ptr<Device> device, Error& error);

  // Takes and acknowledges all that are there. An event counts for the port that it names. After a
  // fatal one the device is gone. `notes`: one line for each change of a port or device.
  void read(std::string& notes);
  [[nodiscard]] int descriptor() const { return usable_ ? device_->context()->async_fd : -1; }
  [[nodiscard]] const std::shared_ptr<PortHealth>& health() const { return health_; }
  [[nodiscard]] const EventCounts& counts() const { return counts_; }

 private:
  void take(const ibv_async_event& event, std::string& notes);

  std::shared_ptr<Device> device_;
  std::shared_ptr<PortHealth> health_ = std::make_shared<PortHealth>();
  EventCounts counts_;
  bool usable_ = false;
};

}  // namespace fabric::verbs
