// How packets move.
#include "verbs/fake/network.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/ordered_copy.h"

namespace fabric::verbs::fake {

namespace {

Network* the_network = nullptr;
constexpr std::uint8_t kRnrRetryForEver = 7;

ibv_wc_opcode opcode_of(const Request& request) {
  return request.work.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
}

bool covers(const Nic& nic, std::uint32_t key, std::uint64_t address, std::size_t length) {
  const auto found = nic.registered.find(key);
  return found != nic.registered.end() && address >= found->second.address &&
         address + length <= found->second.address + found->second.length;
}

}  // namespace

Nic::Nic(Network& network, std::string name) : name_(std::move(name)), network_(network) {
  event_fd = ::eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE | EFD_CLOEXEC);
}

void Nic::fail(Call call, int code, unsigned times, unsigned after) {
  plans_[call] = {code, times, after};
}

int Nic::planned(Call call) {
  if (gone_) {
    return EIO;
  }
  const auto found = plans_.find(call);
  if (found == plans_.end() || found->second.times == 0) {
    return 0;
  }
  if (found->second.after != 0) {
    --found->second.after;
    return 0;
  }
  --found->second.times;
  return found->second.code;
}

std::byte* Nic::reach(std::uint32_t key, std::uint64_t address) const {
  const Registered& region = registered.at(key);
  return region.bytes == nullptr ? memory_at(address)
                                 : region.bytes.get() + (address - region.address);
}

void Nic::unplug() {
  gone_ = true;
  raise(IBV_EVENT_DEVICE_FATAL);
}

void Nic::raise(ibv_event_type type, int port, ibv_qp* pair, ibv_cq* queue) {
  ibv_async_event event{};
  event.event_type = type;
  if (pair != nullptr) {
    event.element.qp = pair;
  } else if (queue != nullptr) {
    event.element.cq = queue;
  } else {
    event.element.port_num = port;
  }
  events.push_back(event);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_fd, &one, sizeof one);
}

Network::Network() {
  if (the_network != nullptr) {
    throw std::logic_error("there is a fake network already");
  }
  the_network = this;
}

Network::~Network() {
  for (const auto& nic : nics_) {
    ::close(nic->event_fd);
  }
  the_network = nullptr;
}

Network* Network::current() { return the_network; }

Nic& Network::add_nic(const std::string& name, const std::string& address) {
  Nic& nic = *nics_.emplace_back(std::make_unique<Nic>(*this, name));
  GidRow local;
  local.gid = {0xfe, 0x80, 0, 0,    0,    0, 0, 0,
               2,    0,    0, 0xff, 0xfe, 0, 0, static_cast<std::uint8_t>(nics_.size())};
  local.type = GidType::roce_v2;
  GidRow global;
  global.gid[10] = global.gid[11] = 0xff;
  if (::inet_pton(AF_INET, address.c_str(), global.gid.data() + 12) != 1) {
    throw std::invalid_argument(address);
  }
  global.type = GidType::roce_v2;
  nic.ports[0].gids = {local, global};
  return nic;
}

Nic* Network::find(const std::string& name) {
  const auto found = std::find_if(nics_.rbegin(), nics_.rend(),
                                  [&](const auto& nic) { return nic->name() == name; });
  return found == nics_.rend() ? nullptr : found->get();
}

QueuePairModel& Network::model(ibv_qp* pair) { return *reinterpret_cast<QueuePairModel*>(pair); }

QueuePairModel* Network::pair(std::uint32_t number) {
  const auto found = pairs.find(number);
  return found == pairs.end() || found->second->destroyed ? nullptr : found->second.get();
}

QueuePairModel* Network::peer_of(const QueuePairModel& from) {
  QueuePairModel* to = pair(from.attributes.dest_qp_num);
  if (to == nullptr || to->nic->gone()) {
    return nullptr;
  }
  const ibv_ah_attr& address = from.attributes.ah_attr;
  for (const PortModel& port : to->nic->ports) {
    if (address.is_global == 0 && port.lid == address.dlid) {
      return to;
    }
    for (const GidRow& row : port.gids) {
      if (address.is_global != 0 &&
          std::equal(row.gid.begin(), row.gid.end(), std::begin(address.grh.dgid.raw))) {
        return to;
      }
    }
  }
  return nullptr;
}

