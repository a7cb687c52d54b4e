#include "ud_fake.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#undef ibv_query_port
#undef ibv_reg_mr

namespace fabric::prober::test {
namespace {

UdFake* fake = nullptr;

bool refused(const char* call) {
  errno = fake->fails(call);
  return errno != 0;
}

template <typename T>
T* of(void* base) {
  return reinterpret_cast<T*>(base);
}

ibv_device** get_device_list(int* count) {
  const auto lock = fake->lock();
  if (refused("get_device_list")) return nullptr;
  auto** list = new ibv_device* [fake->nics.size() + 1] {};
  *count = 0;
  for (FakeNic& nic : fake->nics) list[(*count)++] = &nic.device;
  return list;
}
void free_device_list(ibv_device** list) {
  const auto lock = fake->lock();
  delete[] list;
}
const char* get_device_name(ibv_device* device) {
  const auto lock = fake->lock();
  return of<FakeNic>(device)->name.c_str();
}
ibv_context* open_device(ibv_device* device) {
  const auto lock = fake->lock();
  if (refused("open_device")) return nullptr;
  auto* nic = of<FakeNic>(device);
  ++nic->objects;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return nullptr;
  nic->context.async_fd = ends[0];
  ::close(ends[1]);
  return &nic->context;
}
int close_device(ibv_context* context) {
  const auto lock = fake->lock();
  ::close(context->async_fd);
  --fake->nic_of(context).objects;
  return 0;
}
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*,
                    ibv_device_attr_ex* out) {
  const auto lock = fake->lock();
  if (refused("query_device_ex")) return errno;
  const FakeNic& nic = fake->nic_of(context);
  out->completion_timestamp_mask = nic.stamp_mask;
  out->hca_core_clock = nic.khz;
  return 0;
}
int query_rt_values_ex(ibv_context* context, ibv_values_ex* out) {
  const auto lock = fake->lock();
  if (refused("query_rt_values_ex")) return errno;
  const FakeNic& nic = fake->nic_of(context);
  out->raw_clock.tv_sec = 0;
  out->raw_clock.tv_nsec = static_cast<long>(nic.ticks() & nic.stamp_mask);
  return 0;
}
int query_port(ibv_context* context, std::uint8_t, ibv_port_attr* out) {
  const auto lock = fake->lock();
  if (refused("query_port")) return errno;
  const FakeNic& nic = fake->nic_of(context);
  *out = {};
  out->state = nic.active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out->link_layer = nic.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  out->lid = nic.lid;
  out->gid_tbl_len = static_cast<int>(nic.gids.size());
  return 0;
}
int query_gid_ex(ibv_context* context, std::uint32_t, std::uint32_t index, ibv_gid_entry* out) {
  const auto lock = fake->lock();
  if (refused("query_gid_ex")) return errno;
  const FakeNic& nic = fake->nic_of(context);
  if (index >= nic.gids.size() || nic.gids[index].gid_type == IBV_GID_TYPE_IB) return ENODATA;
  *out = nic.gids[index];
  out->gid_index = index;
  return 0;
}
ibv_pd* alloc_pd(ibv_context* context) {
  const auto lock = fake->lock();
  if (refused("alloc_pd")) return nullptr;
  ++fake->nic_of(context).objects;
  auto* pd = new ibv_pd{};
  pd->context = context;
  return pd;
}
int dealloc_pd(ibv_pd* pd) {
  const auto lock = fake->lock();
  --fake->nic_of(pd->context).objects;
  delete pd;
  return 0;
}
ibv_mr* reg_mr(ibv_pd* pd, void*, std::size_t, int) {
  const auto lock = fake->lock();
  if (refused("reg_mr")) return nullptr;
  ++fake->nic_of(pd->context).objects;
  auto* mr = new ibv_mr{};
  mr->context = pd->context;
  return mr;
}
int dereg_mr(ibv_mr* mr) {
  const auto lock = fake->lock();
  --fake->nic_of(mr->context).objects;
  delete mr;
  return 0;
}
ibv_comp_channel* create_comp_channel(ibv_context* context) {
  const auto lock = fake->lock();
  if (refused("create_comp_channel")) return nullptr;
  FakeNic& nic = fake->nic_of(context);
  ++nic.objects;
  nic.channels.emplace_back().base.context = context;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return nullptr;
  nic.channels.back().base.fd = ends[0];
  ::close(ends[1]);
  return &nic.channels.back().base;
}
int destroy_comp_channel(ibv_comp_channel* channel) {
  const auto lock = fake->lock();
  ::close(channel->fd);
  FakeNic& nic = fake->nic_of(channel->context);
  --nic.objects;
  nic.channels.remove_if([&](const FakeChannel& item) { return &item.base == channel; });
  return 0;
}
FakeQueue& add_queue(ibv_context* context, ibv_comp_channel* channel) {
  FakeNic& nic = fake->nic_of(context);
  ++nic.objects;
  FakeQueue& queue = nic.queues.emplace_back();
  queue.base.context = context;
  queue.channel = of<FakeChannel>(channel);
  return queue;
}
ibv_cq* create_cq(ibv_context* context, int, void*, ibv_comp_channel* channel, int) {
  const auto lock = fake->lock();
  if (refused("create_cq")) return nullptr;
  return ibv_cq_ex_to_cq(&add_queue(context, channel).base);
}
int stand_at_first(ibv_cq_ex* cq) {
  auto* queue = of<FakeQueue>(cq);
  queue->standing = !queue->done.empty();
  if (!queue->standing) return ENOENT;
  cq->wr_id = queue->done.front().wr_id;
  cq->status = queue->done.front().status;
  return 0;
}
void drop_first(ibv_cq_ex* cq) {
  of<FakeQueue>(cq)->done.pop_front();
  of<FakeQueue>(cq)->ticks.pop_front();
}
int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr*) {
  const auto lock = fake->lock();
  if (refused("poll_cq")) return errno;
  return stand_at_first(cq);
}
int next_poll(ibv_cq_ex* cq) {
  const auto lock = fake->lock();
  drop_first(cq);
  return stand_at_first(cq);
}
void end_poll(ibv_cq_ex* cq) {
  const auto lock = fake->lock();
  if (of<FakeQueue>(cq)->standing) drop_first(cq);
}
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) {
  const auto lock = fake->lock();
  if (refused("create_cq_ex")) return nullptr;
  ibv_cq_ex& cq = add_queue(context, attributes->channel).base;
  cq.start_poll = start_poll;
  cq.next_poll = next_poll;
  cq.end_poll = end_poll;
  cq.read_opcode = [](ibv_cq_ex* at) { return of<FakeQueue>(at)->done.front().opcode; };
  cq.read_byte_len = [](ibv_cq_ex* at) { return of<FakeQueue>(at)->done.front().byte_len; };
  cq.read_src_qp = [](ibv_cq_ex* at) { return of<FakeQueue>(at)->done.front().src_qp; };
  cq.read_slid = [](ibv_cq_ex* at) { return std::uint32_t{of<FakeQueue>(at)->done.front().slid}; };
  cq.read_wc_flags = [](ibv_cq_ex* at) { return of<FakeQueue>(at)->done.front().wc_flags; };
  cq.read_completion_ts = [](ibv_cq_ex* at) { return of<FakeQueue>(at)->ticks.front(); };
  return &cq;
}
int destroy_cq(ibv_cq* cq) {
  const auto lock = fake->lock();
  FakeNic& nic = fake->nic_of(cq->context);
  --nic.objects;
  nic.queues.remove_if([&](FakeQueue& item) { return ibv_cq_ex_to_cq(&item.base) == cq; });
  return 0;
}
int poll_cq(ibv_cq* cq, int count, ibv_wc* out) {
  const auto lock = fake->lock();
  if (refused("poll_cq")) return -1;
  auto& done = of<FakeQueue>(cq)->done;
  int n = 0;
  for (; n < count && !done.empty(); ++n) {
    out[n] = done.front();
    done.pop_front();
    of<FakeQueue>(cq)->ticks.pop_front();
  }
  return n;
}
int req_notify_cq(ibv_cq* cq, int) {
  const auto lock = fake->lock();
  if (refused("req_notify_cq")) return errno;
  of<FakeQueue>(cq)->armed = true;
  return 0;
}
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void**) {
  const auto lock = fake->lock();
  auto& notices = of<FakeChannel>(channel)->notices;
  if (notices.empty()) return -1;
  *cq = notices.front();
  notices.pop_front();
  return 0;
}
void ack_cq_events(ibv_cq*, unsigned) {}
ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  const auto lock = fake->lock();
  if (refused("create_qp")) return nullptr;
  FakeNic& nic = fake->nic_of(pd->context);
  ++nic.objects;
  FakePair& pair = nic.pairs.emplace_back();
  pair.base.context = pd->context;
  pair.base.qp_num = fake->next_qpn++;
  pair.sends = of<FakeQueue>(attributes->send_cq);
  pair.receives = of<FakeQueue>(attributes->recv_cq);
  return &pair.base;
}
int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const auto lock = fake->lock();
  static const std::map<ibv_qp_state, const char*> kCalls = {
      {IBV_QPS_INIT, "to_init"}, {IBV_QPS_RTR, "to_rtr"}, {IBV_QPS_RTS, "to_rts"}};
  if (refused(kCalls.at(attributes->qp_state))) return errno;
  if ((mask & IBV_QP_QKEY) != 0) of<FakePair>(qp)->qkey = attributes->qkey;
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  const auto lock = fake->lock();
  FakeNic& nic = fake->nic_of(qp->context);
  --nic.objects;
  nic.pairs.remove_if([&](const FakePair& item) { return &item.base == qp; });
  return 0;
}
int post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr**) {
  const auto lock = fake->lock();
  if (refused("post_recv")) return errno;
  of<FakePair>(qp)->posted.push_back(*first);
  of<FakePair>(qp)->pieces.push_back(*first->sg_list);
  return 0;
}
int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr**) {
  const auto lock = fake->lock();
  if (refused("post_send")) return errno;
  auto* pair = of<FakePair>(qp);
  const auto* memory = reinterpret_cast<const std::uint8_t*>(first->sg_list->addr);
  std::vector<std::uint8_t> bytes(memory, memory + first->sg_list->length);
  ibv_wc done{};
  done.wr_id = first->wr_id;
  done.status = fake->send_status;
  done.opcode = IBV_WC_SEND;
  pair->sends->complete(done);
  if (fake->send_status != IBV_WC_SUCCESS || fake->lost()) return 0;
  fake->deliver(fake->nic_of(qp->context), *pair, *of<FakeHandle>(first->wr.ud.ah),
                first->wr.ud.remote_qpn, first->wr.ud.remote_qkey, std::move(bytes));
  return 0;
}
ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  const auto lock = fake->lock();
  if (refused("create_ah")) return nullptr;
  FakeNic& nic = fake->nic_of(pd->context);
  ++nic.objects;
  FakeHandle& handle = nic.handles.emplace_back();
  handle.base.context = pd->context;
  handle.attributes = *attributes;
  return &handle.base;
}
int destroy_ah(ibv_ah* ah) {
  const auto lock = fake->lock();
  FakeNic& nic = fake->nic_of(ah->context);
  --nic.objects;
  nic.handles.remove_if([&](const FakeHandle& item) { return &item.base == ah; });
  return 0;
}
int get_async_event(ibv_context* context, ibv_async_event* out) {
  const auto lock = fake->lock();
  auto& events = fake->nic_of(context).events;
  if (events.empty()) return -1;
  *out = events.front();
  events.pop_front();
  return 0;
}
void ack_async_event(ibv_async_event*) {}
const char* event_type_str(ibv_event_type) { return "an event"; }
const char* wc_status_str(ibv_wc_status status) {
  return status == IBV_WC_WR_FLUSH_ERR ? "flushed" : "another";
}

}  // namespace

