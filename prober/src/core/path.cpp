#include "core/path.h"

#include <algorithm>
#include <limits>

namespace fabric::prober {
namespace {

constexpr Nanos kIntervalLeast = 500'000;
constexpr Nanos kIntervalMost = 60'000'000'000;
// A century: what a peer says, of whatever clock, can be calculated with.
constexpr Nanos kLatestDue = 3'155'760'000'000'000'000;
// More than packets of one sender differ by that were written in another order than they were due.
constexpr Nanos kSaidApart = 1'000'000'000;
// A peer of an older version says only whether it had a gap within the last second.
constexpr Nanos kUnstalledSaid = 1'000'000'000;

// How many conclusive misses so much running silence makes, when each packet may be `late`.
std::uint32_t misses_in(Nanos awake, Nanos interval, Nanos late) {
  if (interval <= 0 || awake < interval + late) return 0;
  const Nanos n = (awake - late) / interval;
  return static_cast<std::uint32_t>(std::min<Nanos>(n, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

void Path::References::push(std::uint64_t value) {
  if (count == seq.size()) drop_oldest();
  seq[count++] = value;
}

std::uint64_t Path::References::take(bool many) {
  const std::size_t keep = many ? 6 : 2;
  while (count > keep) drop_oldest();
  if (count == 0) return 0;
  const std::uint64_t oldest = seq[0];
  drop_oldest();
  return oldest;
}

Path::Path(const PathConfig& config, Nanos interval, const Random& random)
    : config_(config), interval_(interval), pace_(interval), identity_(random) {}

Nanos Path::lateness(Nanos interval) const {
  // A sender that follows its grid moves by up to a sixteenth of its interval (Cadence::advance).
  return std::min(interval / 2, pace_ / 2 + interval / 16);
}

std::uint64_t Path::sent_unheard(std::uint64_t heard, Nanos before) const {
  const std::uint64_t oldest = next_seq_ > kHistory ? next_seq_ - kHistory : 1;
  const std::uint64_t first = std::max(heard + 1, oldest);
  const bool refusing = refusing_since_ != 0 && last_refused_ == next_seq_ - 1;
  const bool given_up = refusing && before - refusing_since_ >= kRefusedMost;
  std::uint64_t count = 0;
  bool left = false;  // what was sent before a packet that left did, too
  bool refused = false;
  for (std::uint64_t seq = next_seq_; seq-- > first;) {
    const Sent& sent = sent_[seq % kHistory];
    refused = sent.refused && !given_up;
    const bool waits = stamps_ && sent.left == 0 && before - sent.at < kHeldMost;
    left = left || (!refused && !waits && std::max(sent.at, sent.left) <= before);
    count += left && !refused ? 1 : 0;
  }
  // Of what is forgotten, as of the last that is not.
  return left && !refused && first > heard ? count + first - heard - 1 : count;
}

void Path::emit(ring::EventKind kind, Nanos now, std::uint16_t flags, std::uint32_t count,
                std::uint64_t a, std::uint64_t b, std::uint64_t c, RecordSink& sink,
                std::uint64_t d) const {
  ring::EventRecord record{};
  record.mono_ns = unsign(now);
  record.kind = static_cast<std::uint16_t>(kind);
  record.flags = flags;
  record.link = config_.link;
  record.path = config_.index;
  record.count = count;
  record.value[0] = a;
  record.value[1] = b;
  record.value[2] = c;
  record.value[3] = d;
  sink.event(record);
}

void Path::end_window() {
  rx_lost_before_ += window_.lost();
  rx_lost_away_ += window_.lost();  // its sender goes on counting from there
  window_ = {};
}

void Path::begin_anew() {
  end_window();
  due_times_.forget();
  said_ = said_single_ = 0;  // of another clock, if the host was booted anew
  arrived_ = {};
  untold_arrived_ = {};
  gone_ = false;
  feedback_seq_ = 0;
}

void Path::establish(const Packet& packet, Nanos now, RecordSink& sink) {
  if (peer_incarnation() != 0) {
    ++restarts_;
    emit(ring::EventKind::kPeerRestart, now, 0, 0, peer_incarnation(), packet.incarnation, 0, sink);
  }
  identity_.establish(packet);
  begin_anew();
  rx_lost_away_ = 0;
  established_ = now;
  tx_lost_seen_ = 0;
  tx_bitmap_ = 0;
}

Path::Verdict Path::on_packet(const Packet& packet, std::uint16_t from, const Arrival& arrival,
                              std::uint64_t own_incarnation, const StallLog& stalls,
                              RecordSink& sink) {
  const bool roams = (packet.flags & kWireRoams) != 0;
  if (packet.incarnation != peer_incarnation() || peer_incarnation() == 0) {
    if (packet.incarnation == 0 || identity_.retired(packet.incarnation)) return Verdict::kReplay;
    // Before it is established, too: it may be older now, and hear us no more.
    source_.peer_roams(roams);
    peer_challenge_ = packet.challenge;
    if (!identity_.answers(packet)) {
      tries_ = 0;
      report_ = true;  // let it have our challenge
      return Verdict::kUnproven;
    }
    establish(packet, arrival.mono, sink);
  }
  switch (identity_.follow(packet, window_)) {
    case PeerIdentity::Follows::kInOrder:
      break;
    case PeerIdentity::Follows::kAnew:
      begin_anew();
      break;
    case PeerIdentity::Follows::kUnproven:
      report_ = true;
      return Verdict::kUnproven;
    case PeerIdentity::Follows::kBehind:
      return Verdict::kReplay;
  }
  const bool bye = (packet.flags & kWireBye) != 0;
  const bool back = gone_ && !bye && packet.seq > window_.highest();
  if (back) {
    // What was sent while nobody was to listen is not lost.
    gone_ = false;
    end_window();
  }
  if (!window_.accept(packet.seq)) {
    if (packet.seq != 0) ++duplicates_;
    return Verdict::kReplay;
  }
  ++received_;
  source_.peer_roams(roams);
  // A port under validation gets the first packets of trains (SourcePort).
  if (from != peer_from_ && (packet.flags & kWireTrainMask) != 1) {
    peer_from_ = from;
    ++peer_moves_;
  }
  peer_challenge_ = packet.challenge;
  peer_interval_ =
      std::clamp<Nanos>(Nanos{packet.interval_us} * 1000, kIntervalLeast, kIntervalMost);

  const Nanos silent = last_heard_ == 0 ? 0 : std::max<Nanos>(0, arrival.mono - last_heard_);
  if (rx_run_ || last_heard_ == 0 || back) {
    const bool stalled = (packet.flags & kWireStalled) != 0;
    emit(ring::EventKind::kHeard, arrival.mono,
         static_cast<std::uint16_t>((last_heard_ == 0 ? ring::kFlagFirst : 0) |
                                    (stalled ? ring::kFlagPeerStalled : 0)),
         rx_missed_, unsign(silent), 0, 0, sink);
  }
  rx_run_ = false;
  rx_missed_ = 0;
  last_heard_ = std::max(last_heard_, arrival.mono);
  next_inconclusive_ = 0;
  const bool single = (packet.flags & (kWireTrainMask | kWireReport)) == 0;
  if (single || arrival.mono - on_time_ >= 2 * peer_interval_) {
    on_time_ = std::max(on_time_, arrival.mono);
  }
  take_due_times(packet, arrival.mono, single);

  if (packet.peer_incarnation == own_incarnation && packet.seq > feedback_seq_) {
    feedback_seq_ = packet.seq;
    feedback(packet, arrival, stalls, sink);
  }
  measure(packet, arrival, sink);
  if (bye) resume();
  return Verdict::kAccepted;
}

bool Path::on_next_due(const Packet& packet, const Arrival& arrival, const FabricTime& time) {
  if (gone_ || packet.seq != window_.highest()) return true;  // an older one says nothing new
  const bool single = (packet.flags & (kWireTrainMask | kWireReport)) == 0;
  return due_times_.take(unpack_next_due(packet.next_due, arrival.mono, time), packet.seq, single,
                         arrival.mono, on_time_, peer_interval_, pace_, time);
}

void Path::take_due_times(const Packet& packet, Nanos arrived, bool single) {
  const bool silent = packet.due_time <= 0;
  const Nanos said = silent ? arrived : std::min(packet.due_time, kLatestDue);
  // A packet that was sent later is never due so much sooner: what was said before was not so.
  if (packet.seq == window_.highest() && said_ - said >= kSaidApart) said_ = said_single_ = 0;
  if (single || said - said_single_ >= 2 * peer_interval_) {
    said_single_ = std::max(said_single_, said);
  }
  if (said < said_) return;  // it was due before one that came already
  const bool stalled = (packet.flags & kWireStalled) != 0;
  said_ = said;
  const Nanos known = stalled ? 0 : std::min(arrived - established_, kUnstalledSaid);
  awake_us_ =
      silent ? static_cast<std::uint32_t>(std::max<Nanos>(known, 0) / 1000) : packet.awake_us;
}

void Path::note_heard(const Packet& packet) {
  for (std::uint64_t i = 0; i < 64 && i < packet.rx_max; ++i) {
    const Sent& sent = sent_[(packet.rx_max - i) % kHistory];
    const bool whole = sent.seq == packet.rx_max - i;
    if (whole && (packet.rx_bitmap >> i & 1) != 0) source_.heard(sent.port);
  }
}

void Path::feedback(const Packet& packet, const Arrival& arrival, const StallLog& stalls,
                    RecordSink& sink) {
  if (source_.validating()) note_heard(packet);
  tx_bitmap_ = packet.rx_bitmap;
  const Sent& heard = sent_[packet.rx_max % kHistory];
  if (heard.seq == packet.rx_max) acked_ = std::max(acked_, heard.at);
  // Cumulative at the peer, so that reports lost on the way back lose no count. It falls a little
  // when a packet that was given up comes after all; by more, it was not the peer's before.
  if (packet.rx_lost + ReceiveWindow::kSpan < tx_lost_seen_) tx_lost_seen_ = packet.rx_lost;
  if (packet.rx_lost > tx_lost_seen_) tx_lost_ += packet.rx_lost - tx_lost_seen_;
  tx_lost_ = std::min(tx_lost_, next_seq_ - 1);  // whatever is said
  tx_lost_seen_ = std::max(tx_lost_seen_, packet.rx_lost);

  if (packet.rx_missed == 0) {
    if (tx_reported_ > 0) {
      emit(ring::EventKind::kHeard, arrival.mono, ring::kFlagTx, tx_missed_, unsign(tx_silent_), 0,
           0, sink);
    }
    tx_reported_ = 0;
    tx_missed_ = 0;
    tx_silent_ = 0;
    return;
  }
  if (packet.rx_missed <= tx_reported_) return;
  tx_reported_ = packet.rx_missed;
  tx_silent_ = Nanos{packet.rx_silent_us} * 1000;
  // What the peer missed while we were not running is our doing.
  const Nanos from = arrival.mono - tx_silent_;
  const Nanos awake = tx_silent_ - stalls.within(from, arrival.mono);
  // What we sent just now may not have been there when the peer wrote this.
  const Nanos late = lateness(interval_);
  // A peer that knows when they were due says so sooner.
  const Nanos young = packet.next_due != 0 ? std::min(late / 2, pace_ / 4) : late / 2;
  const std::uint64_t unheard = sent_unheard(packet.rx_max, arrival.mono - young);
  const std::uint32_t owed =
      awake == tx_silent_ ? packet.rx_missed : misses_in(awake, interval_, late);
  const auto conclusive = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::min(packet.rx_missed, owed), unheard));
  const bool inconclusive = conclusive <= tx_missed_;
  tx_missed_ = std::max(tx_missed_, conclusive);
  if (!inconclusive) source_.missed();
  emit(ring::EventKind::kMiss, arrival.mono,
       static_cast<std::uint16_t>(ring::kFlagTx | (inconclusive ? ring::kFlagInconclusive : 0)),
       tx_missed_, unsign(interval_), unsign(tx_silent_), unsign(last_heard_), sink);
}

void Path::measure(const Packet& packet, const Arrival& arrival, RecordSink& sink) {
  const auto train = static_cast<std::uint8_t>(packet.flags & kWireTrainMask);
  arrived_[packet.seq % kHistory] = {packet.seq, arrival.stamp, train, arrival.hardware};
  if (arrival.stamp != 0) untold_arrived_.push(packet.seq);

  ring::SampleRecord sample{};
  const bool hw_peer = (packet.flags & kWireHwStamps) != 0;
  const Sent& out = sent_[packet.rx_ref_seq % kHistory];
  const Received& back = arrived_[packet.tx_ref_seq % kHistory];
  bool has_out = packet.rx_ref_stamp != 0 && out.seq == packet.rx_ref_seq && out.stamp != 0;
  bool has_back = packet.tx_ref_stamp != 0 && back.seq == packet.tx_ref_seq && back.stamp != 0;
  // The NIC's clock is another than the kernel's: a sample has stamps of one of them.
  if (has_out && has_back && out.hardware != back.hardware) {
    has_out = out.hardware;
    has_back = back.hardware;
  }
  const bool hw_local = (has_out && out.hardware) || (has_back && back.hardware);
  if (has_out) {
    sample.flags |= ring::kSampleHasOut;
    sample.flags |= static_cast<std::uint16_t>(out.train << ring::kSampleOutTrainShift);
    sample.local_seq = static_cast<std::uint32_t>(out.seq);
    sample.t1 = out.stamp;
    sample.t2 = packet.rx_ref_stamp;
  }
  if (has_back) {
    sample.flags |= ring::kSampleHasBack;
    sample.flags |= static_cast<std::uint16_t>(back.train << ring::kSampleBackTrainShift);
    sample.peer_seq = static_cast<std::uint32_t>(back.seq);
    sample.t3 = packet.tx_ref_stamp;
    sample.t4 = back.stamp;
  }
  const bool message = carries_trains_ && packet.clock_message != ClockMessage{};
  if (message)
    std::copy(packet.clock_message.begin(), packet.clock_message.end(), sample.clock_message);
  if (sample.flags == 0 && !message) return;
  sample.flags |= static_cast<std::uint16_t>((hw_local ? ring::kSampleHwLocal : 0) |
                                             (hw_peer ? ring::kSampleHwPeer : 0));
  sample.mono_ns = unsign(arrival.mono);
  sample.path = config_.index;
  sink.sample(sample);
  const bool both =
      (sample.flags & ring::kSampleHasOut) != 0 && (sample.flags & ring::kSampleHasBack) != 0;
  // (t4 - t1) - (t3 - t2): the peer's hold time falls out. Far apart, the two clocks' rates differ.
  // Unsigned arithmetic: the peer's stamps are arbitrary, overflow must be defined.
  const auto u = [](std::int64_t v) { return static_cast<std::uint64_t>(v); };
  const auto apart = static_cast<Nanos>(u(sample.t4) - u(sample.t1));
  if (both && apart > -8 * interval_ && apart < 8 * interval_) {
    rtt_.add(static_cast<Nanos>((u(sample.t4) - u(sample.t1)) - (u(sample.t3) - u(sample.t2))),
             arrival.mono);
  }
}

void Path::on_transmit_stamp(std::uint64_t seq, std::int64_t stamp, bool hardware, Nanos now) {
  Sent& slot = sent_[seq % kHistory];
  if (slot.seq != seq) return;
  stamps_ = true;
  if (slot.left == 0) slot.left = now;
  if (stamp == 0) return;  // it has left; when, no clock can say just now
  // A NIC that stamps gives both; the hardware's is the better one.
  if (slot.stamp == 0) {
    untold_sent_.push(seq);
  } else if (!hardware) {
    return;
  }
  slot.stamp = stamp;
  slot.hardware = hardware;
}

void Path::on_refused(std::uint64_t seq, Nanos now) {
  Sent& slot = sent_[seq % kHistory];
  if (slot.seq != seq) return;
  slot.refused = true;
  if (refusing_since_ == 0 || seq != last_refused_ + 1) refusing_since_ = now;
  last_refused_ = seq;
}

void Path::resume() {
  gone_ = peer_incarnation() != 0;
  rx_run_ = report_ = false;
  rx_missed_ = tx_missed_ = tx_reported_ = 0;
  tx_silent_ = 0;
  next_inconclusive_ = 0;
  due_times_.forget();
}

void Path::judge(Nanos now, const StallLog& stalls, RecordSink& sink) {
  if (gone_) return;
  if (peer_incarnation() == 0 || last_heard_ == 0 || peer_interval_ == 0) return;
  const Nanos silent = now - last_heard_;
  const std::uint32_t most = overdue(now, 0);
  if (most == 0) return;
  const Nanos stalled = stalls.within(last_heard_, now);
  const std::uint32_t due = stalled == 0 ? most : overdue(now, stalled);
  if (due > rx_missed_) {
    rx_missed_ = due;
    rx_run_ = true;
    report_ = true;
    next_inconclusive_ = now + peer_interval_;
    emit(ring::EventKind::kMiss, now, 0, rx_missed_, unsign(peer_interval_), unsign(silent),
         unsign(last_heard_), sink, due_times_.holds() ? unsign(due_times_.due(rx_missed_)) : 0);
  } else if (rx_missed_ < most && now >= next_inconclusive_) {
    // Only our own gap keeps it from being conclusive.
    const Nanos recent = stalls.within(now - 2 * peer_interval_, now);
    if (recent == 0 && next_inconclusive_ != 0) return;
    rx_run_ = true;
    next_inconclusive_ = now + peer_interval_;
    emit(ring::EventKind::kMiss, now, ring::kFlagInconclusive, rx_missed_, unsign(peer_interval_),
         unsign(silent), unsign(last_heard_), sink);
  }
}

Packet Path::next_packet(std::uint8_t train, Nanos now, std::uint64_t own_incarnation) {
  Packet p;
  p.flags = train;
  p.path = config_.index;
  p.incarnation = own_incarnation;
  p.challenge = identity_.challenge();
  p.response = peer_challenge_;
  p.peer_incarnation = peer_incarnation();
  p.seq = next_seq_++;
  if (peer_incarnation() == 0 && tries_ < kTries) ++tries_;
  p.interval_us = static_cast<std::uint32_t>(
      std::clamp<Nanos>(pace_told() / 1000, 0, std::numeric_limits<std::uint32_t>::max()));
  const std::uint64_t sent_seq = untold_sent_.take(carries_trains_);
  const std::uint64_t arrived_seq = untold_arrived_.take(carries_trains_);
  const Sent& sent = sent_[sent_seq % kHistory];
  const Received& arrived = arrived_[arrived_seq % kHistory];
  bool has_sent = sent_seq != 0 && sent.seq == sent_seq;
  bool has_arrived = arrived_seq != 0 && arrived.seq == arrived_seq;
  // One flag says for both stamps whose they are: of two kinds, the kernel's is left out.
  if (has_sent && has_arrived && sent.hardware != arrived.hardware) {
    has_sent = sent.hardware;
    has_arrived = arrived.hardware;
  }
  if ((has_sent && sent.hardware) || (has_arrived && arrived.hardware)) p.flags |= kWireHwStamps;
  if (has_sent) {
    p.tx_ref_seq = sent_seq;
    p.tx_ref_stamp = sent.stamp;
  }
  if (has_arrived) {
    p.rx_ref_seq = arrived_seq;
    p.rx_ref_stamp = arrived.stamp;
  }
  p.rx_max = window_.highest();
  p.rx_bitmap = window_.bitmap();
  p.rx_lost = static_cast<std::uint32_t>(rx_lost_away_ + window_.lost());
  p.rx_missed = rx_missed_;
  if (last_heard_ != 0) {
    p.rx_silent_us = static_cast<std::uint32_t>(std::clamp<Nanos>(
        (now - last_heard_) / 1000, 0, std::numeric_limits<std::uint32_t>::max()));
  }
  p.flags |= kWireRoams | kWireMtu;
  sent_[p.seq % kHistory] = {p.seq, now, 0, 0, train, false, false, source_.next(train, now)};
  return p;
}

Nanos Path::next_judgement() const {
  if (gone_ || last_heard_ == 0 || peer_interval_ == 0 || rx_missed_ >= kLongSilent) {
    return std::numeric_limits<Nanos>::max();
  }
  const Nanos paced = due(rx_missed_ + 1) + lateness(peer_interval_);
  return due_times_.holds() ? std::min(paced, due_times_.missing_from(rx_missed_ + 1)) : paced;
}

std::uint32_t Path::overdue(Nanos now, Nanos stalled) const {
  const Nanos known = now - stalled;
  return std::max(due_between(last_heard_, known - lateness(peer_interval_)),
                  due_times_.missing(known));
}

std::uint32_t Path::due_between(Nanos from, Nanos to) const {
  if (to <= from) return 0;
  const Nanos n = (to - on_time_) / peer_interval_ - (from - on_time_) / peer_interval_;
  return static_cast<std::uint32_t>(std::min<Nanos>(n, std::numeric_limits<std::uint32_t>::max()));
}

Nanos Path::due(std::uint32_t n) const {
  return on_time_ + ((last_heard_ - on_time_) / peer_interval_ + n) * peer_interval_;
}

bool Path::take_report(Nanos now) {
  if (!report_) return false;
  if (last_report_ != 0 && now - last_report_ < interval_ / 2) return false;
  report_ = false;
  last_report_ = now;
  return true;
}

}  // namespace fabric::prober
