#include "shell/ud_port.h"

#include <algorithm>
#include <cstring>

#include "shell/clock.h"

// Macros that stand for inline functions; the names are the table's here.
#undef ibv_query_port
#undef ibv_reg_mr

namespace fabric::prober {
namespace {

constexpr std::size_t kPolled = 32;
constexpr Nanos kOldest = DeviceClock::kOldest;
constexpr unsigned kAcknowledged = 64;  // completion notices at a time: it takes a lock

}  // namespace

UdPort::UdPort(const verbs::Functions& verbs, const LinkConfig& link, std::uint8_t dscp)
    : verbs_(verbs),
      port_(link.device_port),
      traffic_class_(static_cast<std::uint8_t>(dscp << 2)),
      address_(link.address),
      receives_(verbs),
      sends_(verbs),
      memory_(kReceives * kReceiveSize + kSends * kWireSize) {
  try {
    open(link);
    make_queues();
  } catch (...) {
    close();
    throw;
  }
}

void UdPort::close() {
  // An object whose device is gone refuses; there is nothing else to free then.
  if (receives_.queue() != nullptr && notices_ != 0) {
    verbs_.ack_cq_events(receives_.queue(), notices_);
  }
  if (qp_ != nullptr) verbs_.destroy_qp(qp_);
  for (ibv_ah* handle : handles_) verbs_.destroy_ah(handle);
  sends_.close();
  receives_.close();
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  if (mr_ != nullptr) verbs_.dereg_mr(mr_);
  if (pd_ != nullptr) verbs_.dealloc_pd(pd_);
  if (context_ != nullptr) verbs_.close_device(context_);
}

void UdPort::read_device_clock(Nanos now) {
  if (!stamped() || now < clock_next_) return;
  clock_next_ = now + kClockEvery;
  const Nanos before = read_clock(CLOCK_MONOTONIC_RAW);
  const std::optional<std::uint64_t> ticks = device_ticks();
  const Nanos after = read_clock(CLOCK_MONOTONIC_RAW);
  if (ticks) clock_.add(before, *ticks, after);
}

std::int64_t UdPort::stamp_of(const UdCompletion& done, std::int64_t least, std::int64_t most,
                              std::int64_t otherwise) const {
  return done.ticks ? clock_.to_raw(*done.ticks, least, most).value_or(otherwise) : otherwise;
}

bool UdPort::is_current() const {
  ibv_port_attr attributes{};
  if (verbs_.query_port(context_, port_, &attributes) != 0) return false;
  if (infiniband_) return attributes.lid == terms_.lid;
  ibv_gid_entry entry{};
  if (verbs_.query_gid_ex(context_, port_, static_cast<std::uint32_t>(gid_index_), &entry) != 0) {
    return false;
  }
  return choose_gid({&entry, 1}, address_) == gid_index_;
}

ibv_ah* UdPort::make_handle(const Address& peer, const UdTerms& to) {
  ibv_ah_attr attributes{};
  attributes.port_num = port_;
  if (infiniband_) {
    attributes.dlid = to.lid;
  } else {
    attributes.is_global = 1;
    std::copy(peer.ip.begin(), peer.ip.end(), attributes.grh.dgid.raw);
    attributes.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
    attributes.grh.hop_limit = 64;
    attributes.grh.traffic_class = traffic_class_;
  }
  ibv_ah* handle = verbs_.create_ah(pd_, &attributes);
  if (handle != nullptr) handles_.push_back(handle);
  return handle;
}

void UdPort::free_handle(ibv_ah* handle) {
  std::erase(handles_, handle);
  verbs_.destroy_ah(handle);
}

void UdPort::fail(const std::string& what) {
  if (!failed_) reason_ = what;
  failed_ = true;
}

void UdPort::post_receive(std::size_t slot) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(receive_at(slot)), kReceiveSize, mr_->lkey};
  ibv_recv_wr request{};
  request.wr_id = slot;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int rc = verbs_.post_recv(qp_, &request, &bad); rc != 0) {
    fail(std::string("post receive: ") + std::strerror(rc));
  }
}

