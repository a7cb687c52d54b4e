// The TCP connection beside the queue pairs of a path: it carried hello and welcome, and now
// carries terms, the receiver's state, and the end of the comm. Its own end says that the peer
// process is gone. No call blocks.
#pragma once

#include <memory>
#include <optional>

#include "host/bytes.h"
#include "host/network.h"
#include "host/wire.h"

namespace fabric::verbs {

class SideChannel {
 public:
  SideChannel(std::unique_ptr<host::Connection> connection, std::uint64_t comm)
      : connection_(std::move(connection)), comm_(comm) {}

  [[nodiscard]] std::uint64_t comm() const { return comm_; }
  // Append frames here, then flush().
  host::Bytes& out() { return out_; }
  // Sends what it takes. False: the connection is over.
  bool flush();
  [[nodiscard]] bool unsent() const { return !out_.empty(); }

  // Hands each whole frame of the comm to `take(header, body)`, which returns whether it makes
  // sense. False: the connection is over, or what came was no frame of ours.
  template <typename F>
  bool read(F&& take) {
    const bool open = fill();
    std::size_t at = 0;
    bool sane = true;
    while (sane && in_.size() - at >= host::kFrameHeaderSize) {
      const std::span<const std::byte> rest(in_.data() + at, in_.size() - at);
      const auto header = host::decode_frame_header(rest);
      if (!header || header->comm != comm_ || header->length > host::kMaxControlFrame) {
        sane = false;
      } else if (rest.size() < host::kFrameHeaderSize + header->length) {
        break;
      } else {
        sane = take(*header, rest.subspan(host::kFrameHeaderSize, header->length));
        at += host::kFrameHeaderSize + header->length;
      }
    }
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(at));
    return open && sane;
  }

  [[nodiscard]] int descriptor() const { return connection_->descriptor(); }
  std::optional<core::PathSample> sample() { return connection_->sample(); }
  void discard() { connection_->discard(); }

 private:
  bool fill();

  std::unique_ptr<host::Connection> connection_;
  const std::uint64_t comm_;
  host::Bytes in_;
  host::Bytes out_;
};

}  // namespace fabric::verbs