void Network::complete(QueuePairModel& pair, const ibv_wc& completion) {
  CompletionQueueModel& queue = *pair.queue;
  if (queue.ready.size() >= static_cast<std::size_t>(queue.base.cqe)) {
    queue.overrun = true;
    pair.nic->raise(IBV_EVENT_CQ_ERR, 0, nullptr, &queue.base);
    return;
  }
  queue.ready.push_back(completion);
  if (queue.armed && queue.base.channel != nullptr) {
    queue.armed = false;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(queue.base.channel->fd, &one, sizeof one);
  }
}

void Network::finish_send(QueuePairModel& pair, const Request& request, ibv_wc_status status) {
  ibv_wc completion{};
  completion.wr_id = request.work.wr_id;
  completion.status = status;
  completion.qp_num = pair.base.qp_num;
  // Of an error neither is defined: what is here has to lead nobody astray.
  completion.opcode = status == IBV_WC_SUCCESS ? opcode_of(request) : IBV_WC_RECV_RDMA_WITH_IMM;
  completion.imm_data = 0xffffffff;
  complete(pair, completion);
  if (status != IBV_WC_SUCCESS) {
    enter_error(pair);
  }
}

void Network::enter_error(QueuePairModel& pair) {
  if (pair.state == IBV_QPS_ERR) {
    return;
  }
  pair.state = IBV_QPS_ERR;
  pair.flush_due = true;
  if (!pair.nic->slow_error && !pair.nic->stopped) {
    flush(pair);
  }
}

void Network::flush(QueuePairModel& pair) {
  pair.flush_due = false;
  ibv_wc completion{};
  completion.status = IBV_WC_WR_FLUSH_ERR;
  completion.qp_num = pair.base.qp_num;
  completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  completion.imm_data = 0xffffffff;
  for (Request& request : pair.flying) {
    if (!std::exchange(request.completed, true)) {
      completion.wr_id = request.work.wr_id;
      complete(pair, completion);
    }
  }
  for (const Request& request : pair.sends) {
    completion.wr_id = request.work.wr_id;
    complete(pair, completion);
  }
  for (const std::uint64_t id : pair.receives) {
    completion.wr_id = id;
    complete(pair, completion);
  }
  // What left before may still arrive: nobody waits for it here any more.
  pair.sends.clear();
  pair.receives.clear();
}

void Network::exceed_retries(QueuePairModel& pair) {
  if (!pair.flying.empty()) {
    // It stays on its way, as a packet in a switch does.
    pair.flying.front().completed = true;
    finish_send(pair, pair.flying.front(), IBV_WC_RETRY_EXC_ERR);
  } else if (!pair.sends.empty()) {
    const Request request = std::move(pair.sends.front());
    pair.sends.pop_front();
    finish_send(pair, request, IBV_WC_RETRY_EXC_ERR);
  } else {
    enter_error(pair);
  }
}

bool Network::can_depart(const QueuePairModel& pair) const {
  return !pair.destroyed && !pair.nic->gone() && pair.state == IBV_QPS_RTS && !pair.sends.empty() &&
         !pair.nic->stopped && !pair.nic->holds_sends &&
         pair.sends.front().length <= pair.nic->holds_above;
}

// A request whose receiver is not ready waits for it.
bool Network::can_arrive(QueuePairModel& pair) {
  if (pair.flying.empty()) {
    return false;
  }
  const QueuePairModel* to = peer_of(pair);
  if (pair.nic->stopped || (to != nullptr && to->nic->stopped)) {
    return false;
  }
  const bool ready = to == nullptr || !to->receives.empty() ||
                     pair.flying.front().work.opcode != IBV_WR_RDMA_WRITE_WITH_IMM ||
                     (to->state != IBV_QPS_RTR && to->state != IBV_QPS_RTS);
  return ready || pair.attributes.rnr_retry != kRnrRetryForEver;
}

