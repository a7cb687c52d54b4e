// The bytes that come in on a Receiver's connections.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "host/receiver.h"

namespace fabric::host {

namespace {

constexpr std::size_t kDrainBudget = 8U << 20U;  // bytes of one path before the others get a turn
constexpr unsigned kAwake = 64;                  // looks without a sleep: the callers poll
constexpr std::size_t kLowWaterMost = std::size_t{512} * 1024;
constexpr std::size_t kSpill = std::size_t{16} * 1024;

// Where duplicates go, and what is behind a header or a small chunk: so that small messages come
// many at a time, and one comes with its header in one read.
std::span<std::byte> scratch() {
  thread_local std::array<std::byte, std::size_t{64} * 1024> bytes;
  return bytes;
}

}  // namespace

// Where one read puts what comes: into the chunk under way and the header behind it, then
// - where the message goes on in order, into its next chunks, each with its header: a read that
//   ends at each chunk leaves bytes with the kernel, which then has the sender's core acknowledge
//   them (__tcp_ack_snd_check in net/ipv4/tcp_input.c: the window advances), a tenth of the speed;
// - else aside, where little is expected.
struct Receiver::Scatter {
  static constexpr std::size_t kRun = 15;  // chunks in advance
  std::array<iovec, 2 + 2 * kRun> parts;   // as far as `used`
  std::size_t used = 0;
  std::size_t wanted = 0;
  std::array<std::array<std::byte, kChunkHeaderSize>, kRun> headers;  // written by the kernel

  void add(std::byte* data, std::size_t size) {
    parts[used++] = {data, size};
    wanted += size;
  }

