// What both ends of a verbs connection have: the queue pair of the data, its completion queue, the
// witness, and memory that the peer writes. One for each (comm, path, epoch): nothing of it is used
// again.
#pragma once

#include <functional>
#include <memory>

#include "core/completion_timeout.h"
#include "verbs/peer_memory.h"
#include "verbs/probe_write.h"
#include "verbs/rail_port.h"
#include "verbs/reaper.h"

namespace fabric::verbs {

inline constexpr unsigned kRearms = 4;

struct ConnectionSettings {
  QueueDepths depths;
  std::size_t memory_size = 0;            // bytes
  bool events = false;                    // completions can wake who sleeps
  std::function<std::uint32_t()> random;  // first packet numbers; 32 bits
  Elsewhere elsewhere;
};

class Connection {
 public:
  // Reads the port, makes everything. Null: `error` says why. It is deleted elsewhere.
  static ConnectionPtr make(RailPort& port, const ConnectionSettings& settings,
                            std::uint32_t ring_entries, Error& error);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // What the peer has to know.
  [[nodiscard]] const PathTerms& terms() const { return terms_; }
  [[nodiscard]] const PathTerms& peer() const { return peer_; }
  // To RTS, with `receives` posted before anything can come. False: `error` says why.
  bool connect(const PathTerms& peer, std::uint32_t receives, Error& error);

  [[nodiscard]] QueuePair& pair() { return *pair_; }
  [[nodiscard]] const QueuePair& pair() const { return *pair_; }
  [[nodiscard]] CompletionQueue& queue() { return *queue_; }
  [[nodiscard]] const CompletionQueue& queue() const { return *queue_; }
  [[nodiscard]] ProbeWrite& witness() { return *witness_; }
  [[nodiscard]] PeerMemory& memory() { return *memory_; }
  [[nodiscard]] Device& device() { return *device_; }

  // After a poll that `found` completions or none: sees to it that the next one makes the queue's
  // descriptor readable, if somebody sleeps on it. True: it was armed, poll once more.
  // Where each of kRearms such polls finds more, the descriptor may stay readable until the next.
  bool rearm(bool found, const std::function<bool()>& sleeping);
  // The dead-path detector, right after the completions were polled. `oldest`: when the oldest
  // unfinished send was posted, ns.
  core::Liveness judge(std::int64_t oldest, std::int64_t now);
  // See core::CompletionTimeout.
  void set_backoff(unsigned backoff) { timeout_.set_backoff(backoff); }
  // Its port or device is down, by its events.
  [[nodiscard]] bool port_down() const {
    return device_->gone() || (health_ != nullptr && !health_->up(path_.port));
  }

  // Moves the queue pair to ERR: what was posted is flushed, and polled as ever. The witness, whose
  // writes are empty, goes with the connection.
  void begin_end();
  // After that: true when every request has completed, or the queue pair is destroyed, or the
  // device is gone. Nothing reads or writes memory for this connection any more. `now`: ns. A
  // device that never flushes is made to let go by destroying its queue pair after kFlushNs.
  bool ended(std::int64_t now);
  static constexpr std::int64_t kFlushNs = 1'000'000'000;

 private:
  Connection() = default;

  std::shared_ptr<Device> device_;
  PathSettings path_;
  PathTerms terms_;
  PathTerms peer_;
  std::unique_ptr<PeerMemory> memory_;
  std::unique_ptr<CompletionQueue> queue_;
  std::unique_ptr<QueuePair> pair_;
  std::unique_ptr<ProbeWrite> witness_;
  std::shared_ptr<const PortHealth> health_;
  core::CompletionTimeout timeout_;
  Elsewhere elsewhere_;
  bool armed_ = false;
  bool ending_ = false;
  bool ended_ = false;
  std::int64_t ending_since_ = 0;
};

}  // namespace fabric::verbs
