// One path: our link and one address of a peer. Everything that a path knows and decides; no
// clock, no socket.
//
// Rules:
//  - A packet changes the path only if it is of the established incarnation and its sequence is
//    new. A new incarnation is established once it has answered our challenge, and so is a sequence
//    that does not follow (core/peer_identity.h).
//  - Silence is measured in time during which the prober itself was running. A miss is conclusive
//    after such silence of an interval and the lateness that is allowed (half the link's interval
//    and what a sender's grid may move by, but at most half the path's interval), and each further
//    one after another interval; silence that owes to our own gap gives an inconclusive miss, which
//    counts for nothing.
//  - Where both ends have fabric time, a packet is missing a little after it was due by what its
//    sender announced (core/due_time.h), if that is sooner.
//  - Single packets come at their interval and are due by it; trains and reports come when they
//    like. These are signs of life too, but do not move when the next single packet is due.
//  - A miss that the peer reports is conclusive only for a packet that we did send and it did not
//    hear: while we sent nothing, its silence is our doing, whatever the reason. Nor did we send
//    what still stands in this host's own queue behind a job's bulk: where the device stamps, a
//    packet has left once its transmit stamp is there. One that waits for its stamp longer than
//    kHeldMost speaks for a transmit queue that is stuck. Nor what the kernel had no way for (the
//    device was down), unless that has lasted for kRefusedMost.
//  - A peer that sent a bye is silent by intent: nothing is judged until it sends again, with a
//    sequence beyond the bye's (what was under way before it is no return).
//  - Judge only after the sockets were drained, as of when the drain began.
//  - An address that has never answered as its host may be anybody's: any host names addresses. It
//    gets kTries packets at the path's interval, then a single packet each kSearch. A
//    signed packet from there, which need not be proven yet, brings the interval back.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>

#include "core/cadence.h"
#include "core/due_time.h"
#include "core/peer_identity.h"
#include "core/peer_reports.h"
#include "core/ports.h"
#include "core/rtt.h"
#include "core/sink.h"
#include "core/stalls.h"
#include "core/ud_terms.h"
#include "core/window.h"
#include "core/wire.h"

namespace fabric::prober {

struct PathConfig {
  std::uint16_t index = 0;
  std::uint16_t link = 0;
  Address peer{};
  std::uint32_t host_id = 0;
  bool clock = false;  // it may carry trains; one over RDMA does where UDP is broken
  bool extra = false;  // beside the link's round of peers: it has no slot of its own in that
  int peer_rail = -1;  // for what we tell others; -1: not known
  friend bool operator==(const PathConfig&, const PathConfig&) = default;
};

// A received packet's stamps: as the kernel gave it, and when that was on our monotonic clock.
struct Arrival {
  std::int64_t stamp = 0;  // 0: not stamped
  bool hardware = false;
  Nanos mono = 0;
};

// Between two packets to a peer that does not answer.
inline constexpr Nanos kSearch = 1'000'000'000;

class Path {
 public:
  using Random = PeerIdentity::Random;
  enum class Verdict : std::uint8_t { kAccepted, kReplay, kUnproven };

  Path(const PathConfig& config, Nanos interval, const Random& random);

  const PathConfig& config() const { return config_; }
  void move_to(const PathConfig& config) { config_ = config; }  // same path, new indices
  // Its own interval, and the link's, in which one packet of any peer is due.
  void set_interval(Nanos interval, Nanos link_interval) {
    interval_ = interval;
    pace_ = link_interval;
  }

  // `from`: the source port that it came from; 0: that of the configuration.
  Verdict on_packet(const Packet& packet, std::uint16_t from, const Arrival& arrival,
                    std::uint64_t own_incarnation, const StallLog& stalls, RecordSink& sink);
  // Takes the due time that a packet announces, once for each; false: it makes no sense.
  bool on_next_due(const Packet& packet, const Arrival& arrival, const FabricTime& time);
  void on_transmit_stamp(std::uint64_t seq, std::int64_t stamp, bool hardware, Nanos now);
  // The kernel had no way for the packet: no device, or no route.
  void on_refused(std::uint64_t seq, Nanos now);
  void judge(Nanos now, const StallLog& stalls, RecordSink& sink);

