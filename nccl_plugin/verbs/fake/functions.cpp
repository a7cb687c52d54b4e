// The table of libibverbs' functions over the fake network.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <endian.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/fake/calls.h"

#undef ibv_query_port
#undef ibv_reg_mr

namespace fabric::verbs::fake {

namespace {

ibv_device** get_device_list(int* count) {
  Network& network = *Network::current();
  *count = 0;
  for (const auto& nic : network.nics()) {
    if (!nic->gone() && refused(*nic, Call::get_device_list)) {
      return nullptr;
    }
  }
  auto** list = new ibv_device* [network.nics().size() + 1] {};
  for (const auto& nic : network.nics()) {
    if (nic->gone()) {
      continue;
    }
    auto* device = new DeviceModel;
    device->nic = nic.get();
    std::strncpy(device->base.name, nic->name().c_str(), sizeof device->base.name - 1);
    const std::string uverbs = "uverbs" + std::to_string(&nic - network.nics().data());
    std::strncpy(device->base.dev_name, uverbs.c_str(), sizeof device->base.dev_name - 1);
    list[(*count)++] = &device->base;
  }
  return list;
}

void free_device_list(ibv_device** list) {
  for (ibv_device** device = list; *device != nullptr; ++device) {
    delete reinterpret_cast<DeviceModel*>(*device);
  }
  delete[] list;
}

const char* get_device_name(ibv_device* device) { return device->name; }

ibv_context* open_device(ibv_device* device) {
  Nic& nic = *reinterpret_cast<DeviceModel*>(device)->nic;
  if (refused(nic, Call::open_device)) {
    return nullptr;
  }
  auto* context = new ContextModel;
  context->nic = &nic;
  context->base.cmd_fd = -1;
  context->base.async_fd = nic.event_fd;
  ++nic.objects;
  nic.contexts.push_back(std::shared_ptr<ContextModel>(context));
  return &context->base;
}

int close_device(ibv_context* context) {
  Nic& nic = nic_of(context);
  --nic.objects;
  std::erase_if(nic.contexts, [context](const auto& held) { return held.get() == context; });
  return 0;
}

int query_device(ibv_context* context, ibv_device_attr* out) {
  *out = {};
  out->max_qp_wr = 16384;
  out->max_cqe = 65536;
  out->node_guid = htobe64(nic_of(context).node_guid);
  out->phys_port_cnt = static_cast<std::uint8_t>(nic_of(context).ports.size());
  return nic_of(context).planned(Call::query_device);
}

int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex*) {
  return EOPNOTSUPP;
}
int query_rt_values_ex(ibv_context*, ibv_values_ex*) { return EOPNOTSUPP; }

PortModel* port_of(ibv_context* context, std::uint32_t port) {
  auto& ports = nic_of(context).ports;
  return port == 0 || port > ports.size() ? nullptr : &ports[port - 1];
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* out) {
  const PortModel* model = port_of(context, port);
  if (const int code = nic_of(context).planned(Call::query_port); code != 0 || model == nullptr) {
    return code != 0 ? code : EINVAL;
  }
  *out = {};
  out->state = model->state;
  out->link_layer = model->ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  out->lid = model->lid;
  out->active_mtu = model->mtu;
  out->gid_tbl_len = static_cast<int>(model->gids.size());
  out->pkey_tbl_len = static_cast<std::uint16_t>(model->pkeys.size());
  out->active_width = 2;
  out->active_speed = 32;
  return 0;
}

int query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                 ibv_gid_entry* out) {
  Nic& nic = nic_of(context);
  const PortModel* model = port_of(context, port);
  if (nic.old_library) {
    return EOPNOTSUPP;
  }
  if (const int code = nic.planned(Call::query_gid); code != 0) {
    return code;
  }
  if (model == nullptr || index >= model->gids.size()) {
    return EINVAL;
  }
  const GidRow& row = model->gids[index];
  *out = {};
  std::copy(row.gid.begin(), row.gid.end(), std::begin(out->gid.raw));
  out->gid_index = index;
  out->port_num = port;
  out->gid_type = row.type == GidType::roce_v1   ? IBV_GID_TYPE_ROCE_V1
                  : row.type == GidType::roce_v2 ? IBV_GID_TYPE_ROCE_V2
                                                 : IBV_GID_TYPE_IB;
  return row.error;
}

