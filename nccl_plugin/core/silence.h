// Is a TCP connection dead though nobody says so? The kernel's own view, sampled: bytes are in
// flight and no ACK has come for a while. Pure; times in nanoseconds.
//
// Why not TCP's own verdict: its first retransmission comes only after 240 ms. Why not our
// acknowledgements: a peer that is merely stopped sends none, while its kernel still sends ACKs.
// Nothing in flight (a closed window of a stopped peer, or an idle connection) is never silence.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fabric::core {

inline constexpr std::int64_t kSilenceNs = 60'000'000;       // delayed ACKs take up to 40 ms
inline constexpr std::int64_t kSilenceMaxNs = 180'000'000;
inline constexpr std::int64_t kStallNs = 25'000'000;   // our own sampling gap: inconclusive, look
inline constexpr std::int64_t kGraceNs = 10'000'000;   // again so much later (the host was paused)

struct TcpSample {
  std::uint32_t unacknowledged = 0;       // segments in flight (tcpi_unacked)
  std::uint64_t acknowledged_bytes = 0;   // tcpi_bytes_acked
  std::uint32_t since_ack_ms = 0;         // tcpi_last_ack_recv
  std::uint32_t rtt_us = 0;
  std::uint32_t rtt_var_us = 0;
};

class Silence {
 public:
  // True when the connection is dead. Call about every 5 ms while it may have bytes in flight.
  bool dead(const TcpSample& sample, std::int64_t now) {
    if (last_ != 0 && now - last_ > kStallNs) {
      grace_ = now + kGraceNs;
    }
    last_ = now;
    if (sample.unacknowledged == 0) {
      since_ = 0;
      return false;
    }
    if (since_ == 0 || sample.acknowledged_bytes != bytes_) {
      since_ = now;
      bytes_ = sample.acknowledged_bytes;
      return false;
    }
    // A queue that fills delays ACKs: then the connection's own estimate rules.
    const std::int64_t slow =
        2 * (std::int64_t{sample.rtt_us} + 4 * std::int64_t{sample.rtt_var_us}) * 1000;
    const std::int64_t limit = std::clamp(slow, kSilenceNs, kSilenceMaxNs);
    return now >= grace_ && now - since_ >= limit &&
           std::int64_t{sample.since_ack_ms} * 1'000'000 >= limit;
  }
  void reset() { *this = {}; }

 private:
  std::int64_t last_ = 0;
  std::int64_t since_ = 0;
  std::int64_t grace_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace fabric::core
