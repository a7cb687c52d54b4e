// How the attempts of one path over verbs went, for who decides its next kind.
#pragma once

#include <cstdint>
#include <mutex>

namespace fabric::verbs {

// One for each (comm, path, end), held by the transport and the links of that path. Any thread: a
// link may end inside its caller while the control thread reads. Times are monotonic, ns.
class PathHistory {
 public:
  // After so many failures in a row the path is a stream for a while.
  static constexpr std::uint32_t kTries = 2;
  // So many connections that died young, and that counts as kTries failures: where small packets
  // pass and large ones do not, every connection is proved, and carries nothing.
  static constexpr std::uint32_t kShortLives = 4;
  static constexpr std::int64_t kYoungNs = 1'000'000'000;
  // That while: it doubles with each further failure, or memory fault.
  static constexpr std::int64_t kBackoffNs = 1'000'000'000;
  static constexpr std::int64_t kBackoffMaxNs = 60'000'000'000;
  // For each such time that a connection carried its path one memory fault is forgotten.
  static constexpr std::int64_t kForgiveNs = kBackoffMaxNs;

  // An attempt did not connect.
  void never_connected(std::int64_t now);
  // A connection did not pass its validation: the peer is too slow, or nothing large passes.
  void not_validated(std::int64_t now);
  // A connection ended with memory that a NIC did not know. A stale key goes with the receive that
  // had it; what a NIC refuses for good comes again.
  void memory_unknown(std::int64_t now);
  // A connection carried its path, or could have, for `lived` ns, and was lost.
  void lost_after(std::int64_t lived, std::int64_t now);

  // Is it too early to try verbs again? `needed`: nothing else will do, and it is tried again
  // after kBackoffNs however often it failed.
  [[nodiscard]] bool backs_off(std::int64_t now, bool needed = false) const;
  // Connections in a row that died young, less those that did not.
  [[nodiscard]] std::uint32_t short_lives() const;

 private:
  void fail(std::uint32_t least, std::int64_t now);

  mutable std::mutex mutex_;         // guards the rest
  std::uint32_t failures_ = 0;       // attempts in a row
  std::uint32_t short_lives_ = 0;    // as short_lives() says
  std::uint32_t memory_faults_ = 0;  // not forgotten yet
  std::int64_t failed_at_ = 0;
};

}  // namespace fabric::verbs
