// One collective or message of a rank, from its begin to its end: what it moves over which comms.
//
// A header goes before the data, from each sender to its receiver. It says what the sender does;
// who does something else, or with another size, fails before it says that it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/connections.h"
#include "collectives/reduction.h"
#include "perf/flow.h"
#include "perf/plan.h"

namespace fabric::collectives {

enum class Kind : std::int32_t { all_reduce, broadcast, all_gather, reduce_scatter, send, receive };

// What a caller asks for. Memory stays the caller's, and valid until the operation has ended.
struct Task {
  Kind kind = Kind::all_reduce;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  int peer = 0;  // root of a broadcast; destination, or source
  int tag = 0;   // of a message; not negative
  // Elements: of all_reduce, broadcast, send, receive in all; of the others for each rank.
  std::size_t count = 0;
  const std::byte* input =
      nullptr;                  // all_gather: count; reduce_scatter: world * count; send: count
  std::byte* output = nullptr;  // count; all_gather: world * count. In place: all_reduce, broadcast
};

// Empty: it is a task for this place; else what is wrong.
std::string fault_of(const Task& task, const Place& place);

// Page-aligned memory that grows, and is used again.
class Memory {
 public:
  std::byte* at_least(std::size_t size);  // what was in it is lost when it grows

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

// How messages are cut. The same on all ranks.
struct Pipeline {
  std::size_t slice = std::size_t{512} << 10U;          // bytes of a message, at most
  std::size_t shortest_slice = std::size_t{32} << 10U;  // bytes: what is not cut further
  std::size_t in_flight = 8;                            // messages of a comm each way
};

// What operations of one group share.
struct Shared {
  perf::Plugin& plugin;
  Connections& connections;
  Place place;
  Pipeline pipeline;
  std::vector<Memory> scratch;  // of each ring
  Memory staging;               // collectives run one at a time
};

class Operation {
 public:
  Operation(std::int64_t id, const Task& task, std::uint64_t sequence)
      : id_(id), task_(task), sequence_(sequence) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  std::int64_t id() const { return id_; }
  const Task& task() const { return task_; }
  // Does what can be done now; true when something moved. Throws perf::TransportError.
  bool progress(Shared& shared);
  bool done() const { return done_; }

 private:
  struct Header {
    std::uint32_t magic;
    std::int32_t kind;
    std::int32_t type;
    std::int32_t op;
    std::int32_t peer;
    std::int32_t tag;
    std::uint64_t sequence;
    std::uint64_t bytes;
  };
  static constexpr std::uint32_t kMagic = 0x31504f46;  // "FOP1"

  bool begin(Shared& shared);
  void begin_ring(Shared& shared);
  void add_ring(Shared& shared, std::size_t channel, perf::RingWork work);
  bool begin_message(Shared& shared);
  perf::Registered add(Shared& shared, const perf::Endpoint& end, std::byte* data,
                       std::size_t size);
  void add_header(Shared& shared, const perf::Endpoint* out, const perf::Endpoint* in);
  void check_header() const;
  bool headers_posted(bool& moved);
  void finish(Shared& shared);
  std::size_t bytes() const { return task_.count * size_of(task_.type); }

  const std::int64_t id_;
  const Task task_;
  const std::uint64_t sequence_;
  bool begun_ = false;
  bool done_ = false;
  std::byte* ring_data_ = nullptr;
  std::size_t ring_count_ = 0;  // elements
  Header mine_{};
  Header theirs_{};
  perf::Registered mine_memory_;
  perf::Registered theirs_memory_;
  std::unique_ptr<perf::RequestQueue> header_out_;
  std::unique_ptr<perf::RequestQueue> header_in_;
  bool header_out_posted_ = true;
  bool header_in_posted_ = true;
  bool header_came_ = true;
  std::vector<std::unique_ptr<perf::Work>> works_;
  std::vector<std::pair<void*, void*>> regions_;  // comm and region
};

}  // namespace fabric::collectives
