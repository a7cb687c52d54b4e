// A Receiver without its control thread, and what its peer writes. doctest's REQUIRE is used
// inside.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "host/monotonic.h"
#include "host/receiver.h"
#include "tcp/link_in.h"
#include "tests/loopback_pair.h"

namespace fabric::host {

inline constexpr core::PathIndex kPrimary = core::path_index(0, 0);
inline constexpr std::uint64_t kId = 7;
inline constexpr core::PathIndex kOther = core::path_index(1, 0);
inline constexpr std::uint32_t kChunk = 128 * 1024;

struct One {
  Context context;
  std::unique_ptr<Receiver> receiver;
  Fd peer;

  explicit One(std::uint32_t chunk = kChunk) {
    context.rails.push_back({});
    context.wake_control = [] {};
    receiver = std::make_unique<Receiver>(context, kId, kPrimary, chunk, "peer");
    PeerFacts facts;
    facts.version = kWireVersion;
    receiver->tick(monotonic_ns(), facts, true);
    peer = connect(kPrimary);
  }
  Fd connect(core::PathIndex path) const {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
    const LinkSetup setup{kId, path, 1, 0, receiver->chunk_size()};
    const auto make = [&] {
      return std::make_unique<tcp::TcpLinkIn>(Fd(pair[0]), setup, kWireVersion);
    };
    REQUIRE_FALSE(receiver->attach(path, 1, make, kWireVersion));
    return Fd(pair[1]);
  }
  void says(std::span<const std::byte> bytes) const {
    REQUIRE(::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void sends(core::GroupId group, std::uint8_t slot, const std::vector<std::byte>& bytes,
             bool eager = false) const {
    core::ChunkHeader header;
    header.group = group;
    header.slot = slot;
    header.message_size = bytes.size();
    header.length = static_cast<std::uint32_t>(bytes.size());
    header.eager = eager;
    says(encode_chunk(kId, header));
    says(bytes);
  }
  void closes() {
    Bytes frame;
    append_frame(frame, FrameType::close, kId);
    says(frame);
    peer.reset();
  }
  bool post(std::span<const ReceiveSlot> slots, core::GroupId& group) const {
    bool taken = false;
    return receiver->post(slots, taken, group) == Result::success && taken;
  }
  Result test(core::GroupId group, bool& done) const {
    done = false;
    return receiver->test(group, 1, done, nullptr);
  }
};

inline constexpr std::uint32_t kSmallChunk = 4096;

// What goes over one connection: chunks of messages that were posted.
struct Stream {
  Fd fd;
  std::vector<std::byte> bytes;
  std::size_t at = 0;

  void chunk(core::GroupId group, std::uint8_t slot, const std::vector<std::byte>& message,
             std::size_t number, std::uint8_t follow = 0) {
    core::ChunkHeader header;
    header.group = group;
    header.slot = slot;
    header.message_size = message.size();
    header.offset = number * kSmallChunk;
    header.length = static_cast<std::uint32_t>(
        std::min<std::size_t>(kSmallChunk, message.size() - header.offset));
    header.follow = follow;
    const auto head = encode_chunk(kId, header);
    bytes.insert(bytes.end(), head.begin(), head.end());
    const auto from = message.begin() + static_cast<std::ptrdiff_t>(header.offset);
    bytes.insert(bytes.end(), from, from + header.length);
  }
  // As much as the kernel takes of so many bytes.
  void write(std::size_t most) {
    const std::size_t size = std::min(most, bytes.size() - at);
    const ssize_t sent = ::send(fd.get(), bytes.data() + at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    at += sent > 0 ? static_cast<std::size_t>(sent) : 0;
  }
};

}  // namespace fabric::host
