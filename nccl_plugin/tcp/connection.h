// A connected TCP socket as host/ knows it.
#pragma once

#include <utility>

#include "host/fd.h"
#include "host/network.h"

namespace fabric::tcp {

class TcpConnection final : public host::Connection {
 public:
  explicit TcpConnection(host::Fd fd) : fd_(std::move(fd)) {}

  std::optional<std::size_t> write(std::span<const std::byte> bytes) override;
  std::optional<std::size_t> read(std::span<std::byte> room) override;
  std::optional<core::PathSample> sample() override;
  [[nodiscard]] std::size_t backlog() const override;
  [[nodiscard]] int descriptor() const override { return fd_.get(); }
  void discard() override;
  [[nodiscard]] host::Address far_end() const override;

  // For a link that reads and writes by itself. Nothing else may be called afterwards.
  host::Fd release() { return std::move(fd_); }

 private:
  host::Fd fd_;
};

}  // namespace fabric::tcp
