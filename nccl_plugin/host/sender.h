// The sending end of a comm: core/SendCore with its links.
//
// Threads: the caller's (isend, test, close) and the control thread, one of them inside at a time
// (host/comm_gate.h); two comms share nothing. The caller drives payload; the control thread
// attaches connections, detects dead ones, runs the fences, and pushes on what they freed, so that
// nothing waits for the caller.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "core/schedule.h"
#include "core/send_core.h"
#include "host/comm_counters.h"
#include "host/comm_gate.h"
#include "host/comm_state.h"
#include "host/context.h"
#include "host/link.h"
#include "host/path_state.h"
#include "host/poll_stall_timer.h"

namespace fabric::host {

class Sender {
 public:
  // `peer`: its name for the log; `incarnation`: of the peer's process.
  Sender(Context& context, std::uint64_t id, core::PathIndex primary, std::string peer,
         std::uint64_t incarnation = 0);
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // The caller's side. `taken` is false when the message has to be offered again.
  // `origin`: as registered with the context's memory.
  Result post(const void* data, std::size_t size, int tag, bool& taken, core::Sequence& sequence,
              core::Origin origin = {});
  Result test(core::Sequence sequence, bool& done, std::size_t& size);
  // Waits, within a budget, for copied messages that are done to be acknowledged. What is not done
  // is cancelled. One that was never connected yet is connected by the control thread, and closed
  // then.
  void close();
  // As close(), without the wait: nothing is read from the caller's memory afterwards.
  void cancel() { close_within(0); }

  // The control thread's side.
  [[nodiscard]] std::uint64_t id() const { return id_; }
  // nullopt: not done, because the caller is inside and `wait` was not asked for.
  std::optional<ControlActions> tick(std::int64_t now, const PeerFacts& facts, bool wait);
  core::Epoch dial(core::PathIndex path, std::int64_t now);  // the epoch for the hello
  void dial_failed(core::PathIndex path, core::Epoch epoch, std::int64_t now);
  // Paths that had been streams for a while at the last tick, with no other connection beside them.
  [[nodiscard]] core::PathSet streams() const { return streams_; }
  // Device memory waits, and no path is over RDMA, or will be: whatever is said of RDMA there, it
  // is to be tried. As of the last tick.
  [[nodiscard]] bool needs_rdma() const { return needs_rdma_; }
  // As dial(), for a connection of a better kind beside the stream. It takes the stream's place
  // once it has proved itself; 0: not now.
  core::Epoch dial_beside(core::PathIndex path, std::int64_t now);
  // The steer page had taken RDMA from them and gives it back: opened again whatever is under way.
  void give_back(core::PathSet paths);
  void attach(core::PathIndex path, core::Epoch epoch, std::unique_ptr<LinkOut> link,
              std::int64_t now);
  void hangup(core::PathIndex path, core::Epoch epoch);
  void on_state(const StateFrame& frame);
  // The receiver gave a path up and answers the fence unasked.
  void on_retired(const StateFrame& frame);
  void on_peer_close();
  void on_refused();  // the peer does not know the comm
  // Every later call fails with `result`.
  void abort(Result result, const std::string& text);
  // The same, whatever the peer said before, and nothing more reaches it.
  void cut(const std::string& text);
  // Closed, and the peer is still to be told that the comm was there. As of the last tick.
  [[nodiscard]] bool introducing() const { return introducing_; }
  [[nodiscard]] bool closed() const { return end_.closed.load(std::memory_order_acquire); }
  [[nodiscard]] core::PathIndex primary() const { return primary_; }
  // How many comms to the same peer that share paths are counted before this one.
  void share_as(std::size_t turn) { turn_.store(turn, std::memory_order_relaxed); }
  // As of the last time that the caller was not inside. Control thread only.
  const RailCounts& counts();
  [[nodiscard]] const CommCounters& counters() const { return counters_; }

 private:
  // A connection of a better kind that proves itself while the link is a stream.
  struct Beside {
    std::unique_ptr<LinkOut> link;
    core::Epoch epoch = 0;    // of it, or of its dial; 0: neither
    bool validating = false;  // its validation was begun
    std::int64_t validating_since = 0;
    std::int64_t next_dial = 0;  // when the next may be dialled
  };
  struct Path : PathConnection<LinkOut> {
    Beside beside;
    PathAcks acks;
    PathTrust trust;
    PathRedial redial;
    PathBytes bytes;
    bool sending = false;   // the link takes no more before it has gone on
    bool rejoined = false;  // no payload since it came back
    std::int64_t announced = 0;
  };
  // Where the next chunks go.
  struct Choice {
    core::PathSet eligible = 0;
    std::uint16_t heaviest = 0;  // weight among them
    core::Share share{core::kCopyLimit};
    bool primary_lost = false;
  };
  struct Activity {
    bool moved = false;           // payload or acknowledgements since the last tick
    bool stalled = false;         // for more than kStallCountNs
    std::int64_t idle_since = 0;  // nothing moved since, though it should
    std::int64_t busy_at = 0;     // something moved or should have
  };

