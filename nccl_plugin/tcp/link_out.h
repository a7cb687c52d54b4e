// The sending end of a path over TCP. Chunks go out as frames on the socket, CTS and
// acknowledgements come back on it.
#pragma once

#include <array>
#include <vector>

#include "core/schedule.h"
#include "host/fd.h"
#include "host/link.h"
#include "host/transport.h"
#include "host/wire.h"

namespace fabric::tcp {

class TcpLinkOut final : public host::LinkOut {
 public:
  TcpLinkOut(host::Fd fd, const host::LinkSetup& setup, std::uint8_t version);

  [[nodiscard]] std::size_t room() const override { return sending_ ? 0 : batch_size_.most(); }
  void put(std::span<const core::Outgoing> chunks, host::SendProgress& progress) override;
  void advance(host::SendProgress& progress) override;
  void poll(core::SendCore& core, host::SendProgress& progress) override;
  void start_validation() override;

  std::optional<core::PathSample> sample() override;
  [[nodiscard]] std::size_t backlog() const override;
  void limit_unsent(std::size_t bytes) override;
  [[nodiscard]] int descriptor() const override { return fd_.get(); }
  void close() override;
  void discard() override;
  bool quiesce() override;

 private:
  // A chunk with its header.
  struct Piece {
    std::array<std::byte, host::kChunkHeaderSize> header{};
    const std::byte* data = nullptr;
    std::size_t length = 0;  // of the data
    bool again = false;
  };

  std::optional<std::size_t> write(host::SendProgress& progress);
  void wrote(std::size_t bytes, host::SendProgress& progress);
  bool parse(core::SendCore& core, host::SendProgress& progress);
  bool handle(const host::FrameHeader& header, std::span<const std::byte> body,
              core::SendCore& core, host::SendProgress& progress);

  host::Fd fd_;
  const std::uint64_t comm_;
  const std::uint8_t version_;  // of the wire
  // What goes out, in one call as far as the kernel takes it. Valid while `sending_`.
  bool sending_ = false;
  bool validation_ = false;  // it is no chunk but a path validation
  std::vector<Piece> batch_;
  std::size_t batch_at_ = 0;  // the piece under way
  std::size_t piece_at_ = 0;  // bytes of it, header included, that the kernel has
  core::BatchSize batch_size_;
  std::int64_t batch_began_ = 0;  // of a batch as large as it may be
  host::Bytes in_;                // what came back and is not a whole frame yet
  bool over_ = false;             // nothing is read from it any more
  std::size_t unsent_limit_ = host::kUnsentLimit;
};

}  // namespace fabric::tcp
