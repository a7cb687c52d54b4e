// One TCP connection that carries messages in order. A message is its size in 8 bytes and its
// payload; messages match receives in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "abi/tables.h"

namespace fabric::plain {

using abi::Status;

inline constexpr Status kOk = 0;
inline constexpr Status kSystem = 2;
inline constexpr Status kInvalid = 4;
inline constexpr Status kRemote = 6;

void log_to(abi::LogFunction log);
// Logs what went wrong; `error` is an errno, 0: the peer closed. Returns `status`.
Status fail(Status status, const char* what, int error);

struct Comm;

struct Request {
  Comm* comm;
  std::byte* data;
  std::size_t size;      // send: of the message; receive: room, then what came
  std::uint64_t header;  // the size as on the wire
  std::size_t moved;     // header and payload bytes so far
  bool done;
};

struct Comm {
  int fd = -1;
  bool sends = false;
  Status failed = kOk;
  std::deque<Request*> queue;  // not done, in order
  explicit Comm(int fd_, bool sends_) : fd(fd_), sends(sends_) {}
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
};

// Moves what the socket takes or has now.
Status progress(Comm* comm);
// Puts a message, or room for one, into the queue; *out stays null when that is full.
Status post(Comm* comm, void* data, std::size_t size, void** out);

}  // namespace fabric::plain
