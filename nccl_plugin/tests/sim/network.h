// What is on its way in the simulator, and the two ends of each path.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "core/receive_core.h"
#include "core/send_core.h"

namespace fabric::sim {

struct Packet {
  core::Epoch epoch = 0;
  core::ChunkHeader header;
  std::vector<std::byte> payload;
};

// Receiver to sender.
using Answer = std::variant<core::Grant, core::Acknowledgement, core::ReceiverState>;

struct Control {  // a fence, or its answer: may be lost, repeated, and late without bound
  bool to_receiver = true;
  bool unasked = false;  // the receiver answers before it is asked
  core::PathIndex path = 0;
  core::Epoch epoch = 0;
  core::ReceiverState state;
};

struct Arriving {
  Packet packet;
  std::byte* data = nullptr;  // where the bytes go; none: swallowed
};

struct Leaving {
  core::Outgoing chunk;  // its bytes belong to the core or the caller, and are read twice:
  std::vector<std::byte> payload;  // when the transport took it, and when it is done with it
};

struct Path {
  bool sender_live = false;
  bool receiver_live = false;
  bool telling = false;  // the receiver gave it up and says so until a fence comes
  bool cut = false;      // nothing passes, and nobody knows
  bool refused = false;  // nothing passes, and whoever tries is told
  core::Epoch epoch = 0;
  core::Epoch floor = 0;            // what the receiver promised: nothing below is admitted
  std::vector<core::Epoch> hellos;  // that may arrive late, and twice
  std::int64_t sender_since = 0;    // since when each end has its connection
  std::int64_t receiver_since = 0;
  std::optional<Leaving> leaving;
  std::optional<Arriving> arriving;  // the first half of it is there
  std::deque<Packet> wire;           // in order, as a connection keeps it
  std::deque<Answer> back;
  std::vector<Packet> old;  // of retired connections: may turn up at any time

  [[nodiscard]] bool dead() const { return cut || refused; }
};

}  // namespace fabric::sim
