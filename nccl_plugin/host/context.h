// What all parts of one transport share, and what the control thread tells a comm about the paths
// to its peer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/reported_down.h"
#include "core/schedule.h"
#include "core/types.h"
#include "host/descriptor_shortage.h"
#include "host/fenced_runs.h"
#include "host/memory.h"
#include "host/params.h"
#include "host/path_log.h"
#include "host/rails.h"
#include "host/stats_page.h"
#include "host/ticks.h"
#include "host/wait_set.h"
#include "host/wire.h"
#include "src/net.h"

namespace fabric::host {

// How often the control thread has to look.
enum class TickRate : std::uint8_t {
  fast,
  calm,  // messages pass, and nothing is amiss
  slow,  // only small ones: whoever waits for one of them in vain says so (host/poll_stall_timer.h)
  idle,  // nothing has passed for kIdleAfterNs
};

struct Context {
  Params params;
  RailList rails;         // the control thread may add
  bool fixed = false;     // the rails were given, not found: their addresses stay
  std::size_t shown = 0;  // the first so many are NCCL's devices; the others stand by
  core::Policy policy;    // what holds for every comm of this process
  std::uint64_t incarnation = 0;
  std::uint64_t run_incarnation = 0;  // of the fabric-run that started this process; 0: of none
  FencedRuns fenced_runs;
  std::atomic<bool> ended{false};  // finalized: the control thread is gone
  // For copied messages that are done to be acknowledged, before a comm is closed.
  std::int64_t close_budget_ns = 5'000'000'000;
  // When a comm last closed owing messages that no path could carry any more.
  std::atomic<std::int64_t> closed_in_vain{std::numeric_limits<std::int64_t>::min() / 2};
  DescriptorShortage shortage;
  Stats stats;
  Memory* memory = nullptr;  // of the transports that need one; null: none does
  TickClock clock;
  WaitSet waits;
  Logger logger = nullptr;
  PathLog path_log;
  std::function<void()> wake_control;  // any thread
  // The rate that the control thread has chosen by what it saw last.
  std::atomic<TickRate> tick_rate{TickRate::fast};
  // Since the control thread began its last look, somebody has begun something.
  std::atomic<bool> activity{false};

  // Any thread, when something begins of which it cannot know: the next looks come in time.
  void note_activity() { wake_if(TickRate::idle); }
  // Any thread, when a caller waits for long.
  void request_fast_tick() { wake_if(TickRate::slow); }

  void say(LogLevel level, const std::string& text) const {
    if (logger != nullptr) {
      logger(static_cast<int>(level), kLogSubsystemNet, "fabric", 0, "NET/Fabric : %s",
             text.c_str());
    }
  }

 private:
  void wake_if(TickRate from) {
    // Before `tick_rate` is read: the control thread writes that one and then reads this.
    if (!activity.load(std::memory_order_relaxed)) {
      activity.store(true);
    }
    TickRate is = tick_rate.load();
    if (is >= from && tick_rate.compare_exchange_strong(is, TickRate::calm)) {
      wake_control();
    }
  }
};

constexpr core::PathKind kind_in(core::PathSet one_sided, core::PathIndex path) {
  return (one_sided & core::bit(path)) != 0 ? core::PathKind::one_sided : core::PathKind::stream;
}

// What holds for the paths of one kind.
struct KindFacts {
  std::array<std::uint16_t, core::kMaxPaths> weight{};  // the lower of both ends'
  core::ReportedDown down;  // by this host, the peer, or a silent control link
  std::array<pages::PathDownReason, core::kMaxPaths> why{};
};

// About all paths between this process and one peer: as streams, and over RDMA.
struct PeerFacts : KindFacts {
  KindFacts rdma;
  // Somebody measures RDMA itself there and finds it well: that TCP is silent tells nothing of it.
  core::PathSet rdma_well = 0;
  core::PathSet control_live = 0;                     // the control link over these rails answers
  std::array<std::int64_t, core::kMaxPaths> heard{};  // when that link last had an ACK
  std::int64_t linked_at = 0;                         // when one of these links came up last
  core::PathSet base = 0;                             // pairs that are connected from the start
  core::PathSet primaries = 0;                        // of all comms to this peer
  bool primary_lost = false;                          // one of them has lost its primary
  core::PathSet slow = 0;  // removed for their speed: they carry while there is nothing else
  // Failed their path validation and are not to be opened yet, while there is another.
  core::PathSet held = 0;
  std::uint8_t version = kWireVersionMin;  // of the wire, agreed on
  // Connections made before this time are to be opened again from another port; 0: none.
  std::array<std::int64_t, core::kMaxPaths> rehash{};
  // When an end of it got another address or device; 0: never.
  std::array<std::int64_t, core::kMaxPaths> moved{};

