// One connection of one path of a comm. Sender and Receiver are the path logic: they choose paths,
// call one dead, run the fence. A link moves the bytes of its path, and knows no other path.
//
// A link belongs to one comm and is called by whoever is inside that comm, one thread at a time. No
// call blocks. Sizes are bytes, times are nanoseconds.
//
// A link hands what arrives straight to the core that it is given, and reports the rest in a
// progress struct, which it adds to and never clears. It never calls back into the path logic.
//
// The terms mean the same for a stream and for one-sided writes:
//
// | | TCP | one-sided writes |
// |---|---|---|
// | put | chunk frames on the socket | WRITE and WRITE_WITH_IMM to where the CTS points |
// | released | the kernel has copied the bytes | the send completion came |
// | CTS and acknowledgements | frames on the same socket | entries of the CTS ring |
// | sample | TCP_INFO | oldest work request, and completions |
// | quiesce | close(), at once | false until the QP is in ERR and flushed |
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/ack_timeout.h"
#include "core/receive_core.h"
#include "core/send_core.h"
#include "pages/stats_page.h"

namespace fabric::host {

// What a transport holds unsent before it takes no more. Room for half of it wakes the caller.
inline constexpr std::size_t kUnsentLimit = std::size_t{256} * 1024;  // little to send again

// What the calls of a LinkOut did.
struct SendProgress {
  std::uint64_t bytes = 0;                // payload that the transport has taken
  std::uint64_t retransmitted_bytes = 0;  // of them: of chunks that a failed path had
  std::uint64_t wire_bytes = 0;     // as PathSample::acknowledged_bytes counts: headers, validation
  std::uint32_t released = 0;       // chunks, the oldest first, that the transport reads no more
  std::uint32_t retransmitted = 0;  // of them
  bool carried = false;             // a part of a chunk went out, if only of its header
  bool answered = false;            // something came back
  bool acknowledged = false;        // and a message was acknowledged by it
  bool validated = false;           // the receiver has all of the path validation
  bool peer_closed = false;         // the receiver closed the comm in good order
  std::optional<pages::PathDownReason> dead;  // the connection is over, and why
};

// The sending end.
class LinkOut {
 public:
  LinkOut() = default;
  LinkOut(const LinkOut&) = delete;
  LinkOut& operator=(const LinkOut&) = delete;
  // After quiesce(), or before it carried anything of a caller: its device may not be done yet.
  virtual ~LinkOut() = default;

  // One-sided only once chunks can go: until then room() is 0.
  [[nodiscard]] virtual core::PathKind kind() const { return core::PathKind::stream; }

  // It is one-sided, or will be: the word on RDMA is the word on it.
  [[nodiscard]] virtual bool over_rdma() const { return kind() == core::PathKind::one_sided; }
  // Its transport can read such memory.
  [[nodiscard]] virtual bool knows(core::Region /*region*/) const { return true; }

  // How many chunks put() takes now. 0: what was put, or a validation, has to go on first.
  [[nodiscard]] virtual std::size_t room() const = 0;
  // Sends chunks, room() at most, as far as the transport takes them. Their bytes stay readable
  // until they were `released`, or quiesce().
  virtual void put(std::span<const core::Outgoing> chunks, SendProgress& progress) = 0;
  // Goes on with what put() or start_validation() began.
  virtual void advance(SendProgress& progress) = 0;
  // Takes what came back: CTS messages, acknowledgements and states go to `core`.
  virtual void poll(core::SendCore& core, SendProgress& progress) = 0;
  // Has a path that came back prove itself: so much data that it would fill the path, and that
  // means nothing. `validated` follows. room() has to be above 0.
  virtual void start_validation() = 0;
  // It carries its path from now on.
  virtual void begin_service() {}
  // It ends before that, through no fault of its own.
  virtual void abandon() {}

  // The control thread is to poll as well: something comes of which the caller may not ask.
  [[nodiscard]] virtual bool wants_poll() const { return false; }
  // The transport's own dead-path detector, right after a poll(). Nothing: it has none, and
  // sample() is judged.
  virtual std::optional<core::Liveness> judge(std::int64_t /*now*/) { return std::nullopt; }
  // For the dead-path detector. Nothing: the transport cannot tell. Also mends what only holds the
  // connection up (TCP: a packet that a full queue of this host dropped).
  virtual std::optional<core::PathSample> sample() = 0;
  // Bytes that the transport holds and the far end's transport has not confirmed.
  [[nodiscard]] virtual std::size_t backlog() const = 0;
  // How much the transport may hold that it has not sent, before room() is 0; kUnsentLimit at
  // first.
  virtual void limit_unsent(std::size_t bytes) = 0;

