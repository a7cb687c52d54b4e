#include "perf/job.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "perf/pattern.h"

namespace fabric::perf {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kLargestMessage = std::size_t{1} << 30U;  // what every ABI version carries
constexpr std::size_t kElementBytes = 4;

}  // namespace

Buffer::Buffer(std::size_t size) : size_(std::max(size, kPage)) {
  const std::size_t rounded = (size_ + kPage - 1) / kPage * kPage;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
  // Registered memory is resident: its page faults are none of the transport's.
  std::memset(data_.get(), 0, rounded);
}

void Buffer::Free::operator()(std::byte* p) const { std::free(p); }

Job::Job(Plugin& plugin, Mesh& mesh, const Options& options, int channels)
    : plugin_(plugin),
      mesh_(mesh),
      options_(options),
      channels_(channels),
      in_flight_(static_cast<std::size_t>(options.in_flight)),
      group_(static_cast<std::size_t>(options.group)) {
  switch (options_.mode) {
    case Mode::p2p:
      make_p2p();
      break;
    case Mode::ring:
      make_ring();
      break;
    case Mode::alltoall:
      make_alltoall();
      break;
  }
  contents_ = std::make_unique<Contents>(options_, std::move(to_fill_), std::move(to_check_));
}

std::uint64_t Job::bytes() const {
  std::uint64_t moved = 0;
  for (const Work* work : counted_) moved += work->moved();
  return static_cast<std::uint64_t>(static_cast<double>(moved) * scale_);
}

std::size_t Job::buffer_bytes() const {
  std::size_t total = 0;
  for (const auto& buffer : buffers_) total += buffer->size();
  return total;
}

double Job::bus_factor() const {
  const double world = options_.world;
  switch (options_.mode) {
    case Mode::ring:
      return 2.0 * (world - 1) / world;
    case Mode::alltoall:
      return (world - 1) / world;
    case Mode::p2p:
      break;
  }
  return 1.0;
}

void Job::make_p2p() {
  // More messages than there is room for take turns in it; nobody looks at them then.
  const std::uint64_t room = messages_per_batch(options_.size, group_, options_.memory);
  batch_ = options_.batch > 0 ? static_cast<std::uint64_t>(options_.batch) : room;
  if (options_.iterations) batch_ = std::min(batch_, *options_.iterations);
  const bool sends = options_.rank % 2 == 0;
  const int peer = sends ? options_.rank + 1 : options_.rank - 1;
  const std::size_t total = options_.size * std::min(batch_, room);
  const std::vector<Buffer*> sets = allocate_sets(total);
  for (int c = 0; c < channels_; ++c) {
    const Link link = sends ? Link{options_.rank, peer, c} : Link{peer, options_.rank, c};
    std::vector<Extent> messages;
    for (std::size_t m = 0; m < batch_; ++m) {
      const Extent part = channel_part({m % room * options_.size, options_.size}, c, kCacheLine);
      for (const Extent& e : slices_of(part, kLargestMessage)) messages.push_back(e);
    }
    std::unique_ptr<Work> work;
    if (sends) {
      work = std::make_unique<SendFlow>(plugin_, mesh_.endpoint(link), registered(link, sets),
                                        std::move(messages), in_flight_, group_);
    } else {
      work = std::make_unique<ReceiveFlow>(plugin_, mesh_.endpoint(link), registered(link, sets),
                                           std::move(messages), in_flight_, group_);
    }
    add_work(std::move(work), true);
  }
  const Area area{Area::Kind::bytes, at(sets, 0), total, sends ? options_.rank : peer,
                  sends ? peer : options_.rank};
  (sends ? to_fill_ : to_check_).push_back(area);
}

void Job::make_ring() {
  const double world = options_.world;
  scale_ = world / (2.0 * (world - 1));
  const std::size_t elements = options_.size / kElementBytes;
  const std::vector<Buffer*> sets = allocate_sets(elements * kElementBytes);
  for (int c = 0; c < channels_; ++c) {
    const Extent range = channel_part({0, elements}, c, kCacheLine / kElementBytes);
    if (options_.element == Element::float32) {
      make_ring_channel<float>(c, range, sets);
    } else {
      make_ring_channel<std::int32_t>(c, range, sets);
    }
  }
  const Area area{Area::Kind::sum, at(sets, 0), elements * kElementBytes, options_.rank,
                  options_.rank};
  to_fill_.push_back(area);
  to_check_.push_back(area);
}

