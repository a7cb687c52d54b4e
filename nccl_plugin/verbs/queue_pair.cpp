#include "verbs/queue_pair.h"

#include <endian.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>

namespace fabric::verbs {

namespace {

constexpr std::uint8_t kRnrRetryForEver = 7;  // credits keep receivers ready
constexpr std::uint8_t kRnrTimer = 12;        // 0.64 ms

}  // namespace

QueuePair::QueuePair(std::shared_ptr<Device> device, ibv_qp* pair)
    : device_(std::move(device)), pair_(pair) {}

std::unique_ptr<QueuePair> QueuePair::make(std::shared_ptr<Device> device, CompletionQueue& queue,
                                           const QueueDepths& depths, Error& error) {
  const Functions& verbs = device->verbs();
  ibv_qp_init_attr wanted{};
  wanted.send_cq = queue.get();
  wanted.recv_cq = queue.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = 1;
  wanted.cap.max_send_wr = depths.send;
  wanted.cap.max_recv_wr = depths.receive;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = depths.inline_bytes;
  ibv_qp_init_attr given = wanted;
  ibv_qp* pair = verbs.create_qp(device->domain(), &given);
  if (pair == nullptr && errno == EINVAL && depths.inline_bytes != 0) {
    // Some providers refuse more inline data than they have, rather than give less.
    given = wanted;
    given.cap.max_inline_data = 0;
    pair = verbs.create_qp(device->domain(), &given);
  }
  if (pair == nullptr) {
    error = verbs::failed("ibv_create_qp", device->name(), errno);
    return nullptr;
  }
  std::unique_ptr<QueuePair> made(new QueuePair(std::move(device), pair));
  made->inline_bytes_ = given.cap.max_inline_data;
  // Providers round up; more than was asked for would overflow the completion queue.
  made->send_depth_ = std::min(depths.send, given.cap.max_send_wr);
  made->receive_depth_ = std::min(depths.receive, given.cap.max_recv_wr);
  return made;
}

QueuePair::~QueuePair() { destroy(); }

bool QueuePair::destroy() {
  if (destruction_ != nullptr) {
    destruction_->wait(Destruction::under_way);
  }
  return destroyed(nullptr);
}

bool QueuePair::destroyed(const Elsewhere& elsewhere) {
  if (pair_ != nullptr) {
    phase_ = QueuePhase::error;
    destruction_ = std::make_shared<std::atomic<Destruction>>(Destruction::under_way);
    auto task = [device = device_, pair = std::exchange(pair_, nullptr), told = destruction_,
                 asked = error_code_] {
      if (asked != nullptr) {
        asked->wait(kAsked);  // the device has the queue pair in hand
      }
      const bool gone = device->destroyed(device->verbs().destroy_qp(pair));
      told->store(gone ? Destruction::done : Destruction::refused);
      told->notify_all();
    };
    if (elsewhere) {
      elsewhere(std::move(task));
    } else {
      task();
    }
  }
  return destruction_ == nullptr || *destruction_ == Destruction::done || device_->gone();
}

bool QueuePair::modify(ibv_qp_attr& attributes, int mask, QueuePhase to, const char* name,
                       Error& error) {
  const int code = device_->verbs().modify_qp(pair_, &attributes, mask);
  if (code != 0) {
    last_error_ = code < 0 ? errno : code;
    failed_ = true;
    error = verbs::failed(std::string("ibv_modify_qp to ") + name, device_->name(), last_error_);
    return false;
  }
  phase_ = to;
  return true;
}

bool QueuePair::to_init(const PathSettings& settings, Error& error) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = settings.pkey_index;
  attributes.port_num = settings.port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  return modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                QueuePhase::init, "INIT", error);
}

bool QueuePair::to_rtr(const PathSettings& settings, const PathTerms& local, const PathTerms& peer,
                       const QueuePairTerms& peer_pair, Error& error) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(local.mtu, peer.mtu));
  attributes.dest_qp_num = peer_pair.number;
  attributes.rq_psn = peer_pair.psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kRnrTimer;
  ibv_ah_attr& address = attributes.ah_attr;
  address.port_num = settings.port;
  address.sl = settings.service_level;
  address.dlid = peer.ethernet ? std::uint16_t{0} : peer.lid;
  address.is_global = peer.ethernet || (settings.grh && !is_zero(peer.gid)) ? 1 : 0;
  if (address.is_global != 0) {
    std::copy(peer.gid.begin(), peer.gid.end(), std::begin(address.grh.dgid.raw));
    address.grh.sgid_index = settings.gid_index;
    address.grh.hop_limit = settings.hop_limit;
    address.grh.traffic_class = settings.traffic_class;
  }
  return modify(attributes,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                QueuePhase::rtr, "RTR", error);
}

