#include "perf/flow.h"

#include <array>
#include <span>

namespace fabric::perf {

bool RequestQueue::send(const Registered& memory, std::size_t offset, std::size_t count, int tag) {
  void* request = on_link(end_.label, [&] {
    return plugin_.isend(end_.comm, memory.data + offset, count, tag, memory.region);
  });
  if (request == nullptr) return false;
  pending_.push_back({request, false, 1, {count}});
  ++messages_;
  return true;
}

bool RequestQueue::receive(std::span<const Landing> group) {
  Pending pending{nullptr, true, group.size(), {}};
  std::array<Slot, kMaxGroup> slots{};
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Landing& l = group[i];
    pending.sizes[i] = l.count;
    slots[i] = {l.memory->data + l.offset, l.count, static_cast<int>(i), l.memory->region};
  }
  pending.request = on_link(
      end_.label, [&] { return plugin_.irecv(end_.comm, std::span(slots).first(group.size())); });
  if (pending.request == nullptr) return false;
  pending_.push_back(pending);
  messages_ += group.size();
  return true;
}

std::size_t RequestQueue::pop_done() {
  if (pending_.empty()) return 0;
  const Pending& oldest = pending_.front();
  const std::size_t count = oldest.count;
  std::array<std::size_t, kMaxGroup> sizes{};
  if (!on_link(end_.label,
               [&] { return plugin_.test(oldest.request, std::span(sizes).first(count)); })) {
    return 0;
  }
  for (std::size_t i = 0; oldest.is_receive && i < count; ++i) {
    if (sizes[i] == static_cast<std::uint32_t>(oldest.sizes[i])) continue;
    throw TransportError("test (" + end_.label + ")", 0,
                         "a message of " + std::to_string(oldest.sizes[i]) +
                             " bytes arrived with " + std::to_string(sizes[i]));
  }
  pending_.pop_front();
  messages_ -= count;
  return count;
}

SendFlow::SendFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets,
                   std::vector<Extent> messages, std::size_t in_flight, std::size_t group)
    : queue_(plugin, std::move(end)),
      sets_(std::move(sets)),
      messages_(std::move(messages)),
      grouping_(group, messages_.size()),
      in_flight_(in_flight),
      finished_(messages_.size()) {}

void SendFlow::begin(std::size_t set) {
  set_ = set;
  posted_ = 0;
  finished_ = 0;
}

bool SendFlow::progress() {
  bool any = false;
  while (queue_.pop_done()) {
    moved_ += messages_[finished_++].count;
    any = true;
  }
  while (posted_ < messages_.size() && queue_.size() < in_flight_) {
    const Extent& m = messages_[posted_];
    if (!queue_.send(sets_[set_], m.offset, m.count, grouping_.tag(posted_))) break;
    ++posted_;
    any = true;
  }
  return any;
}

ReceiveFlow::ReceiveFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets,
                         std::vector<Extent> messages, std::size_t in_flight, std::size_t group)
    : queue_(plugin, std::move(end)),
      sets_(std::move(sets)),
      messages_(std::move(messages)),
      grouping_(group, messages_.size()),
      in_flight_(in_flight),
      finished_(messages_.size()) {}

void ReceiveFlow::begin(std::size_t set) {
  set_ = set;
  posted_ = 0;
  finished_ = 0;
}

bool ReceiveFlow::progress() {
  bool any = false;
  while (const std::size_t count = queue_.pop_done()) {
    for (std::size_t i = 0; i < count; ++i) moved_ += messages_[finished_++].count;
    any = true;
  }
  while (posted_ < messages_.size()) {
    const std::size_t count = grouping_.count_at(posted_);
    if (queue_.size() + count > in_flight_) break;
    std::array<Landing, kMaxGroup> group{};
    for (std::size_t i = 0; i < count; ++i) {
      const Extent& m = messages_[posted_ + i];
      group[i] = {&sets_[set_], m.offset, m.count};
    }
    if (!queue_.receive(std::span(group).first(count))) break;
    posted_ += count;
    any = true;
  }
  return any;
}

RingFlow::RingFlow(Plugin& plugin, const RingPlan& plan, const Elements& elements,
                   Endpoint send_end, Endpoint receive_end, std::vector<Registered> send_sets,
                   std::vector<Registered> receive_sets, Registered scratch, std::size_t slice,
                   std::size_t in_flight, std::size_t group)
    : plan_(plan),
      elements_(elements),
      send_grouping_(group, plan_.sends()),
      receive_grouping_(group, plan_.receives()),
      sends_(plugin, std::move(send_end)),
      receives_(plugin, std::move(receive_end)),
      send_sets_(std::move(send_sets)),
      receive_sets_(std::move(receive_sets)),
      scratch_(scratch),
      slice_(slice),
      in_flight_(in_flight),
      sent_(plan_.sends()),
      received_(plan_.receives()) {}

void RingFlow::begin(std::size_t set) {
  set_ = set;
  send_posted_ = sent_ = receive_posted_ = received_ = 0;
}

bool RingFlow::progress() {
  bool any = false;
  while (const std::size_t count = receives_.pop_done()) {
    for (std::size_t i = 0; i < count; ++i) take_received();
    any = true;
  }
  while (sends_.pop_done()) {
    ++sent_;
    any = true;
  }
  any |= post_receives();
  any |= post_sends();
  return any;
}

bool RingFlow::post_receives() {
  bool any = false;
  while (receive_posted_ < plan_.receives()) {
    const std::size_t count = receive_grouping_.count_at(receive_posted_);
    if (receives_.size() + count > in_flight_ ||
        sent_ < plan_.sends_before_receiving(receive_posted_ + count - 1)) {
      break;
    }
    std::array<Landing, kMaxGroup> group{};
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t q = receive_posted_ + i;
      const Extent m = plan_.received(q);
      const std::size_t bytes = m.count * elements_.size;
      group[i] = plan_.reduces(q)
                     ? Landing{&scratch_, q % in_flight_ * slice_ * elements_.size, bytes}
                     : Landing{&receive_sets_[set_], m.offset * elements_.size, bytes};
    }
    if (!receives_.receive(std::span(group).first(count))) break;
    receive_posted_ += count;
    any = true;
  }
  return any;
}

bool RingFlow::post_sends() {
  bool any = false;
  while (send_posted_ < plan_.sends() && sends_.size() < in_flight_ &&
         received_ >= plan_.receives_before_sending(send_posted_)) {
    const Extent m = plan_.sent(send_posted_);
    if (!sends_.send(send_sets_[set_], m.offset * elements_.size, m.count * elements_.size,
                     send_grouping_.tag(send_posted_))) {
      break;
    }
    ++send_posted_;
    any = true;
  }
  return any;
}

void RingFlow::take_received() {
  const Extent m = plan_.received(received_);
  if (plan_.reduces(received_)) {
    const std::byte* from = scratch_.data + received_ % in_flight_ * slice_ * elements_.size;
    elements_.reduce(receive_sets_[set_].data + m.offset * elements_.size, from, m.count);
  }
  moved_ += m.count * elements_.size;
  ++received_;
}

}  // namespace fabric::perf
