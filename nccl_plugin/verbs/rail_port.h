// The port over which a rail speaks verbs, and what a dial needs to know of it. All of it is read
// again at each dial: a GID moves after a flap, a P_Key with the subnet manager's mind.
#pragma once

#include <optional>

#include "verbs/async_events.h"
#include "verbs/port.h"
#include "verbs/queue_pair.h"

namespace fabric::verbs {

class RailPort {
 public:
  // `settings`: the packets of all its connections; what is of the port itself is overwritten.
  RailPort(std::shared_ptr<Device> device, std::uint8_t port, GidRules rules, PathSettings settings)
      : device_(std::move(device)), rules_(rules), settings_(settings) {
    settings_.port = port;
  }

  struct Reading {
    PathSettings settings;
    PathTerms terms;  // without queue pairs and memory
  };
  // As the port is now. nullopt: it is not active, has no usable address, or does not answer;
  // `error` says which. Try again: all of them pass.
  std::optional<Reading> read(Error& error);

  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }
  [[nodiscard]] std::uint8_t port() const { return settings_.port; }
  // What the events of its device say. Null: nobody reads them.
  void set_health(std::shared_ptr<const PortHealth> health) { health_ = std::move(health); }
  [[nodiscard]] const std::shared_ptr<const PortHealth>& health() const { return health_; }
  // The rail's own address, as it is now.
  void set_address(const Gid& address) { rules_.address = address; }

 private:
  std::shared_ptr<Device> device_;
  GidRules rules_;
  PathSettings settings_;
  std::shared_ptr<const PortHealth> health_;
  std::uint16_t pkey_ = 0;  // of the first reading; 0: none yet
};

}  // namespace fabric::verbs
