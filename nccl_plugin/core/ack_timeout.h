// Is a connection dead though nobody says so? The transport's own view, sampled: bytes are in
// flight and no ACK has come for a while. Pure; times in nanoseconds.
//
// Why not TCP's own verdict: its first retransmission comes only after 240 ms. Why not our
// acknowledgements: a peer that is merely stopped sends none, while its kernel still sends ACKs.
// Nothing in flight (a closed window of a stopped peer, or an idle connection) is never silence.
// One lost packet that was alone in flight is silent for 200 ms as well, so a second witness is
// heard: another connection over the same rails, which is made to speak once the silence is half
// way to its limit. Only a silence far longer than that counts against the witness.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fabric::core {

inline constexpr std::int64_t kAckTimeoutNs = 60'000'000;  // delayed ACKs take up to 40 ms
inline constexpr std::int64_t kAckTimeoutMaxNs = 180'000'000;
inline constexpr std::int64_t kAckTimeoutAloneNs = 250'000'000;
inline constexpr std::int64_t kStallNs = 25'000'000;  // our own sampling gap: inconclusive, look
inline constexpr std::int64_t kGraceNs = 10'000'000;  // again so much later (the host was paused)

// What a transport knows of its connection now. TCP takes it from TCP_INFO; one-sided writes from
// the age of their work requests and from their completions.
struct PathSample {
  std::uint32_t unacknowledged = 0;      // segments or work requests in flight
  std::uint64_t acknowledged_bytes = 0;  // since the connection was made
  std::int64_t since_ack_ns = 0;         // since the far kernel or NIC last acknowledged anything
  std::int64_t ack_due_ns = 0;  // by the transport's own estimate an ACK may take so long; 0: none
  std::uint64_t window = 0;     // bytes that the connection would hold: in flight and unsent
  bool held = false;            // nothing in flight, and what is unsent would fit the peer's window
};

enum class Liveness : std::uint8_t { alive, suspect, dead };

// What a silence of some length means; all detectors of dead paths share it.
class DetectionTime {
 public:
  // A look at `now`. Those that come too late say nothing: the host was paused.
  void look(std::int64_t now) {
    if (last_ != 0 && now - last_ > kStallNs) {
      grace_ = now + kGraceNs;
    }
    last_ = now;
  }
  // `silent`: ns without progress though there was something to do. `slow`: ns that progress may
  // take by the path's own estimate. `heard`: when the witness last had an answer; 0: there is no
  // witness. `alone`: the silence that counts against the witness.
  [[nodiscard]] Liveness judge(std::int64_t silent, std::int64_t slow, std::int64_t now,
                               std::int64_t heard, std::int64_t alone = kAckTimeoutAloneNs) const {
    const std::int64_t limit = std::clamp(slow, kAckTimeoutNs, kAckTimeoutMaxNs);
    if (silent < limit / 2) {
      return Liveness::alive;
    }
    if (now < grace_) {
      return Liveness::suspect;  // not judged yet, but the witness has to speak before it is
    }
    const bool contradicted = heard != 0 && now - heard < limit / 2 && silent < alone;
    return silent >= limit && !contradicted ? Liveness::dead : Liveness::suspect;
  }

 private:
  std::int64_t last_ = 0;
  std::int64_t grace_ = 0;
};

class AckTimeoutDetector {
 public:
  // Call now and then while the connection may have bytes in flight, and within 10 ms of a look
  // that found nothing moving. `heard`: when the witness last had an ACK; 0: there is no witness.
  // `suspect`: make the witness speak.
  Liveness judge(const PathSample& sample, std::int64_t now, std::int64_t heard) {
    limit_.look(now);
    moving_ = sample.unacknowledged == 0 ? !sample.held : sample.acknowledged_bytes != seen_;
    seen_ = sample.acknowledged_bytes;
    if (sample.unacknowledged == 0) {
      since_ = 0;
      return Liveness::alive;
    }
    if (since_ == 0 || sample.acknowledged_bytes != bytes_) {
      since_ = now;
      bytes_ = sample.acknowledged_bytes;
      return Liveness::alive;
    }
    // A queue that fills delays ACKs: then the connection's own estimate rules.
    const std::int64_t silent = std::min(now - since_, sample.since_ack_ns);
    return limit_.judge(silent, sample.ack_due_ns, now, heard);
  }
  // At the last look there was nothing to send, or more had arrived than at the look before.
  [[nodiscard]] bool moving() const { return moving_; }
  void reset() { *this = {}; }

 private:
  DetectionTime limit_;
  std::int64_t since_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t seen_ = 0;  // acknowledged bytes at the last look
  bool moving_ = true;
};

}  // namespace fabric::core