void FakeQueue::complete(const ibv_wc& wc) {
  const FakeNic& nic = fake->nic_of(base.context);
  done.push_back(wc);
  ticks.push_back(nic.ticks() & nic.stamp_mask);
}

UdFake::UdFake() {
  fake = this;
  verbs::Functions& f = functions_;
  f.get_device_list = get_device_list;
  f.free_device_list = free_device_list;
  f.get_device_name = get_device_name;
  f.open_device = open_device;
  f.close_device = close_device;
  f.query_device_ex = query_device_ex;
  f.query_rt_values_ex = query_rt_values_ex;
  f.query_port = query_port;
  f.query_gid_ex = query_gid_ex;
  f.alloc_pd = alloc_pd;
  f.dealloc_pd = dealloc_pd;
  f.reg_mr = reg_mr;
  f.dereg_mr = dereg_mr;
  f.create_comp_channel = create_comp_channel;
  f.destroy_comp_channel = destroy_comp_channel;
  f.create_cq = create_cq;
  f.create_cq_ex = create_cq_ex;
  f.destroy_cq = destroy_cq;
  f.poll_cq = poll_cq;
  f.req_notify_cq = req_notify_cq;
  f.get_cq_event = get_cq_event;
  f.ack_cq_events = ack_cq_events;
  f.create_qp = create_qp;
  f.modify_qp = modify_qp;
  f.destroy_qp = destroy_qp;
  f.post_recv = post_recv;
  f.post_send = post_send;
  f.create_ah = create_ah;
  f.destroy_ah = destroy_ah;
  f.get_async_event = get_async_event;
  f.ack_async_event = ack_async_event;
  f.event_type_str = event_type_str;
  f.wc_status_str = wc_status_str;
}

