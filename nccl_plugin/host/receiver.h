// The receiving end of a comm: core/ReceiveCore with its connections.
//
// Threads as in Sender: the caller drives payload, the control thread attaches connections, drains
// and retires them when the sender fences, and finds the silent ones.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <span>

#include "core/lifecycle.h"
#include "core/receive_core.h"
#include "core/silence.h"
#include "host/context.h"
#include "host/patience.h"
#include "host/tally.h"
#include "host/tenure.h"

namespace fabric::host {

class Receiver {
 public:
  [[nodiscard]] core::PathIndex home() const { return home_; }
  Receiver(Context& context, std::uint64_t id, core::PathIndex home, std::uint32_t chunk_size,
           std::string peer);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // The caller's side.
  // `taken` is false when the receive has to be offered again.
  Result post(std::span<const ReceiveSlot> slots, bool& taken, core::GroupId& group);
  Result test(core::GroupId group, std::size_t count, bool& done, int* sizes);
  void close();

  // The control thread's side.
  [[nodiscard]] std::uint64_t id() const { return id_; }
  // nullopt: not done, because the caller is inside and `wait` was not asked for.
  std::optional<Wants> tick(std::int64_t now, const PeerFacts& facts, bool wait);
  // A new connection; an older one of the same path is drained and retired. Null: taken, else the
  // lowest epoch that would be.
  // `fd` is moved from when it is taken. `version`: of the wire, as the welcome says.
  std::optional<core::Epoch> attach(core::PathIndex path, core::Epoch epoch, Fd& fd,
                                    std::span<const std::byte> welcome, std::uint8_t version);
  void hangup(core::PathIndex path, core::Epoch epoch);
  // Fences and answers. The answer is the same however often it is asked.
  StateFrame on_fence(const PathEpoch& fence);
  [[nodiscard]] core::ReceiverState state() const;
  void on_peer_close();
  void abort(Result result, const std::string& text);
  // The same, whatever the peer said before, and nothing more of it is taken.
  void cut(const std::string& text);
  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  // As of the last time that the caller was not inside. Control thread only.
  const RailCounts& counts();
  [[nodiscard]] const Tally& tally() const { return tally_; }

 private:
  struct Path {
    core::Lifecycle life;
    Fd fd;
    bool watched = false;  // it is in the wait set
    core::Epoch epoch = 0;
    // The chunk coming in: first its header, then `left` bytes to `data` (null: to be dropped).
    std::array<std::byte, kChunkHeaderSize> header{};
    std::size_t header_at = 0;
    bool in_payload = false;
    bool ended = false;  // nothing more is read from it: it said close, or it broke off
    bool duplicate = false;
    bool small = false;  // a whole small message came, which TCP may not have acknowledged
    bool trial = false;  // what comes in is a trial: dropped and answered
    std::byte* data = nullptr;
    std::size_t left = 0;
    std::size_t behind = 0;  // bytes of the message after this chunk, if it comes in order
    // Whose chunk that is and where the next would begin; whether they come in order.
    core::GroupId group = 0;
    std::uint8_t slot = 0;
    bool in_order = false;
    std::uint64_t next_offset = 0;
    std::size_t low_water = 1;  // of the socket
    std::size_t low_left = 0;   // `left` when the last tick saw it
    // Grants and acknowledgements that the kernel did not take yet.
    Bytes out;
    std::size_t out_at = 0;
    core::Silence silence;
    bool maybe_unacked = false;
    std::int64_t up_since = 0;
    bool ever_live = false;
    bool awaits_trial = false;  // back: the control thread reads until the trial is through
    bool announce = false;      // we gave it up: answer the sender's fence until it comes
    std::int64_t announced = 0;
  };

  bool hang_up();
  void progress();
  // Those who wait hear of it from now on, if there are any.
  void watch(core::PathIndex index);
  void watch_all();
  struct Scatter;
  void aim(core::PathIndex index, Scatter& into);
  bool take(core::PathIndex index, const Scatter& into, std::size_t got);
  bool drain(core::PathIndex index);
  // All that the kernel holds now, however much.
  void exhaust(core::PathIndex index);
  // What a caller that blocks is woken for: not for each packet of a large message.
  void lower_water(core::PathIndex index);
  void note_close();
  // After the peer's close: can anything still come in?
  [[nodiscard]] bool heard_out() const;
  bool feed(core::PathIndex index, std::span<const std::byte> bytes);
  void arrived(core::PathIndex index, std::size_t payload);
  bool take_header(core::PathIndex index);
  void finish_chunk(core::PathIndex index);
  void count_payload(core::PathIndex index, std::size_t payload);
  // Tells grants and acknowledgements: what is urgent, what is worth it now that nothing comes in,
  // or all there is. The control thread tells all in each tick, so that nothing waits longer.
  enum class Tell { urgent, worthwhile, all };
  void answer(Tell what = Tell::urgent);
  void flush(core::PathIndex index);
  // Of small messages, to the peer's kernel, at a moment in which nothing comes in.
  void acknowledge_small();
  void fail(core::PathIndex index, pages::PathDownReason reason);
  void retire(core::PathIndex index);
  void send_state(core::PathIndex index);
  [[nodiscard]] Rest rest(std::int64_t now) const;
  [[nodiscard]] std::optional<core::PathIndex> answer_path() const;
  void abort_inside(Result result, const std::string& text);

  Context& context_;
  const std::uint64_t id_;
  const core::PathIndex home_;
  const std::string peer_;
  const std::uint32_t chunk_size_;
  mutable Tenure tenure_;
  core::ReceiveCore core_;
  Patience patience_;
  Tally tally_;
  std::array<Path, core::kMaxPaths> paths_;
  core::PathSet live_ = 0;
  PeerFacts facts_;
  std::uint64_t seen_generation_ = 0;
  std::uint64_t seen_sleeps_ = 0;
  unsigned awake_ = ~0U >> 1U;  // looks since the callers last slept
  unsigned calls_ = 0;
  core::PathSet busy_ = 0;     // paths that carried payload lately
  core::PathSet carried_ = 0;  // of these, since aged_at_
  std::int64_t aged_at_ = 0;
  std::optional<core::PathIndex> last_payload_;
  bool owe_state_ = false;  // a path died with answers in it, none is left
  // Said on a connection or a control link: others may still hold what was sent before it.
  bool peer_closed_ = false;
  std::int64_t peer_closed_at_ = 0;
  std::atomic<bool> closed_{false};
  Result error_ = Result::success;
  std::string last_failure_;
  std::int64_t last_failure_at_ = 0;
  std::int64_t last_state_ = 0;
  std::int64_t dead_since_ = 0;
  RailCounts counts_;
  bool told_all_down_ = false;
  bool moved_ = false;        // a receive was posted, or a chunk came, since the last tick
  bool heard_ = false;        // a message became whole, or the peer's close came
  std::int64_t busy_at_ = 0;  // when that was last so
};

}  // namespace fabric::host
