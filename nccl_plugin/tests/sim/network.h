// What is on its way in the simulator, and the two ends of each path.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/receive_core.h"
#include "core/send_core.h"
#include "verbs/line.h"

namespace fabric::sim {

struct Packet {
  core::Epoch epoch = 0;
  core::ChunkHeader header;
  std::vector<std::byte> payload;
  bool again = false;  // it had been sent before, over a path that failed
};

// Receiver to sender. Lines go over one-sided connections: those of a CTS, or one of progress.
using Lines = std::vector<verbs::Line>;
using Answer =
    std::variant<core::Cts, core::Acknowledgement, core::ReceiverState, Lines, verbs::Line>;

// A write that the sender's NIC was given. It reads the source, and lands in any order, in parts
// and again, until its notification is there; a completion tells the sender of that.
struct Write {
  core::Outgoing chunk;
  core::Epoch epoch = 0;
  std::vector<std::byte> payload;  // what `chunk.data` has to say whenever it is read
  bool readable = true;            // until it is completed or flushed
  bool read = false;               // it is in the network, or was
  std::array<bool, 2> landed{};    // the halves of it
  bool arrived = false;            // whole, and its notification waits to be polled
  bool notified = false;
  bool completed = false;
};

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
  core::Epoch heard = 0;            // the highest fence that reached the receiver
  std::vector<core::Epoch> hellos;  // that may arrive late, and twice
  std::int64_t sender_since = 0;    // since when each end has its connection
  std::int64_t receiver_since = 0;
  std::optional<Leaving> leaving;
  std::optional<Arriving> arriving;  // the first half of it is there
  std::deque<Packet> wire;           // in order, as a connection keeps it
  // Of one-sided connections:
  bool one_sided = false;            // the connection of both ends
  std::deque<Write> writes;          // in posted order
  std::optional<core::Epoch> dying;  // the receiver's NIC may write for it until that is confirmed
  bool flushing = false;             // the sender's NIC may read for the connection that it lost
  core::Epoch answered = 0;          // a fence: no write of an epoch before it may land any more
  std::uint32_t credits = 0;         // receives that the receiver keeps posted
  std::uint64_t told_landed = 0;     // as the last progress line said
  std::vector<std::pair<core::Epoch, core::Landed>> old_notices;
  std::deque<Answer> back;
  std::vector<Packet> old;  // of retired connections: may turn up at any time

  [[nodiscard]] bool dead() const { return cut || refused; }
};

}  // namespace fabric::sim