  // `got` bytes from part `at` on, which went where they do not belong: copied, for where they do
  // may be where others of them are now.
  [[nodiscard]] std::vector<std::byte> rest(std::size_t at, std::size_t got) const {
    std::vector<std::byte> out;
    out.reserve(got);
    for (; out.size() < got; ++at) {
      const auto* from = static_cast<const std::byte*>(parts[at].iov_base);
      out.insert(out.end(), from, from + std::min(got - out.size(), parts[at].iov_len));
    }
    return out;
  }
};

// Where the next bytes of a connection are to go.
void Receiver::aim(core::PathIndex index, Scatter& into) {
  Path& path = paths_[index];
  const std::span<std::byte> aside = scratch();
  if (path.in_payload) {
    const std::size_t length = path.duplicate ? std::min(path.left, aside.size()) : path.left;
    into.add(path.duplicate ? aside.data() : path.data, length);
    if (length != path.left) {
      return;
    }
  }
  // The next header comes with the tail of this chunk.
  into.add(path.header.data() + path.header_at, path.header.size() - path.header_at);
  if (!path.in_payload) {
    into.add(aside.data(), kSpill);
    return;
  }
  if (path.duplicate) {
    return;
  }
  if (path.in_order && (busy_ & live_) == core::bit(index)) {
    std::byte* data = path.data + path.left;
    std::size_t behind = path.behind;
    const std::size_t chunks = core_.missing_behind(index, Scatter::kRun);
    for (std::size_t i = 0; i < chunks; ++i) {
      const std::size_t length = std::min<std::size_t>(chunk_size_, behind);
      into.add(data, length);
      into.add(into.headers[i].data(), into.headers[i].size());
      data += length;
      behind -= length;
    }
    if (chunks != 0) {
      return;
    }
  }
  if (path.left <= core::kCopyLimit) {
    into.add(aside.data(), kSpill);
  }
}

// Takes what one read brought. False: not ours.
bool Receiver::take(core::PathIndex index, const Scatter& into, std::size_t got) {
  Path& path = paths_[index];
  std::size_t at = 0;
  const auto next = [&] { return std::min(got, into.parts[at].iov_len); };
  if (path.in_payload) {
    const std::size_t part = next();
    arrived(index, part);
    got -= part;
    ++at;
  }
  while (got != 0) {
    const std::size_t part = next();
    std::byte* const to = path.header.data() + path.header_at;
    if (into.parts[at].iov_base != to) {
      std::memcpy(to, into.parts[at].iov_base, part);
    }
    path.header_at += part;
    got -= part;
    ++at;
    if (!take_header(index)) {
      return false;
    }
    if (path.ended || got == 0) {
      return true;
    }
    const iovec& body = into.parts[at];
    if (at + 1 == into.used) {
      return feed(index, {static_cast<const std::byte*>(body.iov_base), got});  // it was aside
    }
    const bool foreseen = path.in_payload && !path.duplicate && path.data == body.iov_base &&
                          path.left == body.iov_len;
    if (!foreseen) {
      return feed(index, into.rest(at, got));
    }
    const std::size_t payload = next();
    arrived(index, payload);
    got -= payload;
    ++at;
  }
  return true;
}

// Reads what the kernel holds, up to a budget. False: the connection is over (or speaks nonsense).
bool Receiver::drain(core::PathIndex index) {
  Path& path = paths_[index];
  if (path.ended) {
    return true;
  }
  std::size_t budget = kDrainBudget;
  while (true) {
    Scatter into;
    aim(index, into);
    msghdr message{};
    message.msg_iov = into.parts.data();
    message.msg_iovlen = into.used;
    const ssize_t count = ::recvmsg(path.fd.get(), &message, MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      path.ended = errno != EAGAIN && errno != EWOULDBLOCK;
      if (!path.ended) {
        lower_water(index);
      }
      return !path.ended;
    }
    if (count == 0) {
      path.ended = true;
      return false;
    }
    const auto got = static_cast<std::size_t>(count);
    budget -= std::min(budget, got);
    if (!take(index, into, got)) {
      path.ended = true;
      return false;
    }
    if (path.ended) {
      return true;
    }
    if (got < into.wanted) {
      lower_water(index);
      return true;
    }
    if (budget == 0) {
      context_.waits.signal();  // there is more: nobody may block on it
      return true;
    }
  }
}

// What the rest of a message brings is known, so the caller need not see every packet of it; when
// it is whole, it is told at once. Only while no other path has a part in it. Should the rest come
// another way after all, the next tick wakes.
void Receiver::lower_water(core::PathIndex index) {
  Path& path = paths_[index];
  const std::uint64_t sleeps = context_.waits.sleeps();
  awake_ = std::exchange(seen_sleeps_, sleeps) == sleeps ? awake_ + 1 : 0;
  std::size_t mark = 1;
  if (awake_ < kAwake && path.in_payload && !path.duplicate &&
      (busy_ & live_) == core::bit(index)) {
    const std::size_t headers = (path.behind + chunk_size_ - 1) / chunk_size_ * kChunkHeaderSize;
    mark = std::min(path.left + path.behind + headers, kLowWaterMost);
  }
  if (mark != path.low_water) {
    path.low_water = mark;
    set_low_water(path.fd.get(), mark);
  }
}

// What was read aside. False: not ours.
bool Receiver::feed(core::PathIndex index, std::span<const std::byte> bytes) {
  Path& path = paths_[index];
  while (!bytes.empty() && !path.ended) {
    if (path.in_payload) {
      const std::size_t part = std::min(path.left, bytes.size());
      if (!path.duplicate) {
        std::memcpy(path.data, bytes.data(), part);
      }
      arrived(index, part);
      bytes = bytes.subspan(part);
      continue;
    }
    const std::size_t part = std::min(path.header.size() - path.header_at, bytes.size());
    std::memcpy(path.header.data() + path.header_at, bytes.data(), part);
    path.header_at += part;
    bytes = bytes.subspan(part);
    if (!take_header(index)) {
      return false;
    }
  }
  return true;
}

// So many bytes of the present chunk are where they belong.
void Receiver::arrived(core::PathIndex index, std::size_t payload) {
  Path& path = paths_[index];
  count_payload(index, payload);
  path.left -= payload;
  path.data += path.duplicate ? 0 : payload;
  if (path.left == 0) {
    finish_chunk(index);
    path.header_at = 0;
  }
}

// Begins the chunk whose header is complete. False: not ours.
bool Receiver::take_header(core::PathIndex index) {
  Path& path = paths_[index];
  if (path.header_at < kFrameHeaderSize) {
    return true;
  }
  const auto frame = decode_frame_header({path.header.data(), kFrameHeaderSize});
  if (!frame || frame->comm != id_ || !speaks(facts_.version, frame->type)) {
    return false;
  }
  if (frame->type == FrameType::close) {
    path.ended = true;
    note_close();
    return true;
  }
  if (path.header_at < kChunkHeaderSize) {
    return frame->type == FrameType::chunk || frame->type == FrameType::ahead ||
           frame->type == FrameType::trial;
  }
  if (frame->type == FrameType::trial) {
    path.in_payload = true;
    path.trial = true;
    path.duplicate = true;
    path.left = frame->length - (kChunkHeaderSize - kFrameHeaderSize);
    path.header_at = 0;
    return path.left == kTrialSize;
  }
  const auto header = decode_chunk(path.header);
  if (!header) {
    return false;
  }
  const core::Placement placement = core_.begin(index, path.epoch, *header);
  if (placement.verdict == core::Verdict::refuse || placement.verdict == core::Verdict::stale) {
    return false;
  }
  path.in_payload = true;
  path.trial = false;
  path.awaits_trial = false;  // what comes first is all that it would be
  path.duplicate = placement.verdict == core::Verdict::duplicate;
  path.data = placement.data;
  path.left = header->length;
  path.behind = header->message_size - header->offset - header->length;
  const bool goes_on = header->group == path.group && header->slot == path.slot &&
                       header->offset == path.next_offset;
  path.in_order = goes_on || header->offset == 0;
  path.group = header->group;
  path.slot = header->slot;
  path.next_offset = header->offset + header->length;
  path.header_at = 0;
  busy_ |= core::bit(index);
  carried_ |= core::bit(index);
  moved_ = true;
  context_.stir();
  last_payload_ = index;
  if (path.left == 0) {
    finish_chunk(index);
  }
  return true;
}

void Receiver::count_payload(core::PathIndex index, std::size_t payload) {
  if (paths_[index].trial) {
    return;
  }
  RailCounters& rail = context_.stats.rails[core::receiver_rail(index)];
  if (paths_[index].duplicate) {
    add(rail.duplicate_bytes, payload);
  } else {
    add(rail.rx_bytes, payload);
    tally_.bytes.add(payload);
  }
}

void Receiver::finish_chunk(core::PathIndex index) {
  Path& path = paths_[index];
  path.in_payload = false;
  if (path.trial) {
    path.trial = false;
    path.awaits_trial = false;
    append_frame(path.out, FrameType::trial_done, id_);
    return;  // the control thread's next tick sends it
  }
  if (core_.finish(index)) {
    heard_ = true;
    path.small = path.next_offset <= core::kCopyLimit;
    tally_.messages[core::receiver_rail(index)].add(1);
  }
  if (!paths_[index].duplicate) {
    add(context_.stats.rails[core::receiver_rail(index)].rx_chunks, 1);
  }
}

}  // namespace fabric::host