int query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* out) {
  const PortModel* model = port_of(context, port);
  const auto at = static_cast<std::size_t>(index);
  if (model == nullptr || at >= model->gids.size() || model->gids[at].error != 0) {
    errno = EINVAL;
    return -1;
  }
  std::copy(model->gids[at].gid.begin(), model->gids[at].gid.end(), std::begin(out->raw));
  return 0;
}

int query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* out) {
  const PortModel* model = port_of(context, port);
  const auto at = static_cast<std::size_t>(index);
  if (model == nullptr || at >= model->pkeys.size() || refused(nic_of(context), Call::query_pkey)) {
    return -1;
  }
  *out = htobe16(model->pkeys[at]);
  return 0;
}

ibv_pd* alloc_pd(ibv_context* context) {
  if (refused(nic_of(context), Call::alloc_pd)) {
    return nullptr;
  }
  ++nic_of(context).objects;
  auto* domain = new ibv_pd{};
  domain->context = context;
  return domain;
}

int dealloc_pd(ibv_pd* domain) { return destroy(nic_of(domain), Call::dealloc_pd, domain); }

ibv_mr* register_memory(ibv_pd* domain, std::uint64_t address, std::size_t length,
                        std::shared_ptr<std::byte> bytes = nullptr) {
  Nic& nic = nic_of(domain);
  ++nic.objects;
  auto* region = new ibv_mr{};
  region->context = domain->context;
  region->pd = domain;
  region->length = length;
  region->lkey = region->rkey = Network::current()->next_key++;
  nic.registered[region->rkey] = {address, length, std::move(bytes)};
  return region;
}

ibv_mr* reg_mr_iova2(ibv_pd* domain, void* address, std::size_t length, std::uint64_t /*iova*/,
                     unsigned int /*access*/) {
  return refused(nic_of(domain), Call::reg_mr)
             ? nullptr
             : register_memory(domain, reinterpret_cast<std::uintptr_t>(address), length);
}
ibv_mr* reg_mr(ibv_pd* domain, void* address, std::size_t length, int access) {
  return reg_mr_iova2(domain, address, length, 0, static_cast<unsigned>(access));
}

// A memfd does for a dmabuf: this process maps it as a device would.
ibv_mr* reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                      int fd, int /*access*/) {
  if (refused(nic_of(domain), Call::reg_dmabuf_mr)) {
    return nullptr;
  }
  if (fd < 0) {
    errno = EBADF;
    return nullptr;
  }
  void* mapped =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  std::shared_ptr<std::byte> bytes(static_cast<std::byte*>(mapped),
                                   [length](std::byte* at) { ::munmap(at, length); });
  return register_memory(domain, iova, length, std::move(bytes));
}

int dereg_mr(ibv_mr* region) {
  Nic& nic = nic_of(region->pd);
  const std::uint32_t key = region->rkey;
  const int code = destroy(nic, Call::dereg_mr, region);
  if (code == 0 || code == EIO) {
    nic.registered.erase(key);
  }
  return code;
}

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  if (refused(nic_of(context), Call::create_comp_channel)) {
    return nullptr;
  }
  ++nic_of(context).objects;
  auto* channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return channel;
}

int destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  --nic_of(channel->context).objects;
  delete channel;
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                  int /*vector*/) {
  if (refused(nic_of(context), Call::create_cq)) {
    return nullptr;
  }
  auto* queue = new CompletionQueueModel;
  queue->nic = &nic_of(context);
  queue->base.context = context;
  queue->base.cq_context = user;
  queue->base.channel = channel;
  queue->base.cqe = entries;
  ++queue->nic->objects;
  return &queue->base;
}

ibv_cq_ex* create_cq_ex(ibv_context*, ibv_cq_init_attr_ex*) {
  errno = EOPNOTSUPP;
  return nullptr;
}

int destroy_cq(ibv_cq* queue) {
  return destroy(*model_of(queue).nic, Call::destroy_cq, &model_of(queue));
}

