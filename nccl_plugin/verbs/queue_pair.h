// A reliable connected queue pair.
//
// RESET -> INIT -> RTR -> RTS by to_init(), to_rtr() and to_rts(), and to_error() from any. It is
// never reset and used again (some NICs fail to): its successor makes a new one.
//
// Its work requests have ids of their own, counted from 0 and never used twice; the top bit says
// which queue. Sends complete in order: a completion of another id than the oldest is a fault of
// the device.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "verbs/completion_queue.h"
#include "verbs/path_terms.h"
#include "verbs/port.h"
#include "verbs/reaper.h"

namespace fabric::verbs {

struct QueueDepths {
  std::uint32_t send = 0;          // work requests
  std::uint32_t receive = 0;       // work requests
  std::uint32_t inline_bytes = 0;  // asked for; the device may give less
};

// How packets of a path are sent.
struct PathSettings {
  std::uint8_t port = 1;
  std::uint16_t pkey_index = 0;
  std::uint8_t gid_index = 0;
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t timeout = 14;  // 4.096 µs * 2^timeout
  std::uint8_t retries = 7;   // 0 to 7
  std::uint8_t hop_limit = 255;
  bool grh = false;  // InfiniBand: with a GID as well, for a peer in another subnet
};

enum class QueuePhase : std::uint8_t { reset, init, rtr, rts, error };

// What became of a post.
enum class Posted : std::uint8_t {
  done,
  full,    // nothing happened: offer it again when something has completed
  failed,  // the queue pair is of no use any more
};

// A write to the peer's memory. With `data` null it is empty and has no local key.
struct Write {
  const void* data = nullptr;
  std::uint32_t length = 0;
  std::uint32_t local_key = 0;  // not needed where the data goes inline
  std::uint64_t address = 0;
  std::uint32_t remote_key = 0;
  std::optional<std::uint32_t> immediate;  // host order; takes a receive of the peer
  bool device = false;                     // no CPU reads `data`: it never goes inline
};

class QueuePair {
 public:
  static constexpr std::uint64_t kReceiveId = std::uint64_t{1} << 63U;
  static constexpr bool is_receive(std::uint64_t id) { return (id & kReceiveId) != 0; }

  // Null: `error` says why. `queue` outlives it.
  static std::unique_ptr<QueuePair> make(std::shared_ptr<Device> device, CompletionQueue& queue,
                                         const QueueDepths& depths, Error& error);
  // Destroys it: false from destroy() has leaked it instead, in ERR.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  bool to_init(const PathSettings& settings, Error& error);
  bool to_rtr(const PathSettings& settings, const PathTerms& local, const PathTerms& peer,
              const QueuePairTerms& peer_pair, Error& error);
  bool to_rts(const PathSettings& settings, std::uint32_t psn, Error& error);
  // Moves it to ERR: nothing is posted from the first call on. True: it is there, or the device is
  // gone. Every request is flushed then and nothing of the peer lands any more, once the flushes
  // have been polled. False: ask again; or the device refuses, and `error` says so each time.
  // A device may take seconds: that runs elsewhere, and the first call waits kPatience for it.
  // Null: at once, on the caller's thread.
  bool to_error(const Elsewhere& elsewhere, Error& error);
  static constexpr std::chrono::milliseconds kPatience{2};
  // As the device says it. nullopt: it does not answer.
  [[nodiscard]] std::optional<ibv_qp_state> ask_state() const;
  // Ends it now. True: it is no more, and its device touches no memory on its behalf. The answer
  // stays the same. No other call follows but failed() and phase().
  bool destroy();
  // The same without waiting: it is destroyed elsewhere, from the first call on. True: it is no
  // more. Null: at once.
  bool destroyed(const Elsewhere& elsewhere);

  Posted post_write(const Write& write);
  // A READ into registered memory, for flushes.
  Posted post_read(void* into, std::uint32_t length, std::uint32_t local_key, std::uint64_t address,
                   std::uint32_t remote_key);
  // A receive without a buffer: it takes the immediate of a write. As many as `count`, in one call;
  // returns how many were posted, and sets failed() when the device refuses.
  std::uint32_t post_receives(std::uint32_t count);
  // Call with every completion of this pair. False: it is none of a live request, in an order that
  // no device keeps.
  bool completed(std::uint64_t id);

  [[nodiscard]] std::uint32_t number() const { return pair_->qp_num; }
  [[nodiscard]] QueuePhase phase() const { return phase_; }
  [[nodiscard]] bool failed() const { return failed_ || phase_ == QueuePhase::error; }
  [[nodiscard]] std::uint32_t inline_bytes() const { return inline_bytes_; }
  [[nodiscard]] std::uint32_t send_depth() const { return send_depth_; }
  [[nodiscard]] std::uint32_t receive_depth() const { return receive_depth_; }
  [[nodiscard]] std::uint32_t sends_outstanding() const {
    return static_cast<std::uint32_t>(sends_posted_ - sends_completed_);
  }
  [[nodiscard]] std::uint32_t receives_outstanding() const {
    return static_cast<std::uint32_t>(receives_posted_ - receives_completed_);
  }
  [[nodiscard]] bool send_room() const { return sends_outstanding() < send_depth_; }
  // Id of the next send to be posted, and of the oldest outstanding.
  [[nodiscard]] std::uint64_t next_send() const { return sends_posted_; }
  [[nodiscard]] std::uint64_t oldest_send() const { return sends_completed_; }
  // An errno of the last call that failed; 0: none has.
  [[nodiscard]] int last_error() const { return last_error_; }

 private:
  QueuePair(std::shared_ptr<Device> device, ibv_qp* pair);
  bool modify(ibv_qp_attr& attributes, int mask, QueuePhase to, const char* name, Error& error);
  Posted post(ibv_send_wr& request);

  std::shared_ptr<Device> device_;
  ibv_qp* pair_;
  QueuePhase phase_ = QueuePhase::reset;
  bool failed_ = false;
  // What the device said of ERR; null: it was not asked. Else an errno, 0 or kAsked.
  static constexpr int kAsked = -1;
  std::shared_ptr<std::atomic<int>> error_code_;
  enum class Destruction : std::uint8_t { under_way, done, refused };
  std::shared_ptr<std::atomic<Destruction>> destruction_;  // null: it is not to be destroyed yet
  int last_error_ = 0;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t send_depth_ = 0;
  std::uint32_t receive_depth_ = 0;
  std::uint64_t sends_posted_ = 0;
  std::uint64_t sends_completed_ = 0;
  std::uint64_t receives_posted_ = 0;
  std::uint64_t receives_completed_ = 0;
};

}  // namespace fabric::verbs