template <typename Element>
void Job::make_ring_channel(int channel, Extent range, const std::vector<Buffer*>& sets) {
  const int rank = options_.rank;
  const int world = options_.world;
  const Link out{rank, (rank + 1) % world, channel};
  const Link in{(rank + world - 1) % world, rank, channel};
  // No slice is longer than a chunk: keeps the scratch memory of small runs small.
  const std::size_t longest = range.count / static_cast<std::size_t>(world) + 1;
  const std::size_t share = (longest + group_ - 1) / group_;
  const std::size_t slice = std::min(options_.slice / sizeof(Element), share);
  buffers_.push_back(std::make_unique<Buffer>(in_flight_ * slice * sizeof(Element)));
  Buffer& scratch = *buffers_.back();
  const Elements elements{
      sizeof(Element), [](std::byte* into, const std::byte* from, std::size_t count) {
        add_into(std::span<Element>(reinterpret_cast<Element*>(into), count),
                 std::span<const Element>(reinterpret_cast<const Element*>(from), count));
      }};
  add_work(std::make_unique<RingFlow>(
               plugin_, RingPlan(rank, world, range, slice, group_), elements, mesh_.endpoint(out),
               mesh_.endpoint(in), registered(out, sets), registered(in, sets),
               mesh_.add(in, scratch.data(), scratch.size()), slice, in_flight_, group_),
           true);
}

void Job::make_alltoall() {
  const int me = options_.rank;
  const auto world = static_cast<std::size_t>(options_.world);
  scale_ = static_cast<double>(world) / static_cast<double>(world - 1);
  const Extent whole{0, options_.size};
  const std::vector<Buffer*> out = allocate_sets(options_.size);
  const std::size_t mine = part_of(whole, static_cast<std::size_t>(me), world, 8).count;
  const std::vector<Buffer*> in = allocate_sets(mine * world);
  // Rank r starts with peer r + 1, so that not all begin with the same one.
  for (int step = 1; step < options_.world; ++step) {
    const int to = (me + step) % options_.world;
    const int from = (me + options_.world - step) % options_.world;
    const Extent send_part = part_of(whole, static_cast<std::size_t>(to), world, 8);
    const Extent receive_part{static_cast<std::size_t>(from) * mine, mine};
    for (int c = 0; c < channels_; ++c) {
      const Link send_link{me, to, c};
      const Link receive_link{from, me, c};
      add_work(std::make_unique<SendFlow>(
                   plugin_, mesh_.endpoint(send_link), registered(send_link, out),
                   slices_of(channel_part(send_part, c, kCacheLine), options_.slice, group_),
                   in_flight_, group_),
               false);
      add_work(std::make_unique<ReceiveFlow>(
                   plugin_, mesh_.endpoint(receive_link), registered(receive_link, in),
                   slices_of(channel_part(receive_part, c, kCacheLine), options_.slice, group_),
                   in_flight_, group_),
               true);
    }
    to_fill_.push_back({Area::Kind::bytes, at(out, send_part.offset), send_part.count, me, to});
    to_check_.push_back({Area::Kind::bytes, at(in, receive_part.offset), mine, from, me});
  }
}

Extent Job::channel_part(Extent whole, int channel, std::size_t align) const {
  return part_of(whole, static_cast<std::size_t>(channel), static_cast<std::size_t>(channels_),
                 align);
}

std::vector<Registered> Job::registered(const Link& link, const std::vector<Buffer*>& sets) {
  std::vector<Registered> all;
  all.reserve(sets.size());
  for (Buffer* buffer : sets) all.push_back(mesh_.add(link, buffer->data(), buffer->size()));
  return all;
}

std::vector<Buffer*> Job::allocate_sets(std::size_t size) {
  std::vector<Buffer*> sets;
  for (std::size_t i = 0; i < kSets; ++i) {
    buffers_.push_back(std::make_unique<Buffer>(size));
    sets.push_back(buffers_.back().get());
  }
  return sets;
}

void Job::add_work(std::unique_ptr<Work> work, bool counted) {
  if (counted) counted_.push_back(work.get());
  works_.push_back(std::move(work));
}

std::array<std::byte*, kSets> Job::at(const std::vector<Buffer*>& sets, std::size_t offset) {
  return {sets[0]->data() + offset, sets[1]->data() + offset};
}

}  // namespace fabric::perf
