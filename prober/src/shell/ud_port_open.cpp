// Opening a verbs port: its GID, its queues, its queue pair.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "shell/address.h"
#include "shell/ud_port.h"

// Macros that stand for inline functions; the names are the table's here.
#undef ibv_query_port
#undef ibv_reg_mr

namespace fabric::prober {
namespace {

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

void UdPort::find_clock() {
  ibv_device_attr_ex attributes{};
  if (verbs_.query_device_ex(context_, nullptr, &attributes) != 0) return;
  if (!device_ticks()) return;
  clock_ = DeviceClock(attributes.completion_timestamp_mask, attributes.hca_core_clock);
}

std::optional<std::uint64_t> UdPort::device_ticks() const {
  ibv_values_ex values{};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  if (verbs_.query_rt_values_ex(context_, &values) != 0) return std::nullopt;
  if ((values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK) == 0) return std::nullopt;
  // In ticks, whatever the fields' names say.
  constexpr std::uint64_t kSecond = 1'000'000'000;
  return static_cast<std::uint64_t>(values.raw_clock.tv_sec) * kSecond +
         static_cast<std::uint64_t>(values.raw_clock.tv_nsec);
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
  find_clock();
  int rc = receives_.open(context_, kReceives, channel_, clock_.exists());
  if (rc == 0) rc = sends_.open(context_, kSends, nullptr, clock_.exists());
  if (rc != 0) refuse("completion queue", rc);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = sends_.queue();
  wanted.recv_cq = receives_.queue();
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
  rc = verbs_.modify_qp(qp_, &attributes,
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

}  // namespace fabric::prober
