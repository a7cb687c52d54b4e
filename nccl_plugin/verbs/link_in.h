// The receiving end of a path over verbs: counts the chunks that landed by their immediates, writes
// CTS lines and the progress line into the sender's memory, and ends only when nothing can land any
// more.
#pragma once

#include <memory>

#include "host/link.h"
#include "verbs/connection.h"
#include "verbs/cts_ring.h"
#include "verbs/link_out.h"

namespace fabric::verbs {

class LinkIn final : public host::LinkIn {
 public:
  static constexpr std::uint32_t kSpareReceives = 1;  // for the first write, which is no chunk

  // Null: `error` says why.
  static std::unique_ptr<LinkIn> make(RailPort& port, const LinkSettings& settings,
                                      core::PathIndex path, core::Epoch epoch, Error& error);

  ~LinkIn() override;

  // Of its dead-path detector: see core::CompletionTimeout.
  void set_backoff(unsigned backoff) { connection_->set_backoff(backoff); }
  [[nodiscard]] bool port_down() const { return connection_->port_down(); }
  [[nodiscard]] const PathTerms& terms() const { return terms_; }
  // With the sender's terms. False: `error` says why.
  bool connect(const PathTerms& peer, Error& error);

  void poll(core::ReceiveCore& core, const host::ReceiveHints& hints,
            host::ReceiveProgress& progress) override;
  [[nodiscard]] bool pending() const override { return false; }  // poll() leaves nothing
  [[nodiscard]] bool ended() const override { return dead_; }
  [[nodiscard]] bool in_chunk() const override { return false; }  // a landing is whole
  void answer(core::ReceiveCore& core, host::ReceiveProgress& progress) override;
  bool send_state(const core::ReceiverState&, host::ReceiveProgress&) override { return false; }
  void flush(host::ReceiveProgress&) override {}
  [[nodiscard]] bool unsent() const override {
    return false;
  }  // what is not sent stays in the core
  void acknowledge() override {}
  [[nodiscard]] bool wants_poll() const override {
    return !ready_ || connection_->pair().sends_outstanding() != 0;
  }
  std::optional<core::Liveness> judge(std::int64_t now) override;
  std::optional<core::PathSample> sample() override;
  [[nodiscard]] std::size_t backlog() const override {
    return std::size_t{connection_->pair().sends_outstanding()} * kLineSize;
  }
  void tick() override {}
  [[nodiscard]] int descriptor() const override { return connection_->queue().fd(); }
  void close(const core::ReceiverState&) override {}
  void discard() override { connection_->begin_end(); }
  bool quiesce() override;
  [[nodiscard]] std::string why() const override { return why_; }

 private:
  LinkIn(ConnectionPtr connection, const LinkSettings& settings, core::PathIndex path,
         core::Epoch epoch);
  std::uint32_t drain(core::ReceiveCore& core, host::ReceiveProgress& progress);
  void note_landed(const Completion& completion, core::ReceiveCore& core,
                   host::ReceiveProgress& progress);
  bool post(const Write& write, host::ReceiveProgress& progress);
  bool write_lines(bool tell, host::ReceiveProgress& progress);
  void write_progress(core::ReceiveCore& core, host::ReceiveProgress& progress);
  [[nodiscard]] std::uint32_t send_room() const;
  void die(pages::PathDownReason reason, std::string why, host::ReceiveProgress& progress);

  const LinkSettings settings_;
  const core::PathIndex path_;
  const core::Epoch epoch_;
  ConnectionPtr connection_;
  PathTerms terms_;
  CtsWriter cts_;
  std::uint32_t next_progress_ = 0;  // of the copies that the device reads from
  std::int64_t answered_at_ = 0;     // ns
  bool ready_ = false;               // the sender's end takes what is written there
  bool dead_ = false;
  std::string why_;
};

}  // namespace fabric::verbs
