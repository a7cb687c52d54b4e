// The receiving end of a comm: core/ReceiveCore with its links.
//
// Threads as in Sender: the caller drives payload, the control thread attaches connections, drains
// and retires them when the sender fences, and finds the silent ones.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/receive_core.h"
#include "host/comm_counters.h"
#include "host/comm_gate.h"
#include "host/comm_state.h"
#include "host/context.h"
#include "host/link.h"
#include "host/path_state.h"
#include "host/poll_stall_timer.h"

namespace fabric::host {

// What the hello says of a link.
struct LinkOffer {
  core::PathKind kind = core::PathKind::stream;
  std::uint32_t credits = 0;  // of a one-sided one: how many receives for chunks it has
  bool beside = false;        // of a one-sided one: it comes in the place of the path's stream
};

class Receiver {
 public:
  [[nodiscard]] core::PathIndex primary() const { return primary_; }
  // `peer`: its name for the log; `incarnation`: of the peer's process.
  Receiver(Context& context, std::uint64_t id, core::PathIndex primary, std::uint32_t chunk_size,
           std::string peer, std::uint64_t incarnation = 0, std::uint8_t version = kWireVersion);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // The caller's side.
  // `taken` is false when the receive has to be offered again.
  // `registrations`: of the slots' buffers, in their order; empty: there are none.
  Result post(std::span<const ReceiveSlot> slots, bool& taken, core::GroupId& group,
              std::span<const Registration> registrations = {});
  // `landed_rails`: a bit for each rail over which one-sided writes of a group that is done came.
  Result test(core::GroupId group, std::size_t count, bool& done, int* sizes,
              std::uint8_t* landed_rails = nullptr);
  void close();

  // The control thread's side.
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] std::uint32_t chunk_size() const { return chunk_size_; }
  // nullopt: not done, because the caller is inside and `wait` was not asked for.
  std::optional<ControlActions> tick(std::int64_t now, const PeerFacts& facts, bool wait);
  // Makes the link of an epoch that is taken, and sends the welcome. Null: that failed.
  using MakeLink = std::function<std::unique_ptr<LinkIn>()>;
  // A new link; an older one of the same path is drained and retired. One that is offered beside a
  // stream waits until the sender fences that. Nothing: taken, else the lowest epoch that would be.
  // `version`: of the wire, as the welcome says.
  std::optional<core::Epoch> attach(core::PathIndex path, core::Epoch epoch, const MakeLink& make,
                                    std::uint8_t version, const LinkOffer& offer = {});
  void hangup(core::PathIndex path, core::Epoch epoch);
  // Fences and answers. The answer is the same however often it is asked. Nothing: not yet, for
  // something may still land on behalf of the old link; the sender asks again.
  std::optional<StateFrame> on_fence(const PathEpoch& fence);
  [[nodiscard]] core::ReceiverState state() const;
  void on_peer_close();
  void abort(Result result, const std::string& text);
  // The same, whatever the peer said before, and nothing more of it is taken.
  void cut(const std::string& text);
  [[nodiscard]] bool closed() const { return end_.closed.load(std::memory_order_acquire); }
  // As of the last time that the caller was not inside. Control thread only.
  const RailCounts& counts();
  [[nodiscard]] const CommCounters& counters() const { return counters_; }

 private:
  // One-sided, connects while the link is a stream, and takes its place when that is over.
  struct Beside {
    std::unique_ptr<LinkIn> link;
    core::Epoch epoch = 0;
    std::uint32_t credits = 0;
    // One that is given up: something may still land on its behalf.
    std::unique_ptr<LinkIn> dropped;
  };
  struct Path : PathConnection<LinkIn> {
    Beside beside;
    PathAcks acks;
    bool small = false;  // a whole small message came, which the transport may not have confirmed
    bool awaits_validation = false;  // back: the control thread reads until that is through
    bool announce = false;           // we gave it up: answer the sender's fence until it comes
    std::int64_t announced = 0;
  };
  struct Activity {
    core::PathSet busy = 0;     // paths that carried payload lately
    core::PathSet carried = 0;  // of these, since aged_at
    std::int64_t aged_at = 0;
    bool moved = false;        // a receive was posted, or a chunk came, since the last tick
    std::int64_t busy_at = 0;  // when that was last so
  };
  // The state that repeats all that was said on links which died.
  struct StateReport {
    bool owed = false;    // a path died with answers in it, none is left
    bool unsent = false;  // the link has no room for it: the control links are to say it
    std::int64_t said_at = 0;
  };

