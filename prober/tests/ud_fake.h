// Verbs devices without hardware for tests of UD: two NICs whose packets arrive at once, or not.
// One exists at a time (libibverbs' list of devices belongs to the process). Its functions may be
// called by several threads; a test that changes something meanwhile holds lock().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/engine.h"
#include "core/wire.h"
#include "util.h"
#include "verbs/library.h"

namespace fabric::prober::test {

struct FakeQueue;

struct FakePair {
  ibv_qp base{};  // first: the code under test has its address
  FakeQueue* sends = nullptr;
  FakeQueue* receives = nullptr;
  std::deque<ibv_recv_wr> posted;
  std::deque<ibv_sge> pieces;
  std::uint32_t qkey = 0;
};

struct FakeChannel {
  ibv_comp_channel base{};
  std::deque<ibv_cq*> notices;
};

struct FakeQueue {
  ibv_cq_ex base{};  // first; of a queue without stamps, only what an ibv_cq has
  FakeChannel* channel = nullptr;
  std::deque<ibv_wc> done;
  std::deque<std::uint64_t> ticks;  // when the device had each of them
  bool armed = false;
  bool standing = false;  // a caller stands at the first one

  void complete(const ibv_wc& wc);
};

struct FakeHandle {
  ibv_ah base{};
  ibv_ah_attr attributes{};
};

struct FakeNic {
  ibv_device device{};  // first
  ibv_context context{};
  std::string name;
  std::vector<ibv_gid_entry> gids;
  bool infiniband = false;
  std::uint16_t lid = 0;
  bool active = true;
  // Of its clock: 0 and 0, it has none. How many ticks have passed, before the mask.
  std::uint64_t stamp_mask = 0;
  std::uint64_t khz = 0;
  std::function<std::uint64_t()> ticks = [] { return 0; };
  std::deque<ibv_async_event> events;
  std::list<FakePair> pairs;
  std::list<FakeQueue> queues;
  std::list<FakeChannel> channels;
  std::list<FakeHandle> handles;
  int objects = 0;  // that were made and not destroyed
};

// The fabric between them, and the faults that a test wants.
class UdFake {
 public:
  UdFake();
  ~UdFake();
  UdFake(const UdFake&) = delete;
  UdFake& operator=(const UdFake&) = delete;

  FakeNic& add(const std::string& name, const Address& address);
  const verbs::Functions& functions() const { return functions_; }
  std::unique_lock<std::recursive_mutex> lock() {
    return std::unique_lock<std::recursive_mutex>(mutex_);
  }

  std::list<FakeNic> nics;
  std::function<bool()> lost = [] { return false; };
  // Name of the table's entry whose calls fail with this errno.
  std::map<std::string, int> failing;
  ibv_wc_status send_status = IBV_WC_SUCCESS;
  // Bytes that arrive in the place of a packet, after its 40 of the GRH.
  std::function<void(std::vector<std::uint8_t>& packet)> change = [](auto&) {};

  // Called by the table.
  int fails(const std::string& call) const;
  void deliver(FakeNic& from, const FakePair& pair, const FakeHandle& to, std::uint32_t qpn,
               std::uint32_t qkey, std::vector<std::uint8_t> bytes);
  FakeNic& nic_of(const ibv_context* context);
  std::uint32_t next_qpn = 17;

 private:
  std::recursive_mutex mutex_;
  verbs::Functions functions_{};
};

inline LinkConfig rdma_link(std::uint8_t host, std::uint16_t index = 1) {
  LinkConfig link{index, "rail0", v4(0, host, kRocePort), false};
  link.udp_link = 0;
  link.device = "fake" + std::to_string(host);
  link.device_port = 1;
  return link;
}

inline Outgoing packet_to(std::uint8_t host, const UdTerms& terms, std::uint8_t fill = 7) {
  Outgoing out{1, v4(0, host, kRocePort), {}, 0, terms};
  out.bytes.fill(fill);
  return out;
}

struct TwoNics : UdFake {
  FakeNic& first = add("fake1", v4(0, 1));
  FakeNic& second = add("fake2", v4(0, 2));
};

}  // namespace fabric::prober::test