void Network::depart(QueuePairModel& pair) {
  Request request = std::move(pair.sends.front());
  pair.sends.pop_front();
  Nic& nic = *pair.nic;
  if (!nic.forced.empty()) {
    const ibv_wc_status status = nic.forced.front();
    nic.forced.pop_front();
    if (status != IBV_WC_SUCCESS) {
      finish_send(pair, request, status);
      return;
    }
  }
  if (request.work.opcode == IBV_WR_RDMA_READ && nic.failing_reads != 0) {
    --nic.failing_reads;
    finish_send(pair, request, IBV_WC_RETRY_EXC_ERR);
    return;
  }
  if (request.bad_key) {
    finish_send(pair, request, IBV_WC_LOC_PROT_ERR);
    return;
  }
  if (nic.cut || request.length > nic.largest) {
    finish_send(pair, request, IBV_WC_RETRY_EXC_ERR);
    return;
  }
  pair.flying.push_back(std::move(request));
}

// `wait`: the receiver has no receive posted.
ibv_wc_status Network::land(QueuePairModel& from, QueuePairModel& to, const Request& request,
                            bool& wait) {
  const auto& rdma = request.work.wr.rdma;
  const bool notifies = request.work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (notifies && to.receives.empty()) {
    wait = from.attributes.rnr_retry == kRnrRetryForEver;
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  if (request.length != 0 && !covers(*to.nic, rdma.rkey, rdma.remote_addr, request.length)) {
    enter_error(to);
    return IBV_WC_REM_ACCESS_ERR;
  }
  const bool reads = request.work.opcode == IBV_WR_RDMA_READ;
  to.nic->reads += reads ? 1U : 0U;
  if (request.length != 0 && reads) {
    std::memcpy(request.local, to.nic->reach(rdma.rkey, rdma.remote_addr), request.length);
  } else if (request.length != 0) {
    ++landed;
    to.nic->landed_bytes += request.length;
    if (on_write) {
      on_write({rdma.remote_addr, request.length, from, to});
    }
    core::copy_in_order(to.nic->reach(rdma.rkey, rdma.remote_addr), request.bytes.data(),
                        request.length);
  }
  if (notifies) {
    ibv_wc completion{};
    completion.wr_id = to.receives.front();
    to.receives.pop_front();
    completion.status = IBV_WC_SUCCESS;
    completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.imm_data = request.work.imm_data;
    completion.byte_len = static_cast<std::uint32_t>(request.length);
    completion.qp_num = to.base.qp_num;
    complete(to, completion);
  }
  return IBV_WC_SUCCESS;
}

void Network::arrive(QueuePairModel& pair) {
  QueuePairModel* to = peer_of(pair);
  ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
  const bool takes = to != nullptr && !to->nic->cut && !pair.nic->cut &&
                     (to->state == IBV_QPS_RTR || to->state == IBV_QPS_RTS ||
                      (to->state == IBV_QPS_ERR && to->flush_due));
  bool wait = false;
  if (takes) {
    status = land(pair, *to, pair.flying.front(), wait);
    if (to->nic->lose_acknowledgements && status == IBV_WC_SUCCESS) {
      status = IBV_WC_RETRY_EXC_ERR;
    }
  }
  if (wait) {
    return;
  }
  const Request request = std::move(pair.flying.front());
  pair.flying.pop_front();
  if (!request.completed && !pair.destroyed) {
    finish_send(pair, request, status);
  }
}

bool Network::step(const std::function<std::size_t(std::size_t)>& pick) {
  struct Choice {
    QueuePairModel* pair;
    void (Network::*action)(QueuePairModel&);
  };
  std::vector<Choice> choices;
  for (const auto& [number, pair] : pairs) {
    if (can_arrive(*pair)) {
      choices.push_back({pair.get(), &Network::arrive});
    }
    if (can_depart(*pair)) {
      choices.push_back({pair.get(), &Network::depart});
    }
    if (pair->flush_due && !pair->destroyed && !pair->nic->stopped) {
      choices.push_back({pair.get(), &Network::flush});
    }
  }
  if (choices.empty()) {
    return false;
  }
  const Choice& choice = choices[pick(choices.size())];
  (this->*choice.action)(*choice.pair);
  return true;
}

void Network::run(std::size_t most) {
  while (most-- != 0 && step([](std::size_t) { return std::size_t{0}; })) {
  }
}

}  // namespace fabric::verbs::fake
