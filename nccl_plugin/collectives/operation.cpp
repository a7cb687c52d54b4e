#include "collectives/operation.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace fabric::collectives {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLargestMessage = std::size_t{1} << 30U;  // what every ABI version carries
constexpr std::size_t kLargestTask = std::size_t{1} << 46U;     // bytes; no sum of such overflows
constexpr std::size_t kSlicesPerChunk = 4;  // at least, so that a step overlaps the next

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::send:
      return "send";
    case Kind::receive:
      return "receive";
  }
  return "unknown";
}

bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::receive; }
bool reduces(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }
bool reads_input(Kind kind) {
  return kind == Kind::all_gather || kind == Kind::reduce_scatter || kind == Kind::send;
}

bool misaligned(const std::byte* data, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(data) % size != 0;
}

}  // namespace

std::string fault_of(const Task& task, const Place& place) {
  if (task.kind < Kind::all_reduce || task.kind > Kind::receive) return "no such operation";
  const std::string name = name_of(task.kind);
  const std::size_t size = size_of(task.type);
  if (size == 0) return name + ": no such element type";
  if (task.count > kLargestTask / size / static_cast<std::size_t>(place.world)) {
    return name + ": " + std::to_string(task.count) + " elements are too many";
  }
  if (task.count > 0 && ((reads_input(task.kind) && task.input == nullptr) ||
                         (task.kind != Kind::send && task.output == nullptr))) {
    return name + ": no memory";
  }
  if (misaligned(task.input, size) || misaligned(task.output, size)) {
    return name + ": memory is not aligned to its elements";
  }
  if (reduces(task.kind) && reducer_of(task.type, task.op) == nullptr) {
    return name + ": no such reduction of this element type";
  }
  if (is_message(task.kind) || task.kind == Kind::broadcast) {
    const bool self = is_message(task.kind) && task.peer == place.rank;
    if (task.peer < 0 || task.peer >= place.world || self) {
      return name + ": rank " + std::to_string(task.peer) + " is no peer of rank " +
             std::to_string(place.rank) + " of " + std::to_string(place.world);
    }
  }
  if (is_message(task.kind) && task.tag < 0) return name + ": a negative tag";
  return "";
}

std::byte* Memory::at_least(std::size_t size) {
  if (size > size_ || data_ == nullptr) {
    const std::size_t rounded = (std::max(size, kPage) + kPage - 1) / kPage * kPage;
    data_.reset();
    size_ = 0;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = rounded;
  }
  return data_.get();
}

void Memory::Free::operator()(std::byte* p) const { std::free(p); }

bool Operation::progress(Shared& shared) {
  bool moved = false;
  if (!begun_) {
    if (!begin(shared)) return false;
    moved = begun_ = true;
  }
  // The header is the first message of its comm.
  if (!headers_posted(moved)) return moved;
  if (!header_came_ && header_in_->pop_done() > 0) {
    check_header();
    moved = header_came_ = true;
  }
  if (header_out_ != nullptr && header_out_->pop_done() > 0) moved = true;
  bool complete = header_came_ && (header_out_ == nullptr || header_out_->size() == 0);
  for (const auto& work : works_) {
    if (work->done()) continue;
    moved = work->progress() || moved;
    complete = complete && work->done();
  }
  if (complete) {
    finish(shared);
    moved = done_ = true;
  }
  return moved;
}

bool Operation::begin(Shared& shared) {
  mine_ = {kMagic,
           static_cast<std::int32_t>(task_.kind),
           static_cast<std::int32_t>(task_.type),
           static_cast<std::int32_t>(task_.op),
           task_.peer,
           task_.tag,
           sequence_,
           bytes()};
  if (is_message(task_.kind)) return begin_message(shared);
  begin_ring(shared);
  return true;
}

void Operation::begin_ring(Shared& shared) {
  const auto world = static_cast<std::size_t>(shared.place.world);
  const auto rank = static_cast<std::size_t>(shared.place.rank);
  perf::RingWork work;
  ring_data_ = task_.output;
  ring_count_ = task_.count;
  switch (task_.kind) {
    case Kind::broadcast:
      work.kind = perf::RingWork::Kind::broadcast;
      work.root = task_.peer;
      break;
    case Kind::all_gather:
      work.kind = perf::RingWork::Kind::all_gather;
      ring_count_ *= world;
      if (bytes() > 0) std::memmove(ring_data_ + rank * bytes(), task_.input, bytes());
      break;
    case Kind::reduce_scatter:
      work.kind = perf::RingWork::Kind::reduce_scatter;
      ring_count_ *= world;
      ring_data_ = shared.staging.at_least(world * bytes());
      if (bytes() > 0) std::memcpy(ring_data_, task_.input, world * bytes());
      break;
    case Kind::all_reduce:
    case Kind::send:
    case Kind::receive:
      break;
  }
  if (world == 1) return;
  work.channels = shared.connections.channels();
  add_header(shared, &shared.connections.ring_out(0), &shared.connections.ring_in(0));
  for (std::size_t c = 0; c < work.channels; ++c) add_ring(shared, c, work);
}