  [[nodiscard]] const KindFacts& of(core::PathKind kind) const {
    return kind == core::PathKind::one_sided ? rdma : *this;
  }
  [[nodiscard]] KindFacts& of(core::PathKind kind) {
    return kind == core::PathKind::one_sided ? rdma : *this;
  }
  // Is a path that was connected at `connected` to be given up? `live`: all that are connected;
  // `over_rdma`: those of them that are, or are to be, one-sided.
  [[nodiscard]] bool should_close(core::PathIndex path, std::int64_t connected, core::PathSet live,
                                  core::PathSet over_rdma) const {
    const core::PathSet said = (down.down() & ~over_rdma) | (rdma.down.down() & over_rdma);
    return of(kind_in(over_rdma, path)).down.is_newer(path, connected) && (live & ~said) != 0;
  }
  // RDMA has no weight there, TCP has: a path over RDMA goes on as a stream.
  [[nodiscard]] bool to_stream(core::PathIndex path) const {
    return rdma.weight[path] == 0 && weight[path] != 0 && !down.reports(path) &&
           (control_live & core::bit(path)) != 0;
  }

  // Somebody is there. Of the last path nothing but its control link tells: no hint takes it, and a
  // connection on which nothing is under way never fails.
  [[nodiscard]] bool answered(const Params& params) const {
    return control_live != 0 || !params.failover;
  }
  // A connection made at `connected` is of the old address, and the control link of the new one.
  [[nodiscard]] bool outdated(core::PathIndex path, std::int64_t connected) const {
    return connected < moved[path] && (control_live & core::bit(path)) != 0;
  }
};

// What one connection did since the last look; core/balance.h has the terms.
struct PathLoad {
  core::PathIndex path = 0;
  std::uint64_t waiting = 0;    // bytes
  std::uint64_t delivered = 0;  // bytes
  std::int64_t passed = 0;      // ns
  core::PathKind kind = core::PathKind::stream;
};

// What became of a connection that had to prove its path first.
struct PathValidation {
  core::PathIndex path = 0;
  std::int64_t since = 0;  // when the connection came up
  bool succeeded = false;
};

// Small messages go before their CTS.
inline bool sends_eager(const PeerFacts& facts) { return speaks(facts.version, FrameType::eager); }

// What a comm asks of the control thread.
struct ControlActions {
  core::PathSet dial = 0;
  bool primary_lost = false;            // sender: its primary carries nothing now
  bool shares = false;                  // sender: several paths carry
  TickRate tick_rate = TickRate::fast;  // no need to look again sooner
  std::vector<PathLoad> loads;
  std::vector<PathValidation> validations;
  core::PathSet suspect = 0;  // make the control link over these rails speak
  bool say_state = false;     // receiver: what it said is slow to arrive; say it over all links
  core::ReceiverState state;  // receiver: with say_state or announce
  std::vector<PathEpoch> announce;  // sender: fences; receiver: fences it answers unasked
  bool close = false;               // tell the peer that the comm is closed here
};

// Of one comm, or of all, by local rail.
struct RailCounts {
  std::array<std::uint64_t, core::kMaxRails> in_flight{};  // bytes
  std::array<std::uint32_t, core::kMaxRails> live{};       // paths
  std::array<std::uint32_t, core::kMaxRails> dead{};

  RailCounts& operator+=(const RailCounts& other) {
    for (std::size_t i = 0; i < core::kMaxRails; ++i) {
      in_flight[i] += other.in_flight[i];
      live[i] += other.live[i];
      dead[i] += other.dead[i];
    }
    return *this;
  }
};

inline constexpr std::int64_t kMs = 1'000'000;
// The control thread's rounds; the longer ones while all is calm. Two of the calm ones are within
// core::kStallNs: a comm whose caller is inside is passed over once.
inline constexpr std::int64_t kTickNs = 4 * kMs;
inline constexpr std::int64_t kCalmTickNs = 10 * kMs;
inline constexpr std::int64_t kSlowTickNs = 50 * kMs;
// Nothing is under way that could be found silent, and who begins something wakes the control
// thread; meanwhile it looks for hints and keeps the control links speaking.
inline constexpr std::int64_t kIdleTickNs = 100 * kMs;
inline constexpr std::int64_t kIdleAfterNs = 1'000 * kMs;
inline constexpr std::int64_t kBusyNs = 100 * kMs;  // a path that carried nothing for so long rests
inline constexpr std::int64_t kAnnounceNs = 20 * kMs;  // fences repeat until answered
inline constexpr std::int64_t kDialMinNs = 20 * kMs;
inline constexpr std::int64_t kDialMaxNs = 500 * kMs;
inline constexpr std::int64_t kHoldMaxNs = 8000 * kMs;
inline constexpr std::int64_t kCalmNs = 30'000 * kMs;           // without a failure: forgiven
inline constexpr std::int64_t kStreamNs = 1000 * kMs;           // before another kind is tried
inline constexpr std::int64_t kImproveNs = 100 * kMs;           // between two looks for that
inline constexpr std::int64_t kValidationStallNs = 1000 * kMs;  // not one more byte delivered
inline constexpr std::int64_t kStallCountNs = 10 * kMs;

std::string path_text(const Context& context, std::uint8_t local_rail, std::uint8_t remote_rail);
// `detail`: what its link says, may be empty.
std::string reason_text(pages::PathDownReason reason, const std::string& detail);
// Logs "path <towards>: <path> <what>", not more often than host/path_log.h allows. Any thread.
void log_path(Context& context, const PathLog::Key& path, const std::string& towards,
              const std::string& what, std::int64_t now);
// The lines that it held back and that are due. Control thread.
void log_paths_due(Context& context, std::int64_t now);

}  // namespace fabric::host
