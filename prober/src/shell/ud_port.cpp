#include "shell/ud_port.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "shell/address.h"
#include "shell/clock.h"

// Macros that stand for inline functions; the names are the table's here.
#undef ibv_query_port
#undef ibv_reg_mr

namespace fabric::prober {
namespace {

constexpr std::size_t kPolled = 32;
constexpr unsigned kAcknowledged = 64;  // completion notices at a time: it takes a lock

[[noreturn]] void refuse(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::strerror(error));
}

void set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) refuse("O_NONBLOCK", errno);
}

}  // namespace

int choose_gid(std::span<const ibv_gid_entry> table, const Address& address) {
  for (const ibv_gid_entry& entry : table) {
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    if (std::equal(address.ip.begin(), address.ip.end(), entry.gid.raw)) {
      return static_cast<int>(entry.gid_index);
    }
  }
  return -1;
}

UdPort::UdPort(const verbs::Functions& verbs, const LinkConfig& link, std::uint8_t dscp)
    : verbs_(verbs),
      port_(link.device_port),
      traffic_class_(static_cast<std::uint8_t>(dscp << 2)),
      address_(link.address),
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
  if (receive_cq_ != nullptr && notices_ != 0) verbs_.ack_cq_events(receive_cq_, notices_);
  if (qp_ != nullptr) verbs_.destroy_qp(qp_);
  for (ibv_ah* handle : handles_) verbs_.destroy_ah(handle);
  if (send_cq_ != nullptr) verbs_.destroy_cq(send_cq_);
  if (receive_cq_ != nullptr) verbs_.destroy_cq(receive_cq_);
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  if (mr_ != nullptr) verbs_.dereg_mr(mr_);
  if (pd_ != nullptr) verbs_.dealloc_pd(pd_);
  if (context_ != nullptr) verbs_.close_device(context_);
}

void UdPort::open(const LinkConfig& link) {
  int count = 0;
  ibv_device** devices = verbs_.get_device_list(&count);
  if (devices == nullptr) refuse("no verbs devices", errno);
  bool there = false;
  for (int i = 0; i < count && !there; ++i) {
    if (link.device != verbs_.get_device_name(devices[i])) continue;
    there = true;
    context_ = verbs_.open_device(devices[i]);
  }
  const int error = errno;
  verbs_.free_device_list(devices);
  if (!there) throw std::runtime_error("there is no verbs device " + link.device);
  if (context_ == nullptr) refuse("cannot be opened", error);
  ibv_port_attr attributes{};
  if (const int rc = verbs_.query_port(context_, port_, &attributes); rc != 0) {
    refuse("port " + std::to_string(port_), rc);
  }
  active_ = attributes.state == IBV_PORT_ACTIVE;
  infiniband_ = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND;
  if (infiniband_) {
    if (attributes.lid == 0) throw std::runtime_error("the port has no LID yet");
    terms_.lid = attributes.lid;
    return;
  }
  std::vector<ibv_gid_entry> table;
  for (int i = 0; i < attributes.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    const int rc = verbs_.query_gid_ex(context_, port_, static_cast<std::uint32_t>(i), &entry);
    if (rc == EOPNOTSUPP) refuse("GID types (rdma-core 32 or later is needed)", rc);
    if (rc == 0) table.push_back(entry);
  }
  gid_index_ = choose_gid(table, address_);
  if (gid_index_ < 0) {
    throw std::runtime_error("no RoCE v2 GID of " + format_address(address_) + " on port " +
                             std::to_string(port_));
  }
  std::copy(address_.ip.begin(), address_.ip.end(), gid_.raw);
}

