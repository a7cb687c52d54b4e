// A peer process played by bare sockets that hold the secret: it opens connections as a plugin
// does, and says on them what it likes. doctest's REQUIRE is used inside.
#pragma once

#include <sys/time.h>

#include "host/control.h"
#include "host/handshake.h"
#include "tests/loopback_pair.h"

namespace fabric::host::loopback {

// Whoever says nothing for so long says nothing.
inline void be_patient(int fd) {
  const timeval timeout{5, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}

inline Hello hello_for(const Handle& handle, HelloKind kind, std::uint64_t initiator) {
  Hello made;
  made.kind = kind;
  made.rails = 1;
  made.listen_id = handle.listen_id;
  made.chunk_size = 32 * 1024;
  made.initiator = initiator;
  made.acceptor = handle.incarnation;
  made.nonce = random_number();
  return made;
}

// Sends all of it. False: the other end has hung up.
inline bool say(int fd, std::span<const std::byte> bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Says hello, and proves it when asked; the welcome, or nothing: hung up on. `said`, if any, gets
// all the bytes that were sent, as one who listens would have them.
inline std::optional<Welcome> try_to_greet(int fd, const Hello& hello, const Secret& secret,
                                           Bytes* said = nullptr) {
  be_patient(fd);
  DialerHandshake handshake(hello, secret);
  const auto send = [&](std::span<const std::byte> bytes) {
    if (said != nullptr) {
      said->insert(said->end(), bytes.begin(), bytes.end());
    }
    return say(fd, bytes);
  };
  if (!send(handshake.hello())) {
    return std::nullopt;
  }
  auto next = DialerHandshake::Next::more;
  while (next != DialerHandshake::Next::done) {
    const std::span<std::byte> room = handshake.room();
    const ssize_t got = ::recv(fd, room.data(), room.size(), 0);
    next = got <= 0 ? DialerHandshake::Next::failed
                    : handshake.received(static_cast<std::size_t>(got));
    const bool over = next == DialerHandshake::Next::failed ||
                      (next == DialerHandshake::Next::prove && !send(handshake.proof()));
    if (over) {
      return std::nullopt;
    }
  }
  return handshake.welcome();
}

inline Welcome greet(int fd, const Hello& hello, const Secret& secret, Bytes* said = nullptr) {
  const auto welcome = try_to_greet(fd, hello, secret, said);
  REQUIRE(welcome);
  return *welcome;
}

// The next frame of this type that comes, whatever else does; 0: none in time. Else its comm.
inline std::uint64_t next_of(int fd, FrameType type) {
  const auto until = Clock::now() + milliseconds(5000);
  while (Clock::now() < until) {
    std::array<std::byte, kFrameHeaderSize> bytes{};
    if (::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size())) {
      return 0;
    }
    const auto header = decode_frame_header(bytes);
    REQUIRE(header);
    std::vector<std::byte> body(header->length);
    if (!body.empty() &&
        ::recv(fd, body.data(), body.size(), MSG_WAITALL) != static_cast<ssize_t>(body.size())) {
      return 0;
    }
    if (header->type == type) {
      return header->comm;
    }
  }
  return 0;
}

}  // namespace fabric::host::loopback
