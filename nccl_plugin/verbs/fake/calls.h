// What the files of the fake table share: its objects, and how calls fail.
#pragma once

#include <cerrno>

#include "verbs/fake/network.h"

namespace fabric::verbs::fake {

struct DeviceModel {
  ibv_device base{};
  Nic* nic = nullptr;
};
struct ContextModel {
  ibv_context base{};
  Nic* nic = nullptr;
};

inline Nic& nic_of(ibv_context* context) { return *reinterpret_cast<ContextModel*>(context)->nic; }
inline Nic& nic_of(ibv_pd* domain) { return nic_of(domain->context); }

// Any thread may call; what is on its way may arrive meanwhile.
template <auto F, typename = decltype(F)>
struct Locked;
template <auto F, typename R, typename... A>
struct Locked<F, R (*)(A...)> {
  static R call(A... arguments) {
    Network& network = *Network::current();
    const std::scoped_lock lock(network.mutex);
    if (network.carries_at_once) {
      network.run();
    }
    return F(arguments...);
  }
};
template <auto F>
constexpr auto locked = &Locked<F>::call;

// As calls that return pointers fail.
inline bool refused(Nic& nic, Call call) {
  const int code = nic.planned(call);
  errno = code != 0 ? code : errno;
  return code != 0;
}

template <typename Object>
int destroy(Nic& nic, Call call, Object* object) {
  const int code = nic.planned(call);
  if (code == 0 || code == EIO) {
    --nic.objects;
    delete object;
  } else {
    nic.refused.push_back(std::shared_ptr<Object>(object));
  }
  return code;
}

inline CompletionQueueModel& model_of(ibv_cq* queue) {
  return *reinterpret_cast<CompletionQueueModel*>(queue);
}

// fake/queue_pairs.cpp
ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes);
int modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
int query_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* initial);
int destroy_qp(ibv_qp* pair);
int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** bad);
int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** bad);

}  // namespace fabric::verbs::fake
