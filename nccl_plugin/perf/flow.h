// The state of one connection's transfers within one iteration: begin() sets the work, progress()
// does what can be done now without waiting, done() says whether all of it is.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "perf/plan.h"
#include "perf/plugin.h"

namespace fabric::perf {

// One end of a connection, with the memory registered for it.
struct Endpoint {
  void* comm = nullptr;
  std::string label;  // "rank 0 -> rank 1, channel 2": for errors
};

// Adds to an error on which link it happened.
template <typename Call>
auto on_link(const std::string& label, Call&& call) {
  try {
    return call();
  } catch (const TransportError& error) {
    throw TransportError(error.where + " (" + label + ")", error.code, error.what());
  }
}

// A buffer and its registration with one comm.
struct Registered {
  std::byte* data = nullptr;
  std::size_t size = 0;
  void* region = nullptr;
};

class Work {
 public:
  virtual ~Work() = default;
  // `set`: which of the two buffers.
  virtual void begin(std::size_t set) = 0;
  // True when something moved. Throws TransportError.
  virtual bool progress() = 0;
  virtual bool done() const = 0;
  // Payload bytes moved since the job began (received; for a pure sender, sent).
  virtual std::uint64_t moved() const = 0;
};

// Where a message is received.
struct Landing {
  const Registered* memory;
  std::size_t offset;
  std::size_t count;
};

// Requests of one direction of a comm, tested in order of posting.
class RequestQueue {
 public:
  RequestQueue(Plugin& plugin, Endpoint endpoint) : plugin_(plugin), end_(std::move(endpoint)) {}

  std::size_t size() const { return messages_; }  // messages on their way
  // False when the plugin said "not yet".
  bool send(const Registered& memory, std::size_t offset, std::size_t count, int tag = 0);
  // One request for all of them: tags 0, 1, …, which their sender has to use.
  bool receive(std::span<const Landing> group);
  bool receive(const Registered& memory, std::size_t offset, std::size_t count) {
    const Landing one{&memory, offset, count};
    return receive(std::span(&one, 1));
  }
  // When the oldest request is done it leaves the queue: how many messages it was, else 0.
  std::size_t pop_done();

 private:
  struct Pending {
    void* request;
    bool is_receive;
    std::size_t count;
    std::array<std::size_t, kMaxGroup> sizes;
  };
  Plugin& plugin_;
  Endpoint end_;
  std::deque<Pending> pending_;
  std::size_t messages_ = 0;
};

// How messages are grouped into receives: `group` at a time from the first of an iteration on, the
// last receive has what is left. Both ends reckon alike; a message's tag is its place in its group.
class Grouping {
 public:
  Grouping(std::size_t group, std::size_t messages) : group_(group), messages_(messages) {}
  std::size_t count_at(std::size_t first) const { return std::min(group_, messages_ - first); }
  int tag(std::size_t message) const { return static_cast<int>(message % group_); }

 private:
  std::size_t group_;
  std::size_t messages_;
};

class SendFlow final : public Work {
 public:
  SendFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets, std::vector<Extent> messages,
           std::size_t in_flight, std::size_t group = 1);
  void begin(std::size_t set) override;
  bool progress() override;
  bool done() const override { return finished_ == messages_.size(); }
  std::uint64_t moved() const override { return moved_; }

 private:
  RequestQueue queue_;
  std::vector<Registered> sets_;
  std::vector<Extent> messages_;
  Grouping grouping_;
  std::size_t in_flight_;
  std::size_t set_ = 0;
  std::size_t posted_ = 0;
  std::size_t finished_;
  std::uint64_t moved_ = 0;
};

class ReceiveFlow final : public Work {
 public:
  ReceiveFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets,
              std::vector<Extent> messages, std::size_t in_flight, std::size_t group = 1);
  void begin(std::size_t set) override;
  bool progress() override;
  bool done() const override { return finished_ == messages_.size(); }
  // As much as may be in flight.
  bool posted() const { return posted_ == messages_.size() || queue_.size() >= in_flight_; }
  std::uint64_t moved() const override { return moved_; }

 private:
  RequestQueue queue_;
  std::vector<Registered> sets_;
  std::vector<Extent> messages_;
  Grouping grouping_;
  std::size_t in_flight_;
  std::size_t set_ = 0;
  std::size_t posted_ = 0;
  std::size_t finished_;
  std::uint64_t moved_ = 0;
};

// What the elements of a ring are, and how what arrives is put together with what is there.
struct Elements {
  std::size_t size = 0;  // bytes of each
  // `into` becomes the reduction of both. Null where the plan reduces nothing.
  void (*reduce)(std::byte* into, const std::byte* from, std::size_t count) = nullptr;
};

// One channel of a ring, in place.
class RingFlow final : public Work {
 public:
  // `scratch`: in_flight * slice elements, registered with the receiving comm.
  RingFlow(Plugin& plugin, const RingPlan& plan, const Elements& elements, Endpoint send_end,
           Endpoint receive_end, std::vector<Registered> send_sets,
           std::vector<Registered> receive_sets, Registered scratch, std::size_t slice,
           std::size_t in_flight, std::size_t group = 1);
  void begin(std::size_t set) override;
  bool progress() override;
  bool done() const override { return sent_ == plan_.sends() && received_ == plan_.receives(); }
  std::uint64_t moved() const override { return moved_; }

 private:
  bool post_receives();
  bool post_sends();
  void take_received();

  RingPlan plan_;
  Elements elements_;
  Grouping send_grouping_;
  Grouping receive_grouping_;
  RequestQueue sends_;
  RequestQueue receives_;
  std::vector<Registered> send_sets_;
  std::vector<Registered> receive_sets_;
  Registered scratch_;
  std::size_t slice_;
  std::size_t in_flight_;
  std::size_t set_ = 0;
  std::size_t send_posted_ = 0;
  std::size_t sent_;
  std::size_t receive_posted_ = 0;
  std::size_t received_;
  std::uint64_t moved_ = 0;
};

}  // namespace fabric::perf
