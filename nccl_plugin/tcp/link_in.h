// The receiving end of a path over TCP. Chunks come in as frames on the socket, straight to where
// they belong; CTS and acknowledgements go out on it.
#pragma once

#include <array>

#include "host/fd.h"
#include "host/link.h"
#include "host/transport.h"
#include "host/wire.h"

namespace fabric::tcp {

class TcpLinkIn final : public host::LinkIn {
 public:
  TcpLinkIn(host::Fd fd, const host::LinkSetup& setup, std::uint8_t version);

  void poll(core::ReceiveCore& core, const host::ReceiveHints& hints,
            host::ReceiveProgress& progress) override;
  [[nodiscard]] bool pending() const override;
  [[nodiscard]] bool ended() const override { return ended_; }
  [[nodiscard]] bool in_chunk() const override { return in_payload_; }

  void answer(core::ReceiveCore& core, host::ReceiveProgress& progress) override;
  bool send_state(const core::ReceiverState& state, host::ReceiveProgress& progress) override;
  void flush(host::ReceiveProgress& progress) override;
  [[nodiscard]] bool unsent() const override { return !out_.empty(); }
  void acknowledge() override;

  std::optional<core::PathSample> sample() override;
  [[nodiscard]] std::size_t backlog() const override;
  void tick() override;
  [[nodiscard]] int descriptor() const override { return fd_.get(); }
  void close(const core::ReceiverState& last) override;
  void discard() override;
  bool quiesce() override;

 private:
  struct Scatter;
  // One call of poll().
  struct Poll {
    core::ReceiveCore& core;
    const host::ReceiveHints& hints;
    host::ReceiveProgress& progress;
  };
  // What a read should do next.
  enum class After { again, enough, over };

  After read(Poll& poll, std::size_t& budget);
  void aim(const Poll& poll, Scatter& into);
  bool take(Poll& poll, const Scatter& into, std::size_t got);
  bool feed(Poll& poll, std::span<const std::byte> bytes);
  void arrived(Poll& poll, std::size_t payload);
  bool take_header(Poll& poll);
  bool begin_chunk(Poll& poll);
  void finish_chunk(Poll& poll);
  void lower_water(const host::ReceiveHints& hints);

  host::Fd fd_;
  const std::uint64_t comm_;
  const core::PathIndex path_;
  const core::Epoch epoch_;
  const std::uint32_t chunk_size_;
  const std::uint8_t version_;  // of the wire
  // The chunk coming in: first its header, then `left_` bytes to `data_` (null: to be dropped).
  std::array<std::byte, host::kChunkHeaderSize> header_{};
  std::size_t header_at_ = 0;
  bool in_payload_ = false;
  bool ended_ = false;  // nothing more is read from it: it said close, or it broke off
  bool duplicate_ = false;
  bool validation_ = false;  // what comes in is a path validation: dropped and answered
  std::byte* data_ = nullptr;
  std::size_t left_ = 0;
  std::size_t behind_ = 0;  // bytes of the message after this chunk, if it comes in order
  // Whose chunk that is, where the next would begin, and how many the sender promised from there.
  core::GroupId group_ = 0;
  std::uint8_t slot_ = 0;
  std::uint8_t follow_ = 0;
  std::uint64_t next_offset_ = 0;
  std::size_t low_water_ = 1;  // of the socket
  std::size_t low_left_ = 0;   // `left_` when the last tick saw it
  // CTS and acknowledgements that the kernel did not take yet.
  host::Bytes out_;
  std::size_t out_at_ = 0;
};

}  // namespace fabric::tcp
