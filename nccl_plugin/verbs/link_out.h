// The sending end of a path over verbs: each chunk is one RDMA WRITE with an immediate, straight to
// where the CTS points; CTS and acknowledgements are read from memory that the peer writes.
#pragma once

#include <functional>
#include <memory>

#include "core/fifo.h"
#include "host/link.h"
#include "verbs/connection.h"
#include "verbs/cts_ring.h"
#include "verbs/region_cache.h"

namespace fabric::verbs {

// What all links of a process share.
struct LinkSettings {
  std::uint32_t send_depth = 128;     // work requests of the sender
  std::uint32_t receive_depth = 128;  // chunks under way to a receiver
  std::uint32_t inline_bytes = 128;   // wished for
  // From so many bytes on a full chunk goes as a write and an empty one with the immediate, as
  // adaptively routed fabrics need it; 0: never.
  std::uint32_t split_from = 0;
  bool events = false;             // somebody may block until completions come
  std::function<bool()> sleeping;  // and does; null: always
  std::function<std::uint32_t()> random;
  std::function<std::int64_t()> now;  // monotonic, ns
  Elsewhere elsewhere;                // for what a device has of a connection that is over
};

class LinkOut final : public host::LinkOut {
 public:
  // `rail`: the sender's, whose keys of a core::Region (a RegisteredBuffer) are used. Null: `error`
  // says why.
  static std::unique_ptr<LinkOut> make(RailPort& port, const LinkSettings& settings,
                                       core::PathIndex path, core::Epoch epoch, Error& error);

  ~LinkOut() override;

  // Of its dead-path detector: see core::CompletionTimeout.
  void set_backoff(unsigned backoff) { connection_->set_backoff(backoff); }
  [[nodiscard]] bool port_down() const { return connection_->port_down(); }
  [[nodiscard]] const PathTerms& terms() const { return connection_->terms(); }
  // With the receiver's terms. False: `error` says why. Tells `core` how many credits it has.
  bool connect(const PathTerms& peer, core::SendCore& core, Error& error);

  [[nodiscard]] std::size_t room() const override;
  void put(std::span<const core::Outgoing> chunks, host::SendProgress& progress) override;
  void advance(host::SendProgress& progress) override;
  void poll(core::SendCore& core, host::SendProgress& progress) override;
  void start_validation() override { validation_left_ = kValidationWrites; }
  [[nodiscard]] bool wants_poll() const override { return !sent_.empty(); }
  std::optional<core::Liveness> judge(std::int64_t now) override;
  std::optional<core::PathSample> sample() override;
  [[nodiscard]] std::size_t backlog() const override { return backlog_; }
  // The NIC holds what is under way as well: a product of bandwidth and delay on top.
  void limit_unsent(std::size_t bytes) override { unsent_limit_ = bytes + kUnderWay; }
  [[nodiscard]] int descriptor() const override { return connection_->queue().fd(); }
  // A verbs connection says nothing of a comm: its control links do.
  void close() override {}
  void discard() override { connection_->begin_end(); }
  bool quiesce() override;
  [[nodiscard]] std::string why() const override { return why_; }
  // It ended with memory that a NIC did not know: a refused key, or none at all.
  [[nodiscard]] bool memory_fault() const { return memory_fault_; }
  // The device of this connection has that memory.
  [[nodiscard]] bool knows(core::Region region) const override { return known(region) != nullptr; }
  // The peer's NIC has answered: until then room() is 0.
  [[nodiscard]] bool proved() const { return proved_; }

  static constexpr std::size_t kUnderWay = std::size_t{4} << 20U;  // bytes
  static constexpr std::uint32_t kValidationWrites = 16;
  static constexpr std::uint32_t kValidationBytes = 4096;

 private:
  enum class What : std::uint8_t { chunk, part, validation, ready };
  struct Sent {
    What what = What::chunk;
    std::uint32_t bytes = 0;
    std::int64_t at = 0;  // ns
  };

  LinkOut(ConnectionPtr connection, const LinkSettings& settings, core::PathIndex path,
          core::Epoch epoch);
  [[nodiscard]] const Region* known(core::Region region) const;
  bool send(const core::Outgoing& chunk, host::SendProgress& progress);
  bool post(const Write& write, What what, host::SendProgress& progress);
  void note_answers(std::uint32_t lines, core::SendCore& core, host::SendProgress& progress);
  bool note_sent(const Completion& completion, host::SendProgress& progress);
  void die(pages::PathDownReason reason, std::string why, host::SendProgress& progress);
  std::uint32_t drain(core::SendCore* core, host::SendProgress& progress);

  const LinkSettings settings_;
  const core::PathIndex path_;
  const core::Epoch epoch_;
  ConnectionPtr connection_;
  CtsReader cts_;
  core::Fifo<Sent> sent_;  // the oldest first, as the device completes them
  std::size_t backlog_ = 0;
  std::size_t unsent_limit_ = SIZE_MAX;
  std::uint64_t delivered_ = 0;  // bytes
  std::int64_t delivered_at_ = 0;
  std::uint32_t validation_left_ = 0;  // writes to post
  std::uint32_t validating_ = 0;       // writes under way
  bool dead_ = false;
  bool memory_fault_ = false;
  bool proved_ = false;
  std::string why_;
};

}  // namespace fabric::verbs
