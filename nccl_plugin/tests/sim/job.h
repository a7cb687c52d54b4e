// What the two callers of a simulated comm do, and what they may expect: a list of messages, the
// receives they belong to, and the checks on every byte of them.
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
  Job(Random& random, core::SendCore& sender, core::ReceiveCore& receiver, Finding& finding);

  void post_send();     // the next message, if one is left and the core takes it
  void post_receive();  // the next receive, if one is left
  void more();          // messages are added to the list
  void complete();      // asks both cores what is done, checks it, reuses the buffers
  // Where a one-sided write of this chunk lands. Nothing: outside of what was granted.
  std::byte* landing(const core::ChunkHeader& header);
  [[nodiscard]] bool finished() const;
  // What the plan has in it.
  [[nodiscard]] bool has_group() const;
  [[nodiscard]] bool has_empty() const;
  [[nodiscard]] bool has_short() const;
  void check_end();

 private:
  struct Message {
    std::size_t receive = 0;
    std::size_t slot = 0;
    std::vector<std::byte> bytes;   // what has to arrive
    std::vector<std::byte> buffer;  // the caller's: overwritten as soon as that is allowed
    core::Sequence sequence = 0;
    bool done = false;
  };
  struct Receive {
    std::vector<std::vector<std::byte>> buffers;
    std::vector<std::size_t> messages;  // by slot
    core::GroupId group = 0;
    bool done = false;
    bool forgotten = false;
  };

  void plan(std::size_t receives);
  void check(const Receive& receive);

  Random& random_;
  bool asks_late_ = false;
  core::SendCore& sender_;
  core::ReceiveCore& receiver_;
  Finding& finding_;
  std::vector<Message> messages_;
  std::vector<Receive> receives_;
  std::size_t sent_ = 0;
  std::size_t posted_ = 0;
};

}  // namespace fabric::sim