  // The next packet, numbered; `train` 1..3 or 0.
  Packet next_packet(std::uint8_t train, Nanos now, std::uint64_t own_incarnation);
  // From where the packet of this number, the newest, is to leave; 0: the link's own port.
  std::uint16_t port_of(std::uint64_t seq) const { return sent_[seq % kHistory].port; }
  // Over RDMA: where the peer is reached, as it said last.
  const UdTerms& ud_terms() const { return ud_terms_; }
  void set_ud_terms(const UdTerms& terms) { ud_terms_ = terms; }
  // Whether trains go over it now.
  bool carries_trains() const { return carries_trains_; }
  void set_carries_trains(bool on) { carries_trains_ = on; }
  SourcePort& source() { return source_; }
  const SourcePort& source() const { return source_; }
  // The path was not configured for a while: the peer is judged anew once it is heard again.
  void resume();
  // True once after a miss was called or a stranger wants our challenge, but at most every half
  // interval.
  bool take_report(Nanos now);
  // Nothing is missing, nothing to be reported, and no bad news from the peer: until
  // next_judgement() only a packet changes that.
  bool quiet() const { return !rx_run_ && !report_ && tx_missed_ == 0; }

  void fill(ring::PathRow& row) const;
  // What we hear of the peer, and whether it says that it hears us; `misses` make a path silent.
  Reachability heard(std::uint32_t misses) const;
  Reachability told(std::uint32_t misses) const;
  // Silent in one direction or the other.
  bool broken(std::uint32_t misses) const {
    return heard(misses) == Reachability::kSilent || told(misses) == Reachability::kSilent;
  }
  Nanos last_heard() const { return last_heard_; }
  // A miss, conclusive or not, was called not long ago, and nothing was heard since.
  bool missing() const { return rx_run_ && rx_missed_ < kLongSilent; }
  // Conclusive misses in a row; 0 once the silence is an old story, and of what the peer said
  // before it fell silent itself.
  std::uint32_t rx_miss_run() const { return rx_missed_ < kLongSilent ? rx_missed_ : 0; }
  std::uint32_t tx_miss_run() const {
    return rx_missed_ == 0 && tx_missed_ < kLongSilent ? tx_missed_ : 0;
  }
  // Of the peer's present life; 0: none is established.
  std::uint64_t peer_incarnation() const { return identity_.incarnation(); }
  // The address has never answered as this host, and has had its packets: it is tried once each
  // kSearch.
  bool searched() const { return peer_incarnation() == 0 && tries_ >= kTries; }
  // It is judged by the due times that its peer announced.
  bool judged_by_due_time() const { return due_times_.holds(); }
  // When the next miss will be called, if our own gaps hide nothing of the silence.
  Nanos next_judgement() const;
  // A packet whose due time was announced is due, and has not come.
  bool awaited(Nanos now) const { return !gone_ && due_times_.holds() && due_times_.due(1) <= now; }

 private:
  struct Sent {
    std::uint64_t seq = 0;
    Nanos at = 0;    // when it was given to the kernel
    Nanos left = 0;  // when its stamp was seen; 0: not yet
    std::int64_t stamp = 0;
    std::uint8_t train = 0;
    bool hardware = false;
    bool refused = false;
    std::uint16_t port = 0;
  };
  struct Received {
    std::uint64_t seq = 0;
    std::int64_t stamp = 0;
    std::uint8_t train = 0;
    bool hardware = false;
  };
  // References not yet told to the peer, oldest first. Both ends send at about the same time, so
  // now two batches arrive between two sendings and then none: one batch is kept back for that.
  struct References {
    std::array<std::uint64_t, 6> seq{};
    std::size_t count = 0;
    void push(std::uint64_t value);
    std::uint64_t take(bool many);  // 0: none; `many`: on a path of trains
    void drop_oldest() {
      std::shift_left(seq.begin(), seq.end(), 1);
      --count;
    }
  };
  static constexpr std::size_t kHistory = 64;
  static constexpr std::uint32_t kLongSilent = 16;
  static constexpr std::uint32_t kTries = 32;
  static constexpr Nanos kHeldMost = 100'000'000;
  static constexpr Nanos kRefusedMost = 1'000'000'000;