UdFake::~UdFake() { fake = nullptr; }

FakeNic& UdFake::add(const std::string& name, const Address& address) {
  FakeNic& nic = nics.emplace_back();
  nic.name = name;
  nic.context.device = &nic.device;
  // As soft-RoCE has them: link-local first, a hole, then the address in both versions.
  nic.gids.resize(4);
  for (std::size_t i = 0; i < nic.gids.size(); ++i) {
    nic.gids[i].gid_type = IBV_GID_TYPE_ROCE_V2;
    std::copy(address.ip.begin(), address.ip.end(), nic.gids[i].gid.raw);
  }
  nic.gids[0].gid.raw[0] = 0xfe;
  nic.gids[1].gid_type = IBV_GID_TYPE_IB;
  nic.gids[2].gid_type = IBV_GID_TYPE_ROCE_V1;
  return nic;
}

int UdFake::fails(const std::string& call) const {
  const auto found = failing.find(call);
  return found == failing.end() ? 0 : found->second;
}

FakeNic& UdFake::nic_of(const ibv_context* context) { return *of<FakeNic>(context->device); }

void UdFake::deliver(FakeNic& from, const FakePair& sender, const FakeHandle& to, std::uint32_t qpn,
                     std::uint32_t qkey, std::vector<std::uint8_t> bytes) {
  for (FakeNic& nic : nics) {
    const bool here =
        nic.infiniband ? nic.lid == to.attributes.dlid
                       : std::memcmp(nic.gids.back().gid.raw, to.attributes.grh.dgid.raw, 16) == 0;
    for (FakePair& pair : nic.pairs) {
      if (!here || pair.base.qp_num != qpn || pair.qkey != qkey || pair.posted.empty()) continue;
      change(bytes);
      auto* memory = reinterpret_cast<std::uint8_t*>(pair.pieces.front().addr);
      const std::size_t room = pair.pieces.front().length;
      std::vector<std::uint8_t> whole(40, 0xee);
      if (!nic.infiniband) {
        whole[20] = 0x45;
        std::copy_n(from.gids.back().gid.raw + 12, 4, whole.begin() + 32);
      }
      whole.insert(whole.end(), bytes.begin(), bytes.end());
      ibv_wc done{};
      done.wr_id = pair.posted.front().wr_id;
      done.byte_len = static_cast<std::uint32_t>(whole.size());
      done.src_qp = sender.base.qp_num;
      done.slid = from.lid;
      done.wc_flags = nic.infiniband ? 0U : static_cast<unsigned>(IBV_WC_GRH);
      done.opcode = IBV_WC_RECV;
      if (whole.size() > room) done.status = IBV_WC_LOC_LEN_ERR;
      std::copy_n(whole.begin(), std::min(whole.size(), room), memory);
      pair.posted.pop_front();
      pair.pieces.pop_front();
      pair.receives->complete(done);
      if (!pair.receives->armed || pair.receives->channel == nullptr) continue;
      pair.receives->armed = false;
      pair.receives->channel->notices.push_back(ibv_cq_ex_to_cq(&pair.receives->base));
    }
  }
}

}  // namespace fabric::prober::test
