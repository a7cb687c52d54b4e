#include "fuzz/hostile.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "core/receive_core.h"
#include "core/send_core.h"
#include "tcp/handle.h"
#include "tcp/steer_reader.h"
#include "tcp/wire.h"

namespace fabric::hostile {

namespace {

using namespace fabric::tcp;
using View = std::span<const std::byte>;

enum class Reader : std::uint8_t { hello, welcome, handle, page, bodies, stream, count };

constexpr Secret kSecret{};
constexpr std::int64_t kNow = 1'000'000'000'000;
constexpr std::uint32_t kChunk = 4096;

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
    expect(again->home_rail == read->home_rail && again->listen_id == read->listen_id &&
               again->secret == read->secret &&
               again->listeners[read->home_rail] == read->listeners[read->home_rail],
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

View body_of(const Bytes& frame) { return View(frame).subspan(kFrameHeaderSize); }

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
      decode_grant(bytes), [](Bytes& out, const core::Grant& g) { append_grant(out, 1, g); },
      decode_grant, "a grant does not survive");
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

// A comm of each direction that a peer talks to: whatever it says, chunks are cut from the sent
// buffers and placed into the posted ones. These are of exactly the size, so that the address
// sanitizer sees each step beside them.
class Comms {
 public:
  Comms() {
    for (const std::size_t size : kSizes) {
      auto& bytes = sent_.emplace_back(std::make_unique<std::byte[]>(size));
      std::fill_n(bytes.get(), size, std::byte{1});
      sender_.post(bytes.get(), size, static_cast<int>(sent_.size()));
      auto& room = posted_.emplace_back(std::make_unique<std::byte[]>(size));
      core::Buffer buffer;
      buffer.data = room.get();
      buffer.slot.size = size;
      receiver_.post(std::array{buffer});
    }
    for (const core::PathIndex path : kPaths) {
      receiver_.admit(path, sender_.dial(path));
    }
  }

  // The frames of a connection, or of a control link, one after the other.
  void hear(View stream) {
    std::size_t turn = 0;
    while (const auto header = decode_frame_header(stream)) {
      const core::PathIndex path = kPaths[turn++ % kPaths.size()];
      if (header->type == FrameType::chunk) {
        const auto chunk = decode_chunk(stream);
        if (!chunk || !arrive(path, *chunk)) {
          return;  // drops the connection
        }
        stream = stream.subspan(kChunkHeaderSize);  // the payload is not in the stream
        continue;
      }
      stream = stream.subspan(kFrameHeaderSize);
      if (header->length > stream.size() || !frame(header->type, stream.first(header->length))) {
        return;
      }
      stream = stream.subspan(header->length);
      transmit(path);
    }
  }