  void close_within(std::int64_t budget_ns);
  bool hang_up(std::int64_t until);
  [[nodiscard]] bool ever_connected() const;
  void introduce(std::int64_t now, const PeerFacts& facts, ControlActions& actions);
  void end_introduction();
  void dial_due(std::int64_t now, bool settled, ControlActions& actions);
  void progress();
  [[nodiscard]] core::NoCopy without_copy(std::size_t size);
  void watch_all();
  void pump();
  bool flush(core::PathIndex index);
  void take_batch(core::PathIndex index);
  [[nodiscard]] bool full(core::PathIndex index) const;
  bool account(core::PathIndex index, const SendProgress& progress);
  void count_carried(core::PathIndex index, const SendProgress& progress);
  void read_back(core::PathIndex index);
  void count_delivered();
  void release(core::PathIndex index);
  bool settle();
  // `beside`: the connection of that epoch takes its place.
  void fail(core::PathIndex index, pages::PathDownReason reason, core::Epoch beside = 0);
  void take(core::PathIndex index, core::Epoch epoch, std::unique_ptr<LinkOut> link,
            std::int64_t now, bool validated);
  void watch_beside(core::PathIndex index, std::int64_t now);
  void drop_beside(core::PathIndex index);     // it failed
  void abandon_beside(core::PathIndex index);  // nobody wants it any more
  void fenced(const StateFrame& frame);
  void log(core::PathIndex index, const std::string& what, std::int64_t now);
  void limit_unsent(core::PathIndex index, std::size_t bytes);
  [[nodiscard]] core::PathSet one_sided() const;
  [[nodiscard]] core::PathSet over_rdma() const;
  [[nodiscard]] std::uint16_t weight(core::PathIndex index) const;  // by the kind of its link
  void leave_to_page(core::PathIndex index);
  [[nodiscard]] core::PathSet old_streams(std::int64_t now) const;
  void choose();  // makes choice_ anew
  void note_device_memory();
  // The paths of which another has to be there before a word may take this one: where it alone
  // carries device memory a stream is no other.
  [[nodiscard]] core::PathSet others_of(core::PathIndex index) const {
    const core::PathSet carrying = device_memory_ ? one_sided() : 0;
    return (carrying & core::bit(index)) != 0 ? carrying : live_;
  }
  void hang_up_all(bool say_close);
  void abort_inside(Result result, const std::string& text);
  void watch_paths(std::int64_t now, const PeerFacts& facts, ControlActions& actions);
  void weigh(core::PathIndex index, const core::PathSample& info, std::int64_t now,
             ControlActions& actions);
  void watch_trust(std::int64_t now);
  void watch_stall(std::int64_t now);
  bool watch_deadline(std::int64_t now);
  [[nodiscard]] bool may_dial(core::PathIndex index) const {
    return paths_[index].life.may(core::LinkEvent::dial) && (quiescing_ & core::bit(index)) == 0;
  }
  [[nodiscard]] TickRate tick_rate(bool settled, std::int64_t now) const;

  Context& context_;
  const std::uint64_t id_;
  const core::PathIndex primary_;
  const std::string peer_;
  const std::uint64_t peer_incarnation_;
  CommGate gate_;
  std::unique_ptr<core::CopyPool> pool_;  // of the core; null: the heap
  core::SendCore core_;
  PollStallTimer stall_timer_;
  std::int64_t budget_spent_since_ = 0;  // ns; no small message was copied since; 0: one was
  CommCounters counters_;
  RailCounts counts_;
  std::array<Path, core::kMaxPaths> paths_;
  core::PathSet live_ = 0;
  core::PathSet streams_ = 0;    // control thread only
  bool needs_rdma_ = false;      // likewise
  bool introducing_ = false;     // likewise
  core::PathSet quiescing_ = 0;  // over, but their links may still read what was put
  core::PathSet answering_ = 0;  // paths on which the receiver talked lately
  Choice choice_;
  std::atomic<std::size_t> turn_;
  std::vector<core::Outgoing> batch_;  // as it is put together
  CallerLooks looks_;
  bool sleeps_ = false;         // the callers, lately
  bool heard_ = false;          // something was read back, or may go now
  bool device_memory_ = false;  // of this comm: something had to be carried that no stream may
  Activity activity_;
  PathOutage outage_;
  CommEnd end_;
  std::int64_t born_ = 0;
  PeerFacts facts_;
  std::optional<core::PathIndex> awaiting_first_byte_;
  std::vector<PathValidation> validations_;  // since the last tick
};

}  // namespace fabric::host