  [[nodiscard]] Result without_device_memory();
  bool hang_up();
  void progress();
  void watch_all();
  std::optional<pages::PathDownReason> drain(core::PathIndex index);
  // All that the transport holds now, however much.
  void exhaust(core::PathIndex index);
  void account(core::PathIndex index, const ReceiveProgress& progress);
  void note_carried(core::PathIndex index);
  [[nodiscard]] ReceiveHints hints(core::PathIndex index);
  void note_close();
  // After the peer's close: can anything still come in?
  [[nodiscard]] bool heard_out() const;
  // Tells CTS and acknowledgements: what is urgent, what is worth it now that nothing comes in,
  // or all there is. The control thread tells all in each tick, so that nothing waits longer.
  enum class Tell { urgent, worthwhile, all };
  void answer(Tell what = Tell::urgent);
  void flush(core::PathIndex index);
  // Of small messages, to the peer's transport, at a moment in which nothing comes in.
  void acknowledge_small();
  void fail(core::PathIndex index, pages::PathDownReason reason);
  void retire(core::PathIndex index);
  void release(core::PathIndex index);
  void end_in_core(core::PathIndex index, core::Epoch epoch);
  void take(core::PathIndex index, core::Epoch epoch, std::unique_ptr<LinkIn> link);
  void promote(core::PathIndex index);
  void drop_beside(core::PathIndex index);
  void release_dropped(core::PathIndex index);
  // Something may still land on behalf of a link of this path that is over.
  [[nodiscard]] bool lands_late(core::PathIndex index) const {
    return ((quiescing_ | dropping_) & core::bit(index)) != 0;
  }
  bool settle();
  void hang_up_all(bool say_close);
  [[nodiscard]] core::PathSet others_of(core::PathIndex index) const;
  void watch_path(core::PathIndex index, std::int64_t now, const PeerFacts& facts,
                  ControlActions& actions);
  void watch_deadline(std::int64_t now);
  void log(core::PathIndex index, const std::string& what, std::int64_t now);
  void send_state(core::PathIndex index);
  [[nodiscard]] TickRate tick_rate(std::int64_t now) const;
  [[nodiscard]] std::optional<core::PathIndex> answer_path() const;
  void abort_inside(Result result, const std::string& text);

  Context& context_;
  const std::uint64_t id_;
  const core::PathIndex primary_;
  const std::string peer_;
  const std::uint64_t peer_incarnation_;
  const std::uint32_t chunk_size_;
  mutable CommGate gate_;
  core::ReceiveCore core_;
  PollStallTimer stall_timer_;
  CommCounters counters_;
  RailCounts counts_;
  std::array<Path, core::kMaxPaths> paths_;
  core::PathSet live_ = 0;
  core::PathSet writers_ = 0;    // one-sided, live or quiescing
  core::PathSet quiescing_ = 0;  // over, but something may still land on behalf of their links
  core::PathSet dropping_ = 0;   // the same of links that were beside
  CallerLooks looks_;
  unsigned awake_ = ~0U >> 1U;  // looks since the callers last slept
  bool heard_ = false;          // a message became whole, or the peer's close came
  Activity activity_;
  StateReport state_;
  PathOutage outage_;
  CommEnd end_;
  std::int64_t peer_closed_at_ = 0;  // others may still hold what was sent before that
  PeerFacts facts_;
  std::optional<core::PathIndex> last_payload_;
};

}  // namespace fabric::host
