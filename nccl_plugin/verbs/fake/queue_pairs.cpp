// Queue pairs of the fake network, as libibverbs has them.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "verbs/fake/calls.h"

namespace fabric::verbs::fake {

ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  Nic& nic = nic_of(domain);
  if (refused(nic, Call::create_qp)) {
    return nullptr;
  }
  if (attributes->cap.max_inline_data > nic.inline_bytes) {
    errno = EINVAL;
    return nullptr;
  }
  Network& network = *Network::current();
  auto pair = std::make_unique<QueuePairModel>();
  pair->nic = &nic;
  pair->queue = &model_of(attributes->send_cq);
  pair->cap = attributes->cap;
  pair->base.context = domain->context;
  pair->base.pd = domain;
  pair->base.qp_num = network.next_number++;
  ++nic.objects;
  ibv_qp* made = &pair->base;
  network.pairs[made->qp_num] = std::move(pair);
  return made;
}

int modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  QueuePairModel& model = Network::model(pair);
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : model.state;
  const Call call = to == IBV_QPS_INIT  ? Call::to_init
                    : to == IBV_QPS_RTR ? Call::to_rtr
                    : to == IBV_QPS_RTS ? Call::to_rts
                                        : Call::to_error;
  if (const int code = model.nic->planned(call); code != 0) {
    return code;
  }
  const ibv_qp_state from = to == IBV_QPS_INIT  ? IBV_QPS_RESET
                            : to == IBV_QPS_RTR ? IBV_QPS_INIT
                            : to == IBV_QPS_RTS ? IBV_QPS_RTR
                                                : model.state;
  if (model.state != from || (to == IBV_QPS_ERR && from == IBV_QPS_RESET)) {
    return EINVAL;
  }
  if (to == IBV_QPS_ERR) {
    Network::current()->enter_error(model);
    return 0;
  }
  if (to == IBV_QPS_RTR) {
    model.attributes.dest_qp_num = attributes->dest_qp_num;
    model.attributes.ah_attr = attributes->ah_attr;
    model.attributes.path_mtu = attributes->path_mtu;
  } else if (to == IBV_QPS_RTS) {
    model.attributes.rnr_retry = attributes->rnr_retry;
    model.attributes.timeout = attributes->timeout;
    model.attributes.retry_cnt = attributes->retry_cnt;
  } else {
    model.attributes.pkey_index = attributes->pkey_index;
  }
  model.state = to;
  return 0;
}

int query_qp(ibv_qp* pair, ibv_qp_attr* attributes, int /*mask*/, ibv_qp_init_attr* /*initial*/) {
  attributes->qp_state = Network::model(pair).state;
  return Network::model(pair).nic->planned(Call::query_qp);
}

int destroy_qp(ibv_qp* pair) {
  QueuePairModel& model = Network::model(pair);
  const int code = model.nic->planned(Call::destroy_qp);
  if (code == 0 || code == EIO) {
    model.destroyed = true;  // the model stays: packets of it may be on their way
    model.sends.clear();
    model.receives.clear();
    std::erase_if(model.queue->ready,
                  [pair](const ibv_wc& wc) { return wc.qp_num == pair->qp_num; });
    --model.nic->objects;
  }
  return code;
}

int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** bad) {
  QueuePairModel& model = Network::model(pair);
  for (ibv_send_wr* work = first; work != nullptr; work = work->next) {
    *bad = work;
    if (const int code = model.nic->planned(Call::post_send); code != 0) {
      return code;
    }
    if (model.sends.size() + model.flying.size() >=
        std::min(model.cap.max_send_wr, model.nic->send_room)) {
      return ENOMEM;
    }
    Request request;
    request.work = *work;
    request.work.next = nullptr;
    for (int i = 0; i < work->num_sge; ++i) {
      const ibv_sge& piece = work->sg_list[i];
      const bool by_value = (work->send_flags & IBV_SEND_INLINE) != 0;
      const auto found = model.nic->registered.find(piece.lkey);
      request.bad_key =
          !by_value &&
          (found == model.nic->registered.end() || piece.addr < found->second.address ||
           piece.addr + piece.length > found->second.address + found->second.length);
      request.length = piece.length;
      if (request.bad_key) {
        continue;
      }
      std::byte* bytes =
          by_value ? memory_at(piece.addr) : model.nic->reach(piece.lkey, piece.addr);
      if (work->opcode == IBV_WR_RDMA_READ) {
        request.local = bytes;
      } else {
        request.bytes.assign(bytes, bytes + piece.length);
      }
    }
    if (model.state == IBV_QPS_ERR) {  // accepted, and flushed
      model.sends.push_back(std::move(request));
      Network::current()->flush(model);
    } else {
      model.sends.push_back(std::move(request));
    }
  }
  return 0;
}

int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** bad) {
  QueuePairModel& model = Network::model(pair);
  for (ibv_recv_wr* work = first; work != nullptr; work = work->next) {
    *bad = work;
    if (const int code = model.nic->planned(Call::post_recv); code != 0) {
      return code;
    }
    if (model.receives.size() >= model.cap.max_recv_wr) {
      return ENOMEM;
    }
    model.receives.push_back(work->wr_id);
  }
  return 0;
}

}  // namespace fabric::verbs::fake
