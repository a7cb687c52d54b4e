// The flushes of one rail, whichever comm and thread they are of. They share one queue pair, which
// reads for one of them at a time, in their order. Unproved on hardware.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "verbs/flush_pair.h"
#include "verbs/reaper.h"
#include "verbs/region.h"

namespace fabric::verbs {

// The READ of one flush through the NIC of one rail.
struct FlushRead {
  enum class State : std::uint8_t { waiting, under_way, done, failed };

  std::uint64_t address = 0;
  const Region* region = nullptr;    // that the address lies in, on that NIC
  std::shared_ptr<const void> hold;  // it stays registered while the READ is under way
  // FlushRail's.
  State state = State::waiting;
  unsigned failures = 0;
  std::string why;  // the last failure
};

class FlushRail {
 public:
  static constexpr unsigned kTries = 2;                     // READs, each on a pair of its own
  static constexpr std::int64_t kMakePauseNs = 50'000'000;  // between two tries to make a pair

  // `elsewhere`: where pairs are destroyed. `wake`: make_pair() is wanted soon. `give_up_ns`: so
  // long a flush waits for a pair that cannot be made, because a port is down for example, and for
  // a READ that the device never completes.
  FlushRail(Elsewhere elsewhere, std::function<void()> wake, std::int64_t give_up_ns);
  ~FlushRail();
  FlushRail(const FlushRail&) = delete;
  FlushRail& operator=(const FlushRail&) = delete;

  // Any thread; none of them waits for the NIC. Whoever drops a read gives it up: one that is under
  // way keeps its buffer until it has ended.
  void begin(const std::shared_ptr<FlushRead>& read, std::int64_t now);
  FlushRead::State test(const FlushRead& read, std::int64_t now, std::string& why);
  void poll(std::int64_t now);

  // The thread that makes connections: making a pair may take the NIC a while.
  [[nodiscard]] bool wants_pair(std::int64_t now);
  // `port`: null: the rail has no device now.
  void make_pair(RailPort* port, std::int64_t now);

 private:
  // What may take long to let go of, and so goes without the lock.
  struct Ended {
    std::shared_ptr<FlushRead> read;
    std::unique_ptr<FlushPair> pair;  // destroyed first: it may read the buffer until then
  };
  using AllEnded = std::vector<Ended>;

  void progress(std::int64_t now, AllEnded& ended);
  void poll_pair(std::int64_t now, AllEnded& ended);
  bool start_next(std::int64_t now, AllEnded& ended);
  void finish(FlushRead::State state, AllEnded& ended);
  void fail(const std::string& why, AllEnded& ended);
  void fail_waiting(const std::string& why, AllEnded& ended);
  void release(AllEnded ended) const;

  const Elsewhere elsewhere_;
  const std::function<void()> wake_;
  const std::int64_t give_up_ns_;
  std::mutex mutex_;  // guards the rest; never held while a call may take the NIC long
  std::unique_ptr<FlushPair> pair_;
  std::shared_ptr<FlushRead> current_;  // under way
  std::int64_t started_at_ = 0;         // ns, since when
  std::deque<std::weak_ptr<FlushRead>> waiting_;
  bool wanted_ = false;             // a pair
  std::int64_t refused_since_ = 0;  // ns, no pair could be made; 0: the last one was
  std::int64_t make_at_ = 0;        // ns
};

}  // namespace fabric::verbs
