// RDMA devices without hardware, for tests: NICs, their queue pairs, and a network that moves one
// packet at a time, in the order that the test chooses. Every fault that a device has shown in the
// field can be put into it. functions() is the table for the code under test.
//
// One Network exists at a time (libibverbs' list of devices belongs to the process). Threads: the
// table's functions may be called by any; whoever changes anything meanwhile holds the mutex.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "verbs/gid_choice.h"
#include "verbs/library.h"

namespace fabric::verbs::fake {

// Calls that can be made to fail.
enum class Call : std::uint8_t {
  get_device_list,
  open_device,
  query_device,
  query_port,
  query_gid,
  query_pkey,
  alloc_pd,
  reg_mr,
  reg_dmabuf_mr,
  create_comp_channel,
  create_cq,
  poll_cq,
  create_qp,
  to_init,
  to_rtr,
  to_rts,
  to_error,
  query_qp,
  post_send,
  post_recv,
  destroy_qp,
  destroy_cq,
  dereg_mr,
  dealloc_pd,
};

struct GidRow {
  Gid gid{};
  GidType type = GidType::unknown;
  int error = 0;  // what reading it says: EINVAL in a container, ENODATA for a hole
};

struct PortModel {
  ibv_port_state state = IBV_PORT_ACTIVE;
  bool ethernet = true;
  std::uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  std::vector<GidRow> gids;
  std::vector<std::uint16_t> pkeys{0xffff};
};

class Network;
struct QueuePairModel;
struct CompletionQueueModel;

inline std::byte* memory_at(std::uint64_t where) {
  return reinterpret_cast<std::byte*>(where);  // NOLINT(performance-no-int-to-ptr): verbs' form
}

struct Registered {
  std::uint64_t address = 0;
  std::size_t length = 0;
  // Of a dmabuf: where this process has its bytes. What the test hands to the code under test as
  // its address may be memory that no CPU reaches.
  std::shared_ptr<std::byte> bytes;
};

class Nic {
 public:
  Nic(Network& network, std::string name);

  std::vector<PortModel> ports{PortModel{}};
  // Nothing leaves and nothing arrives: its requests, and those to it, exceed their retries.
  bool cut = false;
  // What it writes lands, and the acknowledgement is lost: RETRY_EXC at the sender.
  bool lose_acknowledgements = false;
  // Its requests wait, and nothing arrives there: no error, no completion, no flush until it is
  // over.
  bool stopped = false;
  // Larger requests exceed their retries: a switch between drops what is above its own MTU.
  std::size_t largest = SIZE_MAX;
  // Larger requests wait, and those behind them on the same queue pair: no error, no completion.
  std::size_t holds_above = SIZE_MAX;
  // Only its own requests wait: what peers write arrives and completes.
  bool holds_sends = false;
  // ERR is entered at once and confirmed late: what is on its way lands until the network takes a
  // step on behalf of the queue pair and flushes it.
  bool slow_error = false;
  bool old_library = false;  // no query_gid_ex
  std::uint64_t node_guid = 0;
  std::uint32_t inline_bytes = 220;
  std::uint32_t send_room = UINT32_MAX;  // post_send says ENOMEM beyond it, whatever was promised
  unsigned failing_reads = 0;            // so many of its next READs exceed their retries
  // Statuses of the next sends that are carried out, instead of their own.
  std::deque<ibv_wc_status> forced;

  // The next `times` calls fail with `code`, after `after` that do not.
  void fail(Call call, int code, unsigned times = 1, unsigned after = 0);
  // Unplugged: every call says EIO, and nothing is read or written any more.
  void unplug();
  void raise(ibv_event_type type, int port = 0, ibv_qp* pair = nullptr, ibv_cq* queue = nullptr);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool gone() const { return gone_; }
  [[nodiscard]] std::size_t regions() const { return registered.size(); }
  [[nodiscard]] unsigned events_unacknowledged() const { return events_unacknowledged_; }

  // The bytes at an address that is registered by this key.
  [[nodiscard]] std::byte* reach(std::uint32_t key, std::uint64_t address) const;
  // For functions.cpp: 0, or the errno of a planned failure.
  int planned(Call call);
  struct Plan {
    int code = 0;
    unsigned times = 0;
    unsigned after = 0;
  };
  std::map<std::uint32_t, Registered> registered;  // by key, which is local and remote key alike
  std::deque<ibv_async_event> events;
  int event_fd = -1;
  unsigned events_unacknowledged_ = 0;
  std::uint64_t landed_bytes = 0;               // of writes that came here
  std::uint64_t reads = 0;                      // READs of its memory that it answered
  unsigned objects = 0;                         // that were made and not destroyed
  std::vector<std::shared_ptr<void>> contexts;  // open ones
  std::vector<std::shared_ptr<void>> refused;   // to be destroyed: whoever had them leaks them