  static std::uint64_t unsign(Nanos value) {
    return static_cast<std::uint64_t>(std::max<Nanos>(value, 0));
  }
  // How much later than an interval after the last one a packet may come.
  Nanos lateness(Nanos interval) const;
  // How many single packets were due between two moments.
  std::uint32_t due_between(Nanos from, Nanos to) const;
  // When the n-th single packet after the last sign of life is due, from 1.
  Nanos due(std::uint32_t n) const;
  // How many packets are overdue at `now`, when a prober that did not run for `stalled` knew it.
  std::uint32_t overdue(Nanos now, Nanos stalled) const;
  // Takes what a packet says of when it was due.
  void take_due_times(const Packet& packet, Nanos arrived, bool single);
  // Which of our packets the peer says it heard.
  void note_heard(const Packet& packet);
  // The peer may hear us, though we do not hear it: it is to expect the next packet when it comes.
  Nanos pace_told() const { return searched() ? kSearch : interval_; }
  std::uint32_t rdma_flags() const {
    return (config_.peer.port == kRocePort ? ring::kPathRdma : 0) |
           (ud_terms_.qpn != 0 ? ring::kPathPeerRdma : 0);
  }
  // How many packets that had left this host by `before` are beyond the last one that the peer
  // heard.
  std::uint64_t sent_unheard(std::uint64_t heard, Nanos before) const;
  void establish(const Packet& packet, Nanos now, RecordSink& sink);
  // What was heard of the peer's sequences is counted, and ends.
  void end_window();
  // The same, and what was said with them is forgotten: it may have been another's.
  void begin_anew();
  void feedback(const Packet& packet, const Arrival& arrival, const StallLog& stalls,
                RecordSink& sink);
  void measure(const Packet& packet, const Arrival& arrival, RecordSink& sink);
  void emit(ring::EventKind kind, Nanos now, std::uint16_t flags, std::uint32_t count,
            std::uint64_t a, std::uint64_t b, std::uint64_t c, RecordSink& sink,
            std::uint64_t d = 0) const;

  PathConfig config_;
  Nanos interval_;
  Nanos pace_;

  // Who the peer is.
  PeerIdentity identity_;
  std::uint32_t tries_ = 0;  // packets sent while unproven, since the last one from there
  std::uint64_t peer_challenge_ = 0;
  std::uint64_t restarts_ = 0;
  std::uint16_t peer_from_ = 0;  // its source port, where it is not that of the configuration
  std::uint8_t peer_moves_ = 0;

  // What we hear.
  ReceiveWindow window_{};
  std::uint64_t received_ = 0;
  std::uint64_t duplicates_ = 0;
  std::uint64_t rx_lost_before_ = 0;  // in earlier incarnations of the peer
  std::uint64_t rx_lost_away_ = 0;    // in this one, before it went and came back
  Nanos peer_interval_ = 0;
  Nanos last_heard_ = 0;
  Nanos on_time_ = 0;  // when the last single packet came
  // On the peer's clock: when the newest packet was due, and the last single one. Of an older peer:
  // when they came, on ours.
  Nanos said_ = 0;
  Nanos said_single_ = 0;
  Nanos established_ = 0;  // when the peer's present life was first heard
  DueTimeTracker due_times_{};
  Nanos next_inconclusive_ = 0;
  Nanos last_report_ = 0;
  std::uint32_t awake_us_ = 0;
  std::uint32_t rx_missed_ = 0;
  bool rx_run_ = false;  // a miss, conclusive or not, was called since last heard
  bool gone_ = false;    // it sent a bye, and has not come back
  bool report_ = false;  // the peer is to be told of a miss, or our challenge

  // What the peer hears of us.
  std::uint64_t feedback_seq_ = 0;
  std::uint64_t tx_bitmap_ = 0;
  std::uint64_t tx_lost_ = 0;
  std::uint32_t tx_lost_seen_ = 0;
  std::uint32_t tx_missed_ = 0;
  std::uint32_t tx_reported_ = 0;
  Nanos acked_ = 0;  // when we sent the newest packet that the peer says it heard
  Nanos tx_silent_ = 0;

  // Stamps.
  Nanos refusing_since_ = 0;        // packets in a row
  std::uint64_t last_refused_ = 0;  // the last of them
  std::uint64_t next_seq_ = 1;
  std::array<Sent, kHistory> sent_{};
  std::array<Received, kHistory> arrived_{};
  References untold_sent_{};
  References untold_arrived_{};
  Rtt rtt_{};
  SourcePort source_{};
  UdTerms ud_terms_{};
  bool stamps_ = false;  // the device makes some
  bool carries_trains_ = false;
};

}  // namespace fabric::prober
