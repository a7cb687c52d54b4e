#include "perf/flow.h"

#include <span>

#include "perf/pattern.h"

namespace fabric::perf {
namespace {

constexpr int kTag = 0;  // matching is by order; tags only matter in grouped receives

// Adds to an error on which link it happened.
template <typename Call>
auto on_link(const std::string& label, Call&& call) {
  try {
    return call();
  } catch (const TransportError& error) {
    throw TransportError(error.where + " (" + label + ")", error.code, error.what());
  }
}

}  // namespace

bool RequestQueue::send(const Registered& memory, std::size_t offset, std::size_t count) {
  void* request = on_link(end_.label, [&] {
    return plugin_.isend(end_.comm, memory.data + offset, count, kTag, memory.region);
  });
  if (request == nullptr) return false;
  pending_.push_back({request, count, false});
  return true;
}

bool RequestQueue::receive(const Registered& memory, std::size_t offset, std::size_t count) {
  void* request = on_link(end_.label, [&] {
    return plugin_.irecv(end_.comm, memory.data + offset, count, kTag, memory.region);
  });
  if (request == nullptr) return false;
  pending_.push_back({request, count, true});
  return true;
}

bool RequestQueue::pop_done() {
  if (pending_.empty()) return false;
  const Pending oldest = pending_.front();
  std::size_t size = 0;
  if (!on_link(end_.label, [&] { return plugin_.test(oldest.request, &size); })) return false;
  pending_.pop_front();
  if (oldest.is_receive && size != static_cast<std::uint32_t>(oldest.size)) {
    throw TransportError("test (" + end_.label + ")", 0,
                         "a message of " + std::to_string(oldest.size) + " bytes arrived with " +
                             std::to_string(size));
  }
  return true;
}

SendFlow::SendFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets,
                   std::vector<Extent> messages, std::size_t in_flight)
    : queue_(plugin, std::move(end)),
      sets_(std::move(sets)),
      messages_(std::move(messages)),
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
    if (!queue_.send(sets_[set_], m.offset, m.count)) break;
    ++posted_;
    any = true;
  }
  return any;
}

ReceiveFlow::ReceiveFlow(Plugin& plugin, Endpoint end, std::vector<Registered> sets,
                         std::vector<Extent> messages, std::size_t in_flight)
    : queue_(plugin, std::move(end)),
      sets_(std::move(sets)),
      messages_(std::move(messages)),
      in_flight_(in_flight),
      finished_(messages_.size()) {}

void ReceiveFlow::begin(std::size_t set) {
  set_ = set;
  posted_ = 0;
  finished_ = 0;
}

bool ReceiveFlow::progress() {
  bool any = false;
  while (queue_.pop_done()) {
    moved_ += messages_[finished_++].count;
    any = true;
  }
  while (posted_ < messages_.size() && queue_.size() < in_flight_) {
    const Extent& m = messages_[posted_];
    if (!queue_.receive(sets_[set_], m.offset, m.count)) break;
    ++posted_;
    any = true;
  }
  return any;
}

template <typename Element>
RingFlow<Element>::RingFlow(Plugin& plugin, const RingPlan& plan, Endpoint send_end,
                            Endpoint receive_end, std::vector<Registered> send_sets,
                            std::vector<Registered> receive_sets, Registered scratch,
                            std::size_t slice, std::size_t in_flight)
    : plan_(plan),
      sends_(plugin, std::move(send_end)),
      receives_(plugin, std::move(receive_end)),
      send_sets_(std::move(send_sets)),
      receive_sets_(std::move(receive_sets)),
      scratch_(scratch),
      slice_(slice),
      in_flight_(in_flight),
      sent_(plan_.messages()),
      received_(plan_.messages()) {}

template <typename Element>
void RingFlow<Element>::begin(std::size_t set) {
  set_ = set;
  send_posted_ = sent_ = receive_posted_ = received_ = 0;
}

template <typename Element>
bool RingFlow<Element>::progress() {
  bool any = false;
  while (receives_.pop_done()) {
    take_received();
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

template <typename Element>
bool RingFlow<Element>::post_receives() {
  bool any = false;
  while (receive_posted_ < plan_.messages() && receives_.size() < in_flight_ &&
         sent_ >= plan_.sends_before_receiving(receive_posted_)) {
    const Extent m = plan_.received(receive_posted_);
    const std::size_t bytes = m.count * sizeof(Element);
    const bool posted =
        plan_.reduces(receive_posted_)
            ? receives_.receive(scratch_, receive_posted_ % in_flight_ * slice_ * sizeof(Element),
                                bytes)
            : receives_.receive(receive_sets_[set_], m.offset * sizeof(Element), bytes);
    if (!posted) break;
    ++receive_posted_;
    any = true;
  }
  return any;
}

template <typename Element>
bool RingFlow<Element>::post_sends() {
  bool any = false;
  while (send_posted_ < plan_.messages() && sends_.size() < in_flight_ &&
         (send_posted_ < plan_.slices() || received_ > send_posted_ - plan_.slices())) {
    const Extent m = plan_.sent(send_posted_);
    if (!sends_.send(send_sets_[set_], m.offset * sizeof(Element), m.count * sizeof(Element))) {
      break;
    }
    ++send_posted_;
    any = true;
  }
  return any;
}

template <typename Element>
void RingFlow<Element>::take_received() {
  const Extent m = plan_.received(received_);
  if (plan_.reduces(received_)) {
    const auto* from =
        reinterpret_cast<const Element*>(scratch_.data) + received_ % in_flight_ * slice_;
    auto* into = reinterpret_cast<Element*>(receive_sets_[set_].data) + m.offset;
    add_into(std::span<Element>(into, m.count), std::span<const Element>(from, m.count));
  }
  moved_ += m.count * sizeof(Element);
  ++received_;
}

template class RingFlow<float>;
template class RingFlow<std::int32_t>;

}  // namespace fabric::perf