bool QueuePair::to_rts(const PathSettings& settings, std::uint32_t psn, Error& error) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = settings.timeout;
  attributes.retry_cnt = settings.retries;
  attributes.rnr_retry = kRnrRetryForEver;
  attributes.sq_psn = psn;
  attributes.max_rd_atomic = 1;
  return modify(attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                QueuePhase::rts, "RTS", error);
}

bool QueuePair::to_error(const Elsewhere& elsewhere, Error& error) {
  if (phase_ == QueuePhase::error) {
    return true;
  }
  if (error_code_ == nullptr) {
    failed_ = true;
    error_code_ = std::make_shared<std::atomic<int>>(kAsked);
    auto task = [device = device_, pair = pair_, told = error_code_] {
      ibv_qp_attr attributes{};
      attributes.qp_state = IBV_QPS_ERR;
      const int code = device->verbs().modify_qp(pair, &attributes, IBV_QP_STATE);
      told->store(code < 0 ? errno : code);
      told->notify_all();
    };
    if (elsewhere) {
      elsewhere(std::move(task));
    } else {
      task();
    }
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (*error_code_ == kAsked && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kPatience / 40);
    }
  }
  const int code = *error_code_;
  if (code == kAsked) {
    return false;
  }
  if (code != 0 && code != EIO) {
    last_error_ = code;
    error = verbs::failed("ibv_modify_qp to ERR", device_->name(), code);
    return false;
  }
  if (code == EIO) {
    device_->set_gone();
  }
  phase_ = QueuePhase::error;
  return true;
}

std::optional<ibv_qp_state> QueuePair::ask_state() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  if (pair_ == nullptr ||
      device_->verbs().query_qp(pair_, &attributes, IBV_QP_STATE, &initial) != 0) {
    return std::nullopt;
  }
  return attributes.qp_state;
}

Posted QueuePair::post(ibv_send_wr& request) {
  if (failed() || phase_ != QueuePhase::rts) {
    return Posted::failed;
  }
  if (!send_room()) {
    return Posted::full;
  }
  request.wr_id = sends_posted_;
  ibv_send_wr* bad = nullptr;
  const int code = device_->verbs().post_send(pair_, &request, &bad);
  if (code == 0) {
    ++sends_posted_;
    return Posted::done;
  }
  last_error_ = code < 0 ? errno : code;
  // A provider may run out of room before our count does; its completions will make some. With
  // nothing outstanding none will come.
  if (last_error_ == ENOMEM && sends_outstanding() != 0) {
    return Posted::full;
  }
  failed_ = true;
  return Posted::failed;
}

Posted QueuePair::post_write(const Write& write) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(write.data), write.length, write.local_key};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = write.length == 0 ? 0 : 1;
  request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  if (write.length != 0 && write.length <= inline_bytes_ && !write.device) {
    request.send_flags |= IBV_SEND_INLINE;
  }
  request.imm_data = htobe32(write.immediate.value_or(0));
  request.wr.rdma.remote_addr = write.address;
  request.wr.rdma.rkey = write.remote_key;
  return post(request);
}

Posted QueuePair::post_read(void* into, std::uint32_t length, std::uint32_t local_key,
                            std::uint64_t address, std::uint32_t remote_key) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(into), length, local_key};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = remote_key;
  return post(request);
}

std::uint32_t QueuePair::post_receives(std::uint32_t count) {
  constexpr std::size_t kBatch = 32;
  std::array<ibv_recv_wr, kBatch> requests{};
  std::uint32_t posted = 0;
  while (!failed() && posted < count) {
    const std::uint32_t room = receive_depth_ - receives_outstanding();
    const std::size_t many = std::min<std::size_t>({kBatch, count - posted, room});
    if (many == 0) {
      break;
    }
    for (std::size_t i = 0; i < many; ++i) {
      requests[i] = {};
      requests[i].wr_id = kReceiveId | (receives_posted_ + i);
      requests[i].next = i + 1 < many ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    const int code = device_->verbs().post_recv(pair_, requests.data(), &bad);
    const std::size_t taken = code == 0        ? many
                              : bad == nullptr ? 0
                                               : static_cast<std::size_t>(bad - requests.data());
    receives_posted_ += taken;
    posted += static_cast<std::uint32_t>(taken);
    if (code != 0) {
      last_error_ = code < 0 ? errno : code;
      failed_ = last_error_ != ENOMEM || receives_outstanding() == 0;
      break;
    }
  }
  return posted;
}

bool QueuePair::completed(std::uint64_t id) {
  if (is_receive(id)) {
    if ((id & ~kReceiveId) != receives_completed_ || receives_outstanding() == 0) {
      return false;
    }
    ++receives_completed_;
    return true;
  }
  if (id != sends_completed_ || sends_outstanding() == 0) {
    return false;
  }
  ++sends_completed_;
  return true;
}

}  // namespace fabric::verbs