 private:
  std::string name_;
  std::map<Call, Plan> plans_;
  bool gone_ = false;
  Network& network_;
};

// What was posted, with the bytes as the NIC read them.
struct Request {
  ibv_send_wr work{};
  std::vector<std::byte> bytes;
  std::byte* local = nullptr;  // where a READ puts them
  std::size_t length = 0;
  bool bad_key = false;
  bool completed = false;  // its completion was given, though it is on its way
};

struct QueuePairModel {
  ibv_qp base{};  // first: the code under test has its address
  Nic* nic = nullptr;
  CompletionQueueModel* queue = nullptr;
  ibv_qp_cap cap{};
  ibv_qp_attr attributes{};
  ibv_qp_state state = IBV_QPS_RESET;
  bool flush_due = false;  // in ERR, not confirmed yet
  std::deque<Request> sends;
  std::deque<Request> flying;  // left, and not at the peer yet
  std::deque<std::uint64_t> receives;
  bool destroyed = false;
};

// A write that is about to change memory.
struct LandingWrite {
  std::uint64_t address = 0;
  std::size_t length = 0;
  const QueuePairModel& from;
  const QueuePairModel& to;
};

struct CompletionQueueModel {
  ibv_cq base{};
  Nic* nic = nullptr;
  std::deque<ibv_wc> ready;
  bool overrun = false;
  bool armed = false;
};

class Network {
 public:
  Network();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  static const Functions& functions();
  static Network* current();

  // In place of one of that name that was unplugged, if there was one.
  // With one port: RoCE with a link-local GID at 0 and an IPv4 one at 1, as drivers have it.
  Nic& add_nic(const std::string& name, const std::string& address);
  [[nodiscard]] const std::vector<std::unique_ptr<Nic>>& nics() const { return nics_; }
  Nic* find(const std::string& name);

  // One thing that can happen does: a request leaves, a packet arrives, a flush is confirmed.
  // `pick(n)` chooses one of n. False: nothing can happen.
  bool step(const std::function<std::size_t(std::size_t)>& pick);
  // Each call of the table first lets all happen that can: nobody has to take steps.
  bool carries_at_once = false;
  std::recursive_mutex mutex;
  std::uint64_t landed = 0;  // writes with bytes, so far
  // In the order of posting, until nothing can happen or `most` steps were taken.
  void run(std::size_t most = 1'000'000);
  // Called with each write that has bytes, before they land.
  std::function<void(const LandingWrite&)> on_write;

  // The queue pair as the code under test has it.
  static QueuePairModel& model(ibv_qp* pair);
  // By number; null: there is none, or it was destroyed.
  QueuePairModel* pair(std::uint32_t number);
  // As if its requests had exceeded their retries: error completion, ERR, everything flushed.
  void exceed_retries(QueuePairModel& pair);
  // Moves it to ERR; the flushes come at once or later (Nic::slow_error).
  void enter_error(QueuePairModel& pair);
  void flush(QueuePairModel& pair);

  // Called when a completion queue was armed: what happens before it is polled again.
  std::function<void()> on_arm;
  // Called before a queue pair is destroyed, without the lock: it may take its time.
  std::function<void()> on_destroy;
  // Likewise before one goes to ERR.
  std::function<void()> on_error;

  // For functions.cpp.
  std::map<std::uint32_t, std::unique_ptr<QueuePairModel>> pairs;  // destroyed ones, too
  std::uint32_t next_number = 100;
  std::uint32_t next_key = 1000;
  void complete(QueuePairModel& pair, const ibv_wc& completion);

 private:
  void depart(QueuePairModel& pair);
  void arrive(QueuePairModel& pair);
  void finish_send(QueuePairModel& pair, const Request& request, ibv_wc_status status);
  QueuePairModel* peer_of(const QueuePairModel& pair);
  ibv_wc_status land(QueuePairModel& from, QueuePairModel& to, const Request& request, bool& wait);
  bool can_depart(const QueuePairModel& pair) const;
  bool can_arrive(QueuePairModel& pair);

  std::vector<std::unique_ptr<Nic>> nics_;
};

}  // namespace fabric::verbs::fake