void UdPort::make_queues() {
  set_nonblocking(context_->async_fd);
  pd_ = verbs_.alloc_pd(context_);
  if (pd_ == nullptr) refuse("protection domain", errno);
  mr_ = verbs_.reg_mr(pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (mr_ == nullptr) refuse("memory registration (RLIMIT_MEMLOCK?)", errno);
  channel_ = verbs_.create_comp_channel(context_);
  if (channel_ == nullptr) refuse("completion channel", errno);
  set_nonblocking(channel_->fd);
  receive_cq_ = verbs_.create_cq(context_, static_cast<int>(kReceives), nullptr, channel_, 0);
  send_cq_ = verbs_.create_cq(context_, static_cast<int>(kSends), nullptr, nullptr, 0);
  if (receive_cq_ == nullptr || send_cq_ == nullptr) refuse("completion queue", errno);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = send_cq_;
  wanted.recv_cq = receive_cq_;
  wanted.qp_type = IBV_QPT_UD;
  wanted.sq_sig_all = 1;
  wanted.cap.max_send_wr = kSends;
  wanted.cap.max_recv_wr = kReceives;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  qp_ = verbs_.create_qp(pd_, &wanted);
  if (qp_ == nullptr) refuse("UD queue pair", errno);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = port_;
  attributes.qkey = kUdQkey;
  int rc = verbs_.modify_qp(qp_, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  if (rc != 0) refuse("queue pair to INIT", rc);
  attributes.qp_state = IBV_QPS_RTR;
  if (rc = verbs_.modify_qp(qp_, &attributes, IBV_QP_STATE); rc != 0) {
    refuse("queue pair to RTR", rc);
  }
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = 0;
  if (rc = verbs_.modify_qp(qp_, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN); rc != 0) {
    refuse("queue pair to RTS", rc);
  }
  for (std::size_t i = 0; i < kReceives; ++i) post_receive(i);
  arm();
  if (failed_) throw std::runtime_error(reason_);
  terms_.qpn = qp_->qp_num;
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
  std::array<ibv_wc, kPolled> done{};
  std::size_t read = 0;
  while (read < most && !failed_) {
    const int n = verbs_.poll_cq(receive_cq_, kPolled, done.data());
    if (n < 0) fail("poll of the receive queue");
    if (n <= 0) break;
    for (const ibv_wc& wc : std::span(done).first(static_cast<std::size_t>(n))) {
      if (wc.status != IBV_WC_SUCCESS || wc.wr_id >= kReceives) {
        fail(std::string("receive: ") + verbs_.wc_status_str(wc.status));
        continue;
      }
      const std::span<const std::uint8_t> memory(receive_at(wc.wr_id), kReceiveSize);
      const std::size_t length = wc.byte_len > kGrhSize ? wc.byte_len - kGrhSize : 0;
      Received packet{std::nullopt, {wc.src_qp, wc.slid}, memory.subspan(kGrhSize), length};
      packet.bytes = packet.bytes.first(std::min(length, packet.bytes.size()));
      if ((wc.wc_flags & IBV_WC_GRH) != 0) {
        packet.source = source_of_grh(memory.first(kGrhSize), address_.is_v4() && !infiniband_);
      }
      on_received(packet);
      post_receive(wc.wr_id);
    }
    read += static_cast<std::size_t>(n);
    if (static_cast<std::size_t>(n) < kPolled) break;
  }
  return read;
}

void UdPort::drain_sent(const OnSent& on_sent) {
  std::array<ibv_wc, kPolled> done{};
  while (busy_ != 0 && !failed_) {
    const int n = verbs_.poll_cq(send_cq_, kPolled, done.data());
    if (n < 0) fail("poll of the send queue");
    if (n <= 0) return;
    for (const ibv_wc& wc : std::span(done).first(static_cast<std::size_t>(n))) {
      if (wc.wr_id >= kSends || !slots_[wc.wr_id].busy) continue;
      slots_[wc.wr_id].busy = false;
      --busy_;
      if (wc.status == IBV_WC_SUCCESS) {
        on_sent({send_at(wc.wr_id), kWireSize}, slots_[wc.wr_id].stamp);
      } else {
        fail(std::string("send: ") + verbs_.wc_status_str(wc.status));
      }
    }
  }
}

void UdPort::arm() {
  if (!failed_ && verbs_.req_notify_cq(receive_cq_, 0) != 0) fail("notice of completions");
}

void UdPort::take_notices() {
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  while (verbs_.get_cq_event(channel_, &cq, &user) == 0) ++notices_;
  if (notices_ < kAcknowledged) return;
  verbs_.ack_cq_events(receive_cq_, notices_);
  notices_ = 0;
}

UdPort::PortEvent UdPort::next_event() {
  ibv_async_event event{};
  while (verbs_.get_async_event(context_, &event) == 0) {
    const ibv_event_type type = event.event_type;
    const bool own = event.element.port_num == port_;
    const bool own_qp = event.element.qp == qp_;
    const bool own_cq = event.element.cq == receive_cq_ || event.element.cq == send_cq_;
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