int poll_cq(ibv_cq* queue, int count, ibv_wc* out) {
  CompletionQueueModel& model = model_of(queue);
  if (model.nic->planned(Call::poll_cq) != 0 || model.overrun) {
    return -1;
  }
  int taken = 0;
  for (; taken < count && !model.ready.empty(); ++taken) {
    out[taken] = model.ready.front();
    model.ready.pop_front();
  }
  return taken;
}

int req_notify_cq(ibv_cq* queue, int /*solicited_only*/) {
  model_of(queue).armed = true;
  if (Network& network = *Network::current(); network.on_arm) {
    network.on_arm();
  }
  return 0;
}

int get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void** user) {
  std::uint64_t one = 0;
  if (::read(channel->fd, &one, sizeof one) != sizeof one) {
    return -1;
  }
  *queue = nullptr;  // one queue a channel: whoever reads knows it
  *user = nullptr;
  return 0;
}
void ack_cq_events(ibv_cq*, unsigned int) {}

ibv_ah* create_ah(ibv_pd*, ibv_ah_attr*) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int destroy_ah(ibv_ah*) { return EOPNOTSUPP; }

int get_async_event(ibv_context* context, ibv_async_event* out) {
  Nic& nic = nic_of(context);
  std::uint64_t one = 0;
  if (::read(nic.event_fd, &one, sizeof one) != sizeof one) {
    return -1;
  }
  *out = nic.events.front();
  nic.events.pop_front();
  ++nic.events_unacknowledged_;
  return 0;
}

void ack_async_event(ibv_async_event*) {
  for (const auto& nic : Network::current()->nics()) {
    if (nic->events_unacknowledged_ != 0) {
      --nic->events_unacknowledged_;
      return;
    }
  }
}

const char* event_type_str(ibv_event_type type) {
  return type == IBV_EVENT_PORT_ERR ? "port error" : "event";
}
const char* port_state_str(ibv_port_state state) {
  return state == IBV_PORT_ACTIVE ? "active" : "not active";
}
const char* wc_status_str(ibv_wc_status status) {
  return status == IBV_WC_SUCCESS ? "success" : "error";
}

int modify_in_its_time(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  const auto& wait = Network::current()->on_error;
  if (wait && attributes->qp_state == IBV_QPS_ERR) {
    wait();
  }
  return locked<modify_qp>(pair, attributes, mask);
}

int destroy_in_its_time(ibv_qp* pair) {
  if (const auto& wait = Network::current()->on_destroy) {
    wait();
  }
  return locked<destroy_qp>(pair);
}

}  // namespace

const Functions& Network::functions() {
  static const Functions table{locked<get_device_list>,
                               locked<free_device_list>,
                               locked<get_device_name>,
                               locked<open_device>,
                               locked<close_device>,
                               locked<query_device>,
                               locked<query_device_ex>,
                               locked<query_rt_values_ex>,
                               locked<query_port>,
                               locked<query_gid>,
                               locked<query_gid_ex>,
                               locked<query_pkey>,
                               locked<alloc_pd>,
                               locked<dealloc_pd>,
                               locked<reg_mr>,
                               locked<reg_mr_iova2>,
                               locked<reg_dmabuf_mr>,
                               locked<dereg_mr>,
                               locked<create_comp_channel>,
                               locked<destroy_comp_channel>,
                               locked<create_cq>,
                               locked<create_cq_ex>,
                               locked<destroy_cq>,
                               locked<poll_cq>,
                               locked<req_notify_cq>,
                               locked<get_cq_event>,
                               locked<ack_cq_events>,
                               locked<create_qp>,
                               modify_in_its_time,
                               locked<query_qp>,
                               destroy_in_its_time,
                               locked<post_send>,
                               locked<post_recv>,
                               locked<create_ah>,
                               locked<destroy_ah>,
                               locked<get_async_event>,
                               locked<ack_async_event>,
                               locked<event_type_str>,
                               locked<port_state_str>,
                               locked<wc_status_str>};
  return table;
}

}  // namespace fabric::verbs::fake
