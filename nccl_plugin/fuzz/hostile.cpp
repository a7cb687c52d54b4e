#include "fuzz/hostile.h"
#include "fuzz/hostile_terms.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/receive_core.h"
#include "core/send_core.h"
#include "host/handle.h"
#include "host/handshake.h"
#include "host/steer_reader.h"
#include "host/wire.h"

namespace fabric::hostile {

namespace {

void expect(bool holds, const char* what) {
  if (!holds) {
    throw std::logic_error(what);
  }
}

// As many as fit; the rest is zero.
template <std::size_t N>
std::array<std::byte, N> fixed(View bytes) {
  std::array<std::byte, N> out{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), N), out.begin());
  return out;
}

// With a right tag the fields behind it are reached.
template <std::size_t N>
void sign(std::array<std::byte, N>& bytes) {
  const std::uint64_t tag = siphash(kSecret, View(bytes).first(N - sizeof(std::uint64_t)));
  std::memcpy(bytes.data() + N - sizeof tag, &tag, sizeof tag);
}

void hello(View bytes) {
  HelloBytes raw = fixed<kHelloSize>(bytes);
  claim_of(raw);
  decode_hello(raw, kSecret);
  sign(raw);
  if (const auto read = decode_hello(raw, kSecret)) {
    const HelloBytes written = encode(*read, kSecret);
    const auto again = decode_hello(written, kSecret);
    expect(again && encode(*again, kSecret) == written, "a hello does not survive");
  }
}

// What comes on a connection: a hello, signed, and what follows it. Only the one proof of this
// challenge may get it through.
void opening(View bytes) {
  const ChallengeNonce nonce{1, 2};
  const HelloBytes raw = [&] {
    HelloBytes all = fixed<kHelloSize>(bytes);
    sign(all);
    return all;
  }();
  const View rest = bytes.subspan(std::min(bytes.size(), kHelloSize));
  const ProofBytes proof = proof_of(raw, nonce, kSecret);
  using Next = AcceptorHandshake::Next;
  AcceptorHandshake acceptor;
  Next next = Next::more;
  const auto take = [&](View part) {
    while (!part.empty() && (next == Next::more || next == Next::challenge)) {
      const std::span<std::byte> room = acceptor.room();
      const std::size_t count = std::min({room.size(), part.size(), std::size_t{100}});
      std::copy_n(part.begin(), count, room.begin());
      part = part.subspan(count);
      next = acceptor.received(
          count, kWireVersion, [](const HelloClaim&) { return std::optional(kSecret); },
          [&nonce] { return nonce; });
    }
  };
  take(raw);
  if (next == Next::challenge) {
    expect(decode_challenge(acceptor.challenge(), kSecret).has_value(), "a challenge is not read");
    take(rest);
    const bool proves =
        rest.size() >= kProofSize && std::equal(proof.begin(), proof.end(), rest.begin());
    expect((next == Next::done) == proves, "a hello is believed without its proof");
  } else if (next == Next::done) {
    expect(common_version(acceptor.hello().version_min, acceptor.hello().version_max,
                          kWireVersion) < kWireVersionChallenge,
           "a hello is not challenged");
  }
}

// What a dialler gets back: with right tags, and as it is.
void answers(View bytes) {
  Hello said;
  said.nonce = 7;
  said.rails = 1;
  for (const bool is_signed : {false, true}) {
    DialerHandshake dialer(said, kSecret);
    ChallengeBytes raw = fixed<kChallengeSize>(bytes);
    if (is_signed) {
      sign(raw);
      if (const auto read = decode_challenge(raw, kSecret)) {
        const ChallengeBytes written = encode(*read, kSecret);
        const auto again = decode_challenge(written, kSecret);
        expect(again && encode(*again, kSecret) == written, "a challenge does not survive");
      }
    }
    std::vector<std::byte> all(raw.begin(), raw.end());
    const View rest = bytes.subspan(std::min(bytes.size(), kChallengeSize));
    all.insert(all.end(), rest.begin(), rest.end());
    using Next = DialerHandshake::Next;
    Next next = Next::more;
    for (View part(all); !part.empty() && (next == Next::more || next == Next::prove);) {
      const std::span<std::byte> room = dialer.room();
      const std::size_t count = std::min(room.size(), part.size());
      std::copy_n(part.begin(), count, room.begin());
      part = part.subspan(count);
      next = dialer.received(count);
      expect(next != Next::prove || is_signed || decode_challenge(raw, kSecret),
             "a challenge of a stranger is answered");
    }
  }
}