 private:
  static constexpr std::array<std::size_t, 4> kSizes{100, 3 * std::size_t{kChunk}, 10'000, 0};
  static constexpr std::array<core::PathIndex, 2> kPaths{core::path_index(0, 0),
                                                         core::path_index(1, 1)};

  bool arrive(core::PathIndex path, const core::ChunkHeader& chunk) {
    const core::Placement placement = receiver_.begin(path, receiver_.epoch(path), chunk);
    if (placement.verdict == core::Verdict::refuse) {
      return false;
    }
    if (placement.verdict == core::Verdict::place && chunk.length != 0) {
      std::memset(placement.data, 2, chunk.length);
    }
    if (placement.verdict != core::Verdict::stale) {
      receiver_.finish(path);
    }
    return true;
  }

  bool frame(FrameType type, View body) {
    switch (type) {
      case FrameType::grant:
        if (const auto grant = decode_grant(body)) {
          sender_.on_grant(*grant);
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
  std::vector<std::unique_ptr<std::byte[]>> posted_;
};

using Seeds = std::vector<std::vector<std::byte>>;

void add(Seeds& out, Reader reader, View bytes) {
  std::vector<std::byte>& seed = out.emplace_back();
  seed.push_back(static_cast<std::byte>(reader));
  seed.insert(seed.end(), bytes.begin(), bytes.end());
}

core::ReceiverState some_state() {
  core::ReceiverState state;
  for (core::GroupId group = 0; group < 3; ++group) {
    core::GroupReport& report = state.groups.emplace_back();
    report.grant.group = group;
    report.grant.count = 1;
    report.grant.slots[0].size = 20'000;
    report.slots[0].have = {{0, 1}, {2, 3}};
  }
  return state;
}

void add_page(Seeds& out) {
  pages::SteerHeader header{};
  header.magic = pages::kSteerMagic;
  header.version = pages::kSteerVersion;
  header.header_size = sizeof header;
  header.seq = 2;
  header.page_size = pages::kSteerPageSize;
  header.heartbeat_ns = kNow;
  header.incarnation = 3;
  header.rail_count = 1;
  header.path_count = 1;
  header.mode = static_cast<std::uint32_t>(pages::SteerMode::steer);
  pages::SteerRail rail{};
  std::memcpy(rail.netdev, "rail0", 5);
  rail.weight = pages::kWeightFull;
  rail.state = static_cast<std::uint8_t>(pages::LinkState::up);
  pages::SteerPath path{};
  std::memcpy(path.netdev, "rail0", 5);
  path.state = static_cast<std::uint8_t>(pages::LinkState::down);
  std::vector<std::byte> bytes(pages::kSteerPathsAt + sizeof path);
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + pages::kSteerRailsAt, &rail, sizeof rail);
  std::memcpy(bytes.data() + pages::kSteerPathsAt, &path, sizeof path);
  add(out, Reader::page, bytes);
}

void add_streams(Seeds& out) {
  Bytes stream;
  append_state(stream, 1, {std::nullopt, some_state()});
  append_state(stream, 1, {PathEpoch{core::path_index(0, 0), 1, 0}, some_state()},
               FrameType::retired);
  append_path(stream, FrameType::fence, 1, {core::path_index(0, 0), 2, 0});
  append_state(stream, 1, {PathEpoch{core::path_index(0, 0), 2, 0}, some_state()});
  append_acknowledge(stream, 1, 0, 0);
  append_number(stream, FrameType::ping, 7);
  append_frame(stream, FrameType::close, 1);
  add(out, Reader::stream, stream);

  Bytes chunks;
  for (std::uint64_t offset = 0; offset < std::uint64_t{3} * kChunk; offset += kChunk) {
    const auto bytes = encode_chunk(
        1, {.group = 1, .message_size = 3 * kChunk, .offset = offset, .length = kChunk, .slot = 0});
    chunks.insert(chunks.end(), bytes.begin(), bytes.end());
  }
  append_path(chunks, FrameType::fence, 1, {core::path_index(1, 1), 2, 0});
  add(out, Reader::stream, chunks);
}

}  // namespace

void feed(View bytes) {
  if (bytes.empty()) {
    return;
  }
  const View rest = bytes.subspan(1);
  switch (static_cast<Reader>(std::to_integer<unsigned>(bytes[0]) %
                              static_cast<unsigned>(Reader::count))) {
    case Reader::hello:
      return hello(rest);
    case Reader::welcome:
      return welcome(rest);
    case Reader::handle:
      return handle(rest);
    case Reader::page:
      return page(rest);
    case Reader::bodies:
      return bodies(rest);
    default:
      return Comms().hear(rest);
  }
}

std::vector<std::vector<std::byte>> seeds() {
  Seeds out;
  Address address;
  address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  address.port = 4000;
  Hello hi;
  hi.kind = HelloKind::data;
  hi.rails = 4;
  hi.chunk_size = kChunk;
  hi.epoch = 1;
  hi.listeners[0] = address;
  add(out, Reader::hello, encode(hi, kSecret));
  Welcome back;
  back.rails = 4;
  back.listeners[0] = address;
  add(out, Reader::welcome, encode(back, kSecret));
  Handle where;
  where.rails = 2;
  where.listeners[0] = address;
  where.listeners[1] = address;
  where.listeners[1].ip[0] = 0xfd;
  std::array<std::byte, kHandleSize> raw{};
  encode(where, raw);
  add(out, Reader::handle, raw);
  add_page(out);

  Bytes body;
  append_state(body, 1, {PathEpoch{9, 3, 0}, some_state()});
  add(out, Reader::bodies, body_of(body));
  body.clear();
  append_grant(body, 1, some_state().groups[1].grant);
  add(out, Reader::bodies, body_of(body));
  body.clear();
  append_rails(body, {});
  add(out, Reader::bodies, body_of(body));
  body.clear();
  AddressReport addresses;
  addresses.number = 3;
  addresses.rails = 2;
  addresses.listeners[0] = address;
  addresses.listeners[1] = where.listeners[1];
  append_addresses(body, addresses);
  add(out, Reader::bodies, body_of(body));
  body.clear();
  append_path(body, FrameType::fence, 1, {9, 3, 1});
  add(out, Reader::bodies, body_of(body));
  add_streams(out);
  return out;
}

}  // namespace fabric::hostile
