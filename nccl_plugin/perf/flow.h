// The state of one connection's transfers within one iteration: begin() sets the work, progress()
// does what can be done now without waiting, done() says whether all of it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "perf/plan.h"
#include "perf/plugin.h"

namespace fabric::perf {

// One end of a connection, with the memory registered for it.
struct Endpoint {
  void* comm = nullptr;
  std::string label;  // "rank 0 -> rank 1, channel 2": for errors
};

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

// Requests of one direction of a comm, tested in order of posting.
class RequestQueue {
 public:
  RequestQueue(Plugin& plugin, Endpoint endpoint) : plugin_(plugin), end_(std::move(endpoint)) {}

  std::size_t size() const { return pending_.size(); }
  // False when the plugin said "not yet".
  bool send(const Registered& memory, std::size_t offset, std::size_t count);
  bool receive(const Registered& memory, std::size_t offset, std::size_t count);
  // True when the oldest request is done; it leaves the queue.
  bool pop_done();

 private:
  struct Pending {
    void* request;
    std::size_t size;
    bool is_receive;
  };
  Plugin& plugin_;
  Endpoint end_;
  std::deque<Pending> pending_;
};

class SendFlow final : public Work {
 public:
  SendFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets, std::vector<Extent> messages,
           std::size_t in_flight);
  void begin(std::size_t set) override;
  bool progress() override;
  bool done() const override { return finished_ == messages_.size(); }
  std::uint64_t moved() const override { return moved_; }

 private:
  RequestQueue queue_;
  std::vector<Registered> sets_;
  std::vector<Extent> messages_;
  std::size_t in_flight_;
  std::size_t set_ = 0;
  std::size_t posted_ = 0;
  std::size_t finished_;
  std::uint64_t moved_ = 0;
};

class ReceiveFlow final : public Work {
 public:
  ReceiveFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets,
              std::vector<Extent> messages, std::size_t in_flight);
  void begin(std::size_t set) override;
  bool progress() override;
  bool done() const override { return finished_ == messages_.size(); }
  std::uint64_t moved() const override { return moved_; }

 private:
  RequestQueue queue_;
  std::vector<Registered> sets_;
  std::vector<Extent> messages_;
  std::size_t in_flight_;
  std::size_t set_ = 0;
  std::size_t posted_ = 0;
  std::size_t finished_;
  std::uint64_t moved_ = 0;
};

// One channel of the ring all-reduce, in place.
template <typename Element>
class RingFlow final : public Work {
 public:
  // `scratch`: in_flight * slice elements, registered with the receiving comm.
  RingFlow(Plugin& plugin, const RingPlan& plan, Endpoint send_end, Endpoint receive_end,
           std::vector<Registered> send_sets, std::vector<Registered> receive_sets,
           Registered scratch, std::size_t slice, std::size_t in_flight);
  void begin(std::size_t set) override;
  bool progress() override;
  bool done() const override { return sent_ == plan_.messages() && received_ == plan_.messages(); }
  std::uint64_t moved() const override { return moved_; }

 private:
  bool post_receives();
  bool post_sends();
  void take_received();

  RingPlan plan_;
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