bool UdPort::send(const Outgoing& packet, ibv_ah* handle) {
  Slot& slot = slots_[next_slot_];
  if (slot.busy || failed_) return false;
  std::uint8_t* memory = send_at(next_slot_);
  std::copy(packet.bytes.begin(), packet.bytes.end(), memory);
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(memory), kWireSize, mr_->lkey};
  ibv_send_wr request{};
  request.wr_id = next_slot_;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = handle;
  request.wr.ud.remote_qpn = packet.to.qpn;
  request.wr.ud.remote_qkey = kUdQkey;
  ibv_send_wr* bad = nullptr;
  slot.stamp = read_clock(CLOCK_MONOTONIC_RAW);
  if (verbs_.post_send(qp_, &request, &bad) != 0) return false;
  slot.busy = true;
  ++busy_;
  next_slot_ = (next_slot_ + 1) % kSends;
  return true;
}

std::size_t UdPort::drain(std::size_t most, const OnReceived& on_received) {
  std::array<UdCompletion, kPolled> done{};
  std::size_t read = 0;
  while (read < most && !failed_) {
    const int n = receives_.poll(done);
    if (n < 0) fail("poll of the receive queue");
    if (n <= 0) break;
    for (const UdCompletion& one : std::span(done).first(static_cast<std::size_t>(n))) {
      if (one.status != IBV_WC_SUCCESS || one.id >= kReceives) {
        fail(std::string("receive: ") + verbs_.wc_status_str(one.status));
        continue;
      }
      const std::span<const std::uint8_t> memory(receive_at(one.id), kReceiveSize);
      const std::size_t length = one.length > kGrhSize ? one.length - kGrhSize : 0;
      const std::int64_t now = read_clock(CLOCK_MONOTONIC_RAW);
      Received packet{std::nullopt,
                      {one.source_pair, one.source_lid},
                      memory.subspan(kGrhSize),
                      length,
                      stamp_of(one, now - kOldest, now, now)};
      packet.bytes = packet.bytes.first(std::min(length, packet.bytes.size()));
      if (one.has_grh) {
        packet.source = source_of_grh(memory.first(kGrhSize), address_.is_v4() && !infiniband_);
      }
      on_received(packet);
      post_receive(one.id);
    }
    read += static_cast<std::size_t>(n);
    if (static_cast<std::size_t>(n) < kPolled) break;
  }
  return read;
}

void UdPort::drain_sent(const OnSent& on_sent) {
  std::array<UdCompletion, kPolled> done{};
  while (busy_ != 0 && !failed_) {
    const int n = sends_.poll(done);
    if (n < 0) fail("poll of the send queue");
    if (n <= 0) return;
    for (const UdCompletion& one : std::span(done).first(static_cast<std::size_t>(n))) {
      if (one.id >= kSends || !slots_[one.id].busy) continue;
      Slot& slot = slots_[one.id];
      slot.busy = false;
      --busy_;
      if (one.status == IBV_WC_SUCCESS) {
        on_sent({send_at(one.id), kWireSize},
                stamp_of(one, slot.stamp, read_clock(CLOCK_MONOTONIC_RAW), slot.stamp));
      } else {
        fail(std::string("send: ") + verbs_.wc_status_str(one.status));
      }
    }
  }
}

void UdPort::arm() {
  if (!failed_ && verbs_.req_notify_cq(receives_.queue(), 0) != 0) fail("notice of completions");
}

void UdPort::take_notices() {
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  while (verbs_.get_cq_event(channel_, &cq, &user) == 0) ++notices_;
  if (notices_ < kAcknowledged) return;
  verbs_.ack_cq_events(receives_.queue(), notices_);
  notices_ = 0;
}

UdPort::PortEvent UdPort::next_event() {
  ibv_async_event event{};
  while (verbs_.get_async_event(context_, &event) == 0) {
    const ibv_event_type type = event.event_type;
    const bool own = event.element.port_num == port_;
    const bool own_qp = event.element.qp == qp_;
    const bool own_cq = event.element.cq == receives_.queue() || event.element.cq == sends_.queue();
    verbs_.ack_async_event(&event);
    switch (type) {
      case IBV_EVENT_PORT_ACTIVE:
        if (!own) break;
        active_ = true;
        return PortEvent::kActive;
      case IBV_EVENT_PORT_ERR:
        if (!own) break;
        active_ = false;
        return PortEvent::kDown;
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER:
        if (own) return PortEvent::kChanged;
        break;
      case IBV_EVENT_DEVICE_FATAL:
        fail("device fatal");
        return PortEvent::kFatal;
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        if (type == IBV_EVENT_CQ_ERR ? !own_cq : !own_qp) break;
        fail(verbs_.event_type_str(type));
        return PortEvent::kFatal;
      default:
        break;
    }
  }
  return PortEvent::kNone;
}

}  // namespace fabric::prober
