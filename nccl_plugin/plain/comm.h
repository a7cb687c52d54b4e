// One TCP connection that carries messages in order. A message is its size and tag in 16 bytes and
// its payload. It lands in the first slot with its tag, of the receives in their order. One that
// comes before any such slot was posted waits: in the socket while nothing is posted, else in
// memory of its own, since the messages behind it may be what the posted receives wait for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <span>
#include <vector>

#include "abi/tables.h"

namespace fabric::plain {

using abi::Status;

inline constexpr Status kOk = 0;
inline constexpr Status kSystem = 2;
inline constexpr Status kInvalid = 4;
inline constexpr Status kRemote = 6;

inline constexpr std::size_t kMaxRequests = 32;  // per comm; so many times kMaxGroup sends
inline constexpr std::size_t kMaxGroup = 8;      // slots of one receive

void log_to(abi::LogFunction log);
// Logs what went wrong; `error` is an errno, 0: the peer closed. Returns `status`.
Status fail(Status status, const char* what, int error);

// As on the wire.
struct Header {
  std::uint64_t size;
  std::int64_t tag;
};

struct Slot {
  std::byte* data;
  std::size_t room;
  int tag;
  std::size_t size = 0;  // of the message
  bool assigned = false;
  bool filled = false;
};

struct Comm;

struct Request {
  Comm* comm = nullptr;
  std::array<Slot, kMaxGroup> slots{};
  std::size_t count = 0;
  bool done = false;
};

// A message that came before its receive.
struct Early {
  int tag;
  std::vector<std::byte> data;
};

struct Comm {
  int fd = -1;
  bool sends = false;
  Status failed = kOk;
  std::list<Request> requests;  // until their test has said done
  std::deque<Request*> queue;   // not done, in order
  // The message that is on its way through the socket.
  Header header{};
  std::size_t moved = 0;  // header and payload bytes so far
  Slot* slot = nullptr;   // where it lands; null: early
  Request* owner = nullptr;
  std::vector<std::byte> early_data;
  bool placed = false;
  std::deque<Early> early;

  explicit Comm(int fd_, bool sends_) : fd(fd_), sends(sends_) {}
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
};

// Moves what the socket takes or has now.
Status progress(Comm* comm);
// Puts messages, or room for them, into the queue; *out stays null when that is full.
Status post(Comm* comm, std::span<const Slot> slots, void** out);
// Ends a request that is done.
void release(Request* request);

}  // namespace fabric::plain