void welcome(View bytes) {
  WelcomeBytes raw = fixed<kWelcomeSize>(bytes);
  decode_welcome(raw, kSecret);
  sign(raw);
  if (const auto read = decode_welcome(raw, kSecret)) {
    const WelcomeBytes written = encode(*read, kSecret);
    const auto again = decode_welcome(written, kSecret);
    expect(again && encode(*again, kSecret) == written, "a welcome does not survive");
  }
}

void handle(View bytes) {
  if (const auto read = decode_handle(fixed<kHandleSize>(bytes))) {
    std::array<std::byte, kHandleSize> written{};
    encode(*read, written);
    const auto again = decode_handle(written);
    expect(again.has_value(), "a handle does not survive");
    expect(again->primary_rail == read->primary_rail && again->listen_id == read->listen_id &&
               again->secret == read->secret && again->wire_min == read->wire_min &&
               again->wire_max == read->wire_max &&
               again->listeners[read->primary_rail] == read->listeners[read->primary_rail],
           "a handle changes");
  }
}

std::uint32_t crc_step(std::uint32_t crc, View bytes) {
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1U) != 0 ? 0xedb88320U ^ (crc >> 1U) : crc >> 1U;
    }
  }
  return crc;
}

// The checksum over what the header says is used, where that lies inside the page.
void put_crc(std::span<std::byte> page) {
  pages::SteerHeader header{};
  std::memcpy(&header, page.data(), sizeof header);
  if (header.rail_count > pages::kSteerMaxRails || header.path_count > pages::kSteerMaxPaths) {
    return;
  }
  const std::size_t rails_end = pages::kSteerRailsAt + header.rail_count * sizeof(pages::SteerRail);
  std::uint32_t crc =
      crc_step(~0U, page.subspan(pages::kSteerCrcFrom, rails_end - pages::kSteerCrcFrom));
  crc = ~crc_step(crc,
                  page.subspan(pages::kSteerPathsAt, header.path_count * sizeof(pages::SteerPath)));
  std::memcpy(page.data() + offsetof(pages::SteerHeader, crc), &crc, sizeof crc);
}

void page(View bytes) {
  std::vector<std::byte> raw(bytes.begin(), bytes.end());
  SteerView view;
  parse_steer_page(raw, kNow, view);
  raw.resize(pages::kSteerPageSize);
  put_crc(raw);
  if (parse_steer_page(raw, kNow, view) != SteerVerdict::good) {
    return;
  }
  expect(view.rails.size() <= pages::kSteerMaxRails && view.paths.size() <= pages::kSteerMaxPaths,
         "more entries than a page has");
  for (const pages::SteerRail& rail : view.rails) {
    expect(std::memchr(rail.netdev, 0, sizeof rail.netdev) != nullptr, "a name without an end");
    expect(rail.weight <= pages::kWeightFull, "a weight above full");
    expect(view.rail(rail.netdev) != nullptr, "a rail that is not found");
  }
  for (const pages::SteerPath& path : view.paths) {
    expect(std::memchr(path.netdev, 0, sizeof path.netdev) != nullptr, "a name without an end");
    expect(path.weight <= pages::kWeightFull, "a weight above full");
  }
}

void bodies(View bytes) {
  decode_frame_header(bytes);
  decode_number(bytes);
  decode_acknowledge(bytes);
  if (const auto chunk = decode_chunk(bytes)) {
    expect(chunk->offset <= chunk->message_size &&
               chunk->length <= chunk->message_size - chunk->offset &&
               chunk->slot < core::kMaxSlots,
           "a chunk outside of its message");
  }
  const auto survives = [](const auto& read, const auto& write, const auto& decode,
                           const char* what) {
    if (!read) {
      return;
    }
    Bytes first;
    write(first, *read);
    const auto again = decode(body_of(first));
    expect(again.has_value(), what);
    Bytes second;
    write(second, *again);
    expect(first == second, what);
  };
  survives(
      decode_cts(bytes), [](Bytes& out, const core::Cts& g) { append_cts(out, 1, g); }, decode_cts,
      "a CTS does not survive");
  survives(
      decode_state(bytes), [](Bytes& out, const StateFrame& s) { append_state(out, 1, s); },
      decode_state, "a state does not survive");
  survives(
      decode_rails(bytes), [](Bytes& out, const RailsReport& r) { append_rails(out, r); },
      decode_rails, "a report of rails does not survive");
  survives(
      decode_addresses(bytes), [](Bytes& out, const AddressReport& r) { append_addresses(out, r); },
      decode_addresses, "addresses do not survive");
  survives(
      decode_path(bytes),
      [](Bytes& out, const PathEpoch& p) { append_path(out, FrameType::fence, 1, p); }, decode_path,
      "a path does not survive");
}

