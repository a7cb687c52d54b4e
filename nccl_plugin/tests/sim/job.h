// What the two callers of a simulated comm do, and what they may expect: a list of messages, the
// receives they belong to, and the checks on every byte of them.
//
// The comm is shared, as NCCL shares one between the ranks of a node: each sending rank has a tag
// of its own and posts its messages in order, but nothing orders one rank's messages among
// another's. The receiver posts slots for them in an order of its own, single or grouped, and some
// ranks have more steps than others. The n-th message of a tag belongs into the n-th slot of that
// tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/receive_core.h"
#include "core/send_core.h"

namespace fabric::sim {

inline constexpr std::uint32_t kChunk = 4096;

// The source of all choices of one schedule.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t pick(std::size_t below) { return engine_() % below; }  // 0 .. below - 1
  bool one_in(std::size_t n) { return pick(n) == 0; }
  void fill(std::vector<std::byte>& bytes);

 private:
  std::mt19937_64 engine_;
};

// The first thing that went wrong; empty: nothing did.
class Finding {
 public:
  void expect(bool holds, const char* what) {
    if (!holds && what_.empty()) {
      what_ = what;
    }
  }
  [[nodiscard]] bool any() const { return !what_.empty(); }
  [[nodiscard]] const std::string& what() const { return what_; }

 private:
  std::string what_;
};

class Job {
 public:
  // `devices`: some messages come from device memory or go there.
  Job(Random& random, core::SendCore& sender, core::ReceiveCore& receiver, Finding& finding,
      bool devices);

  void post_send();     // the next message of any rank that has one left, if the core takes it
  void post_receive();  // the next receive, if one is left
  void more();          // messages are added to the list
  void complete();      // asks both cores what is done, checks it, reuses the buffers
  // Where a one-sided write of this chunk lands, over that rail of the receiver. Nothing: outside
  // of what a CTS offered, or with another key.
  std::byte* landing(const core::Outgoing& chunk, std::size_t rail);
  [[nodiscard]] bool finished() const;
  // What the plan has in it.
  [[nodiscard]] bool has_group() const;
  [[nodiscard]] bool has_empty() const;
  [[nodiscard]] bool has_short() const;
  [[nodiscard]] bool has_ranks() const { return ranks_.size() > 1; }
  [[nodiscard]] bool devices() const { return devices_; }  // may have device memory
  [[nodiscard]] bool sends_device_memory() const;
  [[nodiscard]] bool fills_device_memory() const;
  void check_end();

 private:
  struct Message {
    std::size_t receive = 0;
    std::size_t slot = 0;
    std::vector<std::byte> bytes;   // what has to arrive
    std::vector<std::byte> buffer;  // the caller's: overwritten as soon as that is allowed
    core::Sequence sequence = 0;
    bool copyable = true;
    bool device = false;
    bool posted = false;
    bool done = false;
  };
  struct Rank {
    std::int32_t tag = 0;
    std::vector<std::size_t> messages;  // in posted order
    std::size_t sent = 0;               // of them
  };
  struct Receive {
    std::vector<std::vector<std::byte>> buffers;
    std::vector<std::size_t> messages;  // by slot
    std::vector<std::int32_t> tags;     // by slot
    std::vector<bool> device;           // by slot
    core::GroupId group = 0;
    bool done = false;
    bool forgotten = false;
  };

  void plan(std::size_t receives);
  void plan_slot(std::size_t receive, Rank& rank, std::size_t size, std::size_t room);
  void check(const Receive& receive);

  Random& random_;
  const bool devices_;
  bool asks_late_ = false;
  bool floods_ = false;  // more small messages than the copy budget holds
  core::SendCore& sender_;
  core::ReceiveCore& receiver_;
  Finding& finding_;
  std::vector<Message> messages_;
  std::vector<Receive> receives_;
  std::vector<Rank> ranks_;
  std::size_t last_rank_ = 0;  // of the slot planned last
  std::size_t posted_ = 0;
};

}  // namespace fabric::sim