  // Readable when poll() finds something, writable when there is room; -1: no such descriptor.
  [[nodiscard]] virtual int descriptor() const = 0;
  // Tells the receiver that the comm is closed, if the connection takes that at once.
  virtual void close() = 0;
  // What the transport still holds is to be lost when the link quiesces: the peer must not get it.
  virtual void discard() = 0;
  // Ends the connection. True: the transport reads no buffer any more, on behalf of this link.
  // False: not yet; ask again. No other call follows the first.
  virtual bool quiesce() = 0;
  // What more there is to say of a death than its reason; "": nothing.
  [[nodiscard]] virtual std::string why() const { return {}; }
};

// What the calls of a LinkIn did.
struct ReceiveProgress {
  std::uint64_t bytes = 0;  // payload that was placed
  std::uint64_t duplicate_bytes = 0;
  std::uint32_t chunks = 0;    // whole, without duplicates
  std::uint32_t messages = 0;  // whole by these chunks
  bool small = false;          // with `messages`: the last of them was small
  bool carried = false;        // a chunk began
  bool validated = false;      // all of a path validation came; flush() answers it if need be
  bool more = false;           // the transport may hold more: poll again
  bool peer_closed = false;    // the sender closed the comm in good order
  bool wrote = false;          // answers went out, which the transport has not confirmed
  std::optional<pages::PathDownReason> dead;  // the connection is over, and why
};

// How the comm's callers look for what comes in.
struct ReceiveHints {
  bool alone = false;   // no other path of this comm carries now
  bool sleeps = false;  // the callers block until something comes, and do not poll
};

// The receiving end.
class LinkIn {
 public:
  LinkIn() = default;
  LinkIn(const LinkIn&) = delete;
  LinkIn& operator=(const LinkIn&) = delete;
  // After quiesce(), or before anything of a caller could land by it.
  virtual ~LinkIn() = default;

  [[nodiscard]] virtual core::PathKind kind() const { return core::PathKind::stream; }

  // Before it is the link of its path: goes on connecting, and takes nothing that carries payload.
  virtual void prepare(ReceiveProgress& /*progress*/) {}
  // Nothing more is to be done for that.
  [[nodiscard]] virtual bool prepared() const { return true; }
  // Takes what came in, to the buffers that `core` names, up to a budget.
  virtual void poll(core::ReceiveCore& core, const ReceiveHints& hints,
                    ReceiveProgress& progress) = 0;
  // Right after a poll() that did not end the link: the transport may hold more for another one.
  // A link that always says so is polled for ever, for whoever retires it takes all that there is.
  [[nodiscard]] virtual bool pending() const = 0;
  // Nothing more comes: the sender closed the comm, or the connection is over.
  [[nodiscard]] virtual bool ended() const = 0;
  // A chunk is coming in.
  [[nodiscard]] virtual bool in_chunk() const = 0;

  // Sends the CTS and acknowledgements that `core` has, as many as the transport takes. What it
  // does not take stays in `core`.
  virtual void answer(core::ReceiveCore& core, ReceiveProgress& progress) = 0;
  // Sends all that the receiver knows. False: this transport has no room for that; the control
  // links are to carry it.
  virtual bool send_state(const core::ReceiverState& state, ReceiveProgress& progress) = 0;
  // Sends answers that the transport did not take before.
  virtual void flush(ReceiveProgress& progress) = 0;
  // There are such answers.
  [[nodiscard]] virtual bool unsent() const = 0;
  // Has the transport confirm what came, at a moment in which nothing comes in.
  virtual void acknowledge() = 0;

  // As LinkOut's.
  [[nodiscard]] virtual bool wants_poll() const { return false; }
  virtual std::optional<core::Liveness> judge(std::int64_t /*now*/) { return std::nullopt; }
  // For the dead-path detector, as LinkOut's.
  virtual std::optional<core::PathSample> sample() = 0;
  [[nodiscard]] virtual std::size_t backlog() const = 0;
  // Once in each of the control thread's ticks: callers that sleep until so much has come are woken
  // for less where nothing moves.
  virtual void tick() = 0;

  // Readable when poll() finds something; -1: there is no such descriptor.
  [[nodiscard]] virtual int descriptor() const = 0;
  // Tells the sender all that the receiver knows, and that the comm is closed, if the connection
  // takes that at once.
  virtual void close(const core::ReceiverState& last) = 0;
  // As LinkOut's.
  virtual void discard() = 0;
  // Ends the connection. True: no byte lands any more on behalf of this link, and poll() has handed
  // on all that had landed whole. Only then may a fence be answered. False: not yet; poll() and ask
  // again.
  virtual bool quiesce() = 0;
  [[nodiscard]] virtual std::string why() const { return {}; }
};

}  // namespace fabric::host