// Do both ends let small messages go before their CTS?
enum class Mode : std::uint8_t { cts_first, eager };

// A comm of each direction that a peer talks to: whatever it says, chunks are cut from the sent
// buffers and placed into the posted ones. These are of exactly the size, so that the address
// sanitizer sees each step beside them.
//
// With `eager`, what our own callers do comes in the stream as well, so that it may come before,
// between and after: a ping posts a receive, a pong a message, its count says which. And a chunk
// is still coming in while the other connection and the callers go on.
class Comms {
 public:
  explicit Comms(Mode mode) : mode_(mode) {
    sender_.allow_eager(mode == Mode::eager);
    receiver_.expect_eager(mode == Mode::eager);
    if (mode == Mode::cts_first) {
      for (const std::size_t size : kSizes) {
        send(size, kTag);
        receive(size, 1, kTag);
      }
    }
    for (const core::PathIndex path : kPaths) {
      receiver_.admit(path, sender_.dial(path));
    }
  }

  // The frames of a connection, or of a control link, one after the other.
  void feed(View stream) {
    std::size_t turn = 0;
    while (const auto header = decode_frame_header(stream)) {
      const core::PathIndex path = kPaths[turn++ % kPaths.size()];
      finish(path);
      if (header->type == FrameType::chunk || header->type == FrameType::eager) {
        const auto chunk = decode_chunk(stream);
        if (!chunk || !begin(path, *chunk)) {
          break;  // drops the connection
        }
        if (mode_ == Mode::cts_first) {
          finish(path);
        }
        stream = stream.subspan(kChunkHeaderSize);  // the payload is not in the stream
        continue;
      }
      stream = stream.subspan(kFrameHeaderSize);
      if (header->length > stream.size() || !frame(*header, stream.first(header->length))) {
        break;
      }
      stream = stream.subspan(header->length);
      transmit(path);
    }
    for (const core::PathIndex path : kPaths) {
      finish(path);
      transmit(path);
    }
    look();
  }

