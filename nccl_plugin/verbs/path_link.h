// A path over verbs from its welcome on: the ends swap terms over the path's TCP connection,
// connect their queue pairs, and then data goes by RDMA. Until then the link has no room; if they
// cannot, it is dead, and the path's next connection may be of another kind.
#pragma once

#include <cstdint>
#include <memory>

#include "host/fd.h"
#include "verbs/link_in.h"
#include "verbs/link_out.h"
#include "verbs/path_history.h"
#include "verbs/side_channel.h"

namespace fabric::verbs {

// One descriptor that is readable when one of several is.
class AnyOf {
 public:
  AnyOf();
  void add(int fd);
  [[nodiscard]] int descriptor() const { return epoll_.get(); }

 private:
  host::Fd epoll_;
};

// Says whether to look at the side channel, which costs a system call: now and then.
class Glance {
 public:
  bool due(std::int64_t now) {
    constexpr std::int64_t kEveryNs = 1'000'000;
    if (now - last_ < kEveryNs) {
      return false;
    }
    last_ = now;
    return true;
  }

 private:
  std::int64_t last_ = 0;
};

class PathLinkOut final : public host::LinkOut {
 public:
  PathLinkOut(std::unique_ptr<verbs::LinkOut> link, std::unique_ptr<host::Connection> connection,
              std::uint64_t comm, std::shared_ptr<PathHistory> history,
              std::function<std::int64_t()> now);
  ~PathLinkOut() override;

  [[nodiscard]] core::PathKind kind() const override {
    return link_->proved() ? core::PathKind::one_sided : core::PathKind::stream;
  }
  [[nodiscard]] bool over_rdma() const override { return true; }
  [[nodiscard]] bool knows(core::Region region) const override { return link_->knows(region); }
  [[nodiscard]] std::size_t room() const override { return connected_ ? link_->room() : 0; }
  void put(std::span<const core::Outgoing> chunks, host::SendProgress& progress) override {
    link_->put(chunks, progress);
  }
  void advance(host::SendProgress& progress) override;
  void poll(core::SendCore& core, host::SendProgress& progress) override;
  void start_validation() override { link_->start_validation(); }
  void begin_service() override { in_service_since_ = now_(); }
  void abandon() override { ended_ = true; }
  [[nodiscard]] bool wants_poll() const override { return !connected_ || link_->wants_poll(); }
  std::optional<core::Liveness> judge(std::int64_t now) override {
    return connected_ ? link_->judge(now) : std::nullopt;
  }
  std::optional<core::PathSample> sample() override;
  [[nodiscard]] std::size_t backlog() const override { return link_->backlog(); }
  void limit_unsent(std::size_t bytes) override { link_->limit_unsent(bytes); }
  [[nodiscard]] int descriptor() const override { return any_.descriptor(); }
  void close() override;
  void discard() override;
  bool quiesce() override;
  [[nodiscard]] std::string why() const override { return why_.empty() ? link_->why() : why_; }

 private:
  bool take(const host::FrameHeader& header, std::span<const std::byte> body, core::SendCore& core,
            host::SendProgress& progress);
  void note_end();

  std::unique_ptr<verbs::LinkOut> link_;
  SideChannel side_;
  AnyOf any_;
  Glance glance_;
  std::shared_ptr<PathHistory> history_;
  std::function<std::int64_t()> now_;
  const std::int64_t made_at_;         // ns
  std::int64_t proved_at_ = 0;         // ns; 0: not yet
  std::int64_t in_service_since_ = 0;  // ns; 0: it does not carry the path yet
  bool connected_ = false;
  bool closed_ = false;  // in good order
  bool ended_ = false;   // and the history knows
  std::string why_;
};

class PathLinkIn final : public host::LinkIn {
 public:
  PathLinkIn(std::unique_ptr<verbs::LinkIn> link, std::unique_ptr<host::Connection> connection,
             std::uint64_t comm, std::shared_ptr<PathHistory> history,
             std::function<std::int64_t()> now);

  [[nodiscard]] core::PathKind kind() const override { return core::PathKind::one_sided; }
  void prepare(host::ReceiveProgress& progress) override;
  [[nodiscard]] bool prepared() const override { return connected_; }
  void poll(core::ReceiveCore& core, const host::ReceiveHints& hints,
            host::ReceiveProgress& progress) override;
  [[nodiscard]] bool pending() const override { return link_->pending(); }
  [[nodiscard]] bool ended() const override { return closed_ || link_->ended(); }
  [[nodiscard]] bool in_chunk() const override { return false; }
  void answer(core::ReceiveCore& core, host::ReceiveProgress& progress) override;
  bool send_state(const core::ReceiverState& state, host::ReceiveProgress& progress) override;
  void flush(host::ReceiveProgress& progress) override;
  [[nodiscard]] bool unsent() const override { return side_.unsent(); }
  void acknowledge() override {}
  [[nodiscard]] bool wants_poll() const override { return !connected_ || link_->wants_poll(); }
  std::optional<core::Liveness> judge(std::int64_t now) override {
    return connected_ ? link_->judge(now) : std::nullopt;
  }
  std::optional<core::PathSample> sample() override;
  [[nodiscard]] std::size_t backlog() const override { return link_->backlog(); }
  void tick() override {}
  [[nodiscard]] int descriptor() const override { return any_.descriptor(); }
  void close(const core::ReceiverState& last) override;
  void discard() override;
  bool quiesce() override;
  [[nodiscard]] std::string why() const override { return why_.empty() ? link_->why() : why_; }

 private:
  bool take(const host::FrameHeader& header, std::span<const std::byte> body,
            host::ReceiveProgress& progress);

  std::unique_ptr<verbs::LinkIn> link_;
  SideChannel side_;
  AnyOf any_;
  Glance glance_;
  std::shared_ptr<PathHistory> history_;
  std::function<std::int64_t()> now_;
  std::int64_t connected_at_ = 0;  // ns
  bool connected_ = false;
  bool closed_ = false;  // the comm was, by the sender or here
  bool ended_ = false;   // and the history knows
  std::string why_;
};

}  // namespace fabric::verbs