void Operation::add_ring(Shared& shared, std::size_t channel, perf::RingWork work) {
  const auto world = static_cast<std::size_t>(shared.place.world);
  const perf::Endpoint& out = shared.connections.ring_out(channel);
  const perf::Endpoint& in = shared.connections.ring_in(channel);
  const std::size_t size = size_of(task_.type);
  const bool whole = task_.kind == Kind::broadcast;
  const std::size_t chunk = whole ? ring_count_ : (ring_count_ + world - 1) / world;
  const Pipeline& pipeline = shared.pipeline;
  const std::size_t slice =
      std::clamp(chunk * size / kSlicesPerChunk, pipeline.shortest_slice, pipeline.slice) / size;
  const std::size_t room = reduces(task_.kind) ? pipeline.in_flight * slice * size : 0;
  std::byte* scratch = shared.scratch[channel].at_least(room);
  work.channel = channel;
  works_.push_back(std::make_unique<perf::RingFlow>(
      shared.plugin,
      perf::RingPlan(shared.place.rank, shared.place.world, {0, ring_count_}, slice, 1, work),
      perf::Elements{size, reduces(task_.kind) ? reducer_of(task_.type, task_.op) : nullptr}, out,
      in, std::vector{add(shared, out, ring_data_, ring_count_ * size)},
      std::vector{add(shared, in, ring_data_, ring_count_ * size)}, add(shared, in, scratch, room),
      slice, pipeline.in_flight));
  works_.back()->begin(0);
}

bool Operation::begin_message(Shared& shared) {
  const bool sends = task_.kind == Kind::send;
  const perf::Endpoint* end =
      sends ? shared.connections.to(task_.peer) : shared.connections.from(task_.peer);
  if (end == nullptr) return false;
  add_header(shared, sends ? end : nullptr, sends ? nullptr : end);
  if (bytes() == 0) return true;
  auto messages = perf::slices_of({0, bytes()}, kLargestMessage);
  if (sends) {
    // The ABI's pointer is not to const; a plugin only reads from it.
    auto* data = const_cast<std::byte*>(task_.input);
    works_.push_back(std::make_unique<perf::SendFlow>(
        shared.plugin, *end, std::vector{add(shared, *end, data, bytes())}, std::move(messages),
        shared.pipeline.in_flight));
  } else {
    works_.push_back(std::make_unique<perf::ReceiveFlow>(
        shared.plugin, *end, std::vector{add(shared, *end, task_.output, bytes())},
        std::move(messages), shared.pipeline.in_flight));
  }
  works_.back()->begin(0);
  return true;
}

perf::Registered Operation::add(Shared& shared, const perf::Endpoint& end, std::byte* data,
                                std::size_t size) {
  if (size == 0) return {data, 0, nullptr};
  void* region =
      perf::on_link(end.label, [&] { return shared.plugin.register_memory(end.comm, data, size); });
  regions_.emplace_back(end.comm, region);
  return {data, size, region};
}

void Operation::add_header(Shared& shared, const perf::Endpoint* out, const perf::Endpoint* in) {
  if (out != nullptr) {
    header_out_ = std::make_unique<perf::RequestQueue>(shared.plugin, *out);
    mine_memory_ = add(shared, *out, reinterpret_cast<std::byte*>(&mine_), sizeof mine_);
    header_out_posted_ = false;
  }
  if (in != nullptr) {
    header_in_ = std::make_unique<perf::RequestQueue>(shared.plugin, *in);
    theirs_memory_ = add(shared, *in, reinterpret_cast<std::byte*>(&theirs_), sizeof theirs_);
    header_in_posted_ = header_came_ = false;
  }
}

bool Operation::headers_posted(bool& moved) {
  if (!header_in_posted_ && header_in_->receive(theirs_memory_, 0, sizeof theirs_)) {
    moved = header_in_posted_ = true;
  }
  if (!header_out_posted_ && header_out_->send(mine_memory_, 0, sizeof mine_)) {
    moved = header_out_posted_ = true;
  }
  return header_in_posted_ && header_out_posted_;
}

void Operation::check_header() const {
  const auto describe = [](const Header& header) {
    return std::string(name_of(static_cast<Kind>(header.kind))) + " number " +
           std::to_string(header.sequence) + " of " + std::to_string(header.bytes) +
           " bytes, element type " + std::to_string(header.type) + ", reduction " +
           std::to_string(header.op) + ", peer " + std::to_string(header.peer) + ", tag " +
           std::to_string(header.tag);
  };
  Header expected = mine_;
  if (task_.kind == Kind::receive) {  // bytes are bytes, whatever type each end sees in them
    expected.kind = static_cast<std::int32_t>(Kind::send);
    expected.type = theirs_.type;
    expected.op = theirs_.op;
    expected.peer = theirs_.peer;
  }
  if (std::memcmp(&expected, &theirs_, sizeof expected) == 0) return;
  throw perf::TransportError("header", 0,
                             "ranks differ: this one expects " + describe(expected) +
                                 "; the other one's is " + describe(theirs_));
}

void Operation::finish(Shared& shared) {
  for (const auto& [comm, region] : regions_) shared.plugin.deregister_memory(comm, region);
  regions_.clear();
  works_.clear();
  const int world = shared.place.world;
  std::byte* result = task_.output;
  if (task_.kind == Kind::reduce_scatter && bytes() > 0) {
    std::memcpy(result, ring_data_ + static_cast<std::size_t>(shared.place.rank) * bytes(),
                bytes());
  }
  if (reduces(task_.kind) && task_.op == ReduceOp::average) {
    divide(task_.type, result, task_.count, world);
  }
}

}  // namespace fabric::collectives