 private:
  static constexpr std::array<std::size_t, 4> kSizes{100, 3 * std::size_t{kChunk}, 10'000, 0};
  static constexpr std::array<core::PathIndex, 2> kPaths{core::path_index(0, 0),
                                                         core::path_index(1, 1)};
  // Around what may go eagerly: all that is copied and fits a chunk.
  static constexpr std::array<std::size_t, 8> kSmall{0,      1,          100,   4000,
                                                     kChunk, kChunk + 1, 8'192, 8'193};
  static constexpr std::size_t kMostCalls = 64;  // of each kind
  static constexpr std::int32_t kTag = 1;        // and the next one

  struct Posted {
    core::GroupId group = 0;
    std::vector<std::unique_ptr<std::byte[]>> rooms;
  };
  struct Arriving {
    std::byte* data = nullptr;
    std::size_t length = 0;
  };

  void send(std::size_t size, std::int32_t tag) {
    auto bytes = std::make_unique<std::byte[]>(size);
    std::fill_n(bytes.get(), size, std::byte{1});
    // What was copied is the caller's again: only the copy may go out.
    if (const auto sequence = sender_.post(bytes.get(), size, tag)) {
      expect(!sender_.done(*sequence) || size <= core::kCopyLimit, "done before it was sent");
    }
    sent_.push_back(std::move(bytes));
  }

  void receive(std::size_t size, std::size_t slots, std::int32_t tag) {
    Posted& posted = posted_.emplace_back();
    std::vector<core::Buffer> buffers(slots);
    for (core::Buffer& buffer : buffers) {
      buffer.data = posted.rooms.emplace_back(std::make_unique<std::byte[]>(size)).get();
      buffer.slot.size = size;
      buffer.slot.tag = tag++;
    }
    posted.group = receiver_.post(buffers);
    while (receiver_.next_done_below() || receiver_.next_cts() ||
           receiver_.next_acknowledgement()) {
    }
  }

  // What is whole holds what came, all of it, whichever way it came.
  void look() {
    for (const Posted& posted : posted_) {
      for (std::size_t slot = 0; receiver_.done(posted.group) && slot < posted.rooms.size();
           ++slot) {
        const std::byte* room = posted.rooms[slot].get();
        expect(std::all_of(room, room + receiver_.received(posted.group, slot),
                           [](std::byte byte) { return byte == std::byte{2}; }),
               "a receive is done and not whole");
      }
    }
  }

  bool begin(core::PathIndex path, const core::ChunkHeader& chunk) {
    const core::Placement placement = receiver_.begin(path, receiver_.epoch(path), chunk);
    if (placement.verdict == core::Verdict::refuse) {
      return false;
    }
    if (placement.verdict == core::Verdict::place) {
      arriving_[path] = Arriving{placement.data, chunk.length};
    } else if (placement.verdict == core::Verdict::duplicate) {
      arriving_[path] = Arriving{};
    }
    return true;
  }

  void finish(core::PathIndex path) {
    if (const auto& arriving = arriving_[path]) {
      if (arriving->length != 0) {
        std::memset(arriving->data, 2, arriving->length);
      }
      receiver_.finish(path);
      arriving_[path].reset();
    }
  }

  bool frame(const FrameHeader& header, View body) {
    switch (header.type) {
      case FrameType::cts:
        if (const auto cts = decode_cts(body)) {
          sender_.on_cts(*cts);
          return true;
        }
        return false;
      case FrameType::acknowledge:
        if (const auto read = decode_acknowledge(body)) {
          sender_.on_acknowledge(read->first, read->second);
          return true;
        }
        return false;
      case FrameType::state:
        if (const auto read = decode_state(body)) {
          if (read->fenced) {
            sender_.on_fence_answer(read->fenced->path, read->fenced->epoch, read->state);
          } else {
            sender_.on_state(read->state);
          }
          return true;
        }
        return false;
      case FrameType::retired:
        if (const auto read = decode_state(body); read && read->fenced) {
          sender_.fail(read->fenced->path);
          sender_.quiesced(read->fenced->path);
          sender_.on_fence_answer(read->fenced->path, read->fenced->epoch, read->state);
          return true;
        }
        return false;
      case FrameType::fence:
        if (const auto read = decode_path(body)) {
          if (receiver_.fence(read->path, read->epoch)) {
            receiver_.retire(read->path);
            arriving_[read->path].reset();
          }
          Bytes answer;
          append_state(answer, 1, {*read, receiver_.state()});
          return true;
        }
        return false;
      case FrameType::rails:
        return decode_rails(body).has_value();
      case FrameType::addresses:
        return decode_addresses(body).has_value();
      case FrameType::ping:
        if (mode_ == Mode::eager && posted_.size() < kMostCalls) {
          const std::size_t kind = header.count / kSmall.size();
          receive(kSmall[header.count % kSmall.size()], kind % 4 == 3 ? 2 : 1,
                  kTag + static_cast<std::int32_t>(kind / 4 % 2));
        }
        return true;
      case FrameType::pong:
        if (mode_ == Mode::eager && sent_.size() < kMostCalls) {
          send(kSmall[header.count % kSmall.size()],
               kTag + static_cast<std::int32_t>(header.count / kSmall.size() % 2));
        }
        return true;
      default:
        return true;
    }
  }

  void transmit(core::PathIndex path) {
    for (int i = 0; i < 8; ++i) {
      const auto out = sender_.take(path);
      if (!out) {
        return;
      }
      expect(out->header.offset + out->header.length <= out->header.message_size,
             "a chunk outside of its message is sent");
      expect(std::all_of(out->data, out->data + out->header.length,
                         [](std::byte byte) { return byte == std::byte{1}; }),
             "what is sent is not the message");
      sender_.written(path);
    }
  }

  core::SendCore sender_{kChunk};
  core::ReceiveCore receiver_{kChunk};
  std::vector<std::unique_ptr<std::byte[]>> sent_;
  std::vector<Posted> posted_;
  std::array<std::optional<Arriving>, core::kMaxPaths> arriving_{};
  const Mode mode_;
};

}  // namespace

void feed(View bytes) {
  if (bytes.empty()) {
    return;
  }
  const View rest = bytes.subspan(1);
  switch (static_cast<Reader>(std::to_integer<unsigned>(bytes[0]) %
                              static_cast<unsigned>(Reader::count))) {
    case Reader::hello:
      opening(rest);
      return hello(rest);
    case Reader::welcome:
      answers(rest);
      return welcome(rest);
    case Reader::handle:
      return handle(rest);
    case Reader::page:
      return page(rest);
    case Reader::bodies:
      return bodies(rest);
    case Reader::eager:
      return Comms(Mode::eager).feed(rest);
    default:
      return Comms(Mode::cts_first).feed(rest);
  }
}

}  // namespace fabric::hostile
