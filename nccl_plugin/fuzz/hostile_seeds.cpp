// Good examples for hostile.cpp's readers.
#include <array>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "fuzz/hostile.h"
#include "fuzz/hostile_terms.h"
#include "host/handle.h"
#include "pages/steer_page.h"

namespace fabric::hostile {

namespace {

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
    report.cts.group = group;
    report.cts.count = 1;
    report.cts.slots[0].size = 20'000;
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

// One of our callers posts a receive (ping) or a message (pong): see Comms.
void call(Bytes& stream, FrameType type, std::uint16_t count) {
  const std::size_t at = stream.size();
  append_number(stream, type, 0);
  std::memcpy(stream.data() + at + 2, &count, sizeof count);
}

constexpr std::int32_t kTag = 1;  // of the receives that a ping posts; the next one with kOtherTag
constexpr std::uint16_t kOtherTag = 8 * 4;

void send_eager(Bytes& stream, core::GroupId group, std::uint32_t size, core::Era era,
                std::int32_t tag = kTag) {
  const auto bytes = encode_chunk(1, {.group = group,
                                      .message_size = size,
                                      .offset = 0,
                                      .length = size,
                                      .slot = 0,
                                      .eager = true,
                                      .era = era,
                                      .tag = tag,
                                      .budget_low = group % 2 == 1});
  stream.insert(stream.end(), bytes.begin(), bytes.end());
}

void add_eager(Seeds& out) {
  constexpr std::uint16_t kTwoSlots = 3 * 8;
  // A hostile sender: before its receive, in the midst of it, after it, where two slots are.
  Bytes early;
  for (core::GroupId group = 0; group < 4; ++group) {
    send_eager(early, group, 100, 0);
  }
  call(early, FrameType::ping, 2);
  call(early, FrameType::ping, 3);
  send_eager(early, 4, 4000, 0);
  call(early, FrameType::ping, 2);
  call(early, FrameType::ping, 2 + kTwoSlots);
  send_eager(early, 5, 100, 0);
  send_eager(early, 5, 100, 1);
  append_path(early, FrameType::fence, 1, {core::path_index(0, 0), 2, 0});
  call(early, FrameType::ping, 4);
  call(early, FrameType::ping, 4);
  add(out, Reader::eager, early);

  // Of one tag, of another, and of one that nobody receives, before and after a break.
  Bytes tags;
  send_eager(tags, 0, 100, 0, kTag);
  send_eager(tags, 1, 100, 0, kTag);
  call(tags, FrameType::ping, 2 + kOtherTag);
  send_eager(tags, 1, 100, 0, kTag + 1);
  call(tags, FrameType::ping, 2);
  send_eager(tags, 1, 100, 1, kTag);
  send_eager(tags, 2, 100, 1, kTag + 7);
  call(tags, FrameType::ping, 2 + kOtherTag);
  add(out, Reader::eager, tags);

  // A hostile receiver: CTS and acknowledgements of what went eagerly, late, wrong and twice.
  Bytes late;
  for (const std::uint16_t size : std::initializer_list<std::uint16_t>{2, 1, 3, 4, 5, 2}) {
    call(late, FrameType::pong, size);
  }
  append_acknowledge(late, 1, 1, 0);
  core::Cts cts;
  cts.count = 1;
  cts.slots[0].size = 4096;
  cts.slots[0].tag = kTag;
  append_cts(late, 1, cts);
  append_acknowledge(late, 1, 0, 0);
  cts.group = 2;
  cts.slots[0].size = 10;  // too small for what was meant for it
  append_cts(late, 1, cts);
  cts.group = 1;
  append_cts(late, 1, cts);
  cts.group = 3;
  cts.count = 2;
  cts.slots[0].tag = 4;
  cts.slots[1].tag = 5;
  append_cts(late, 1, cts);
  append_state(late, 1, {PathEpoch{core::path_index(0, 0), 2, 0}, some_state()},
               FrameType::retired);
  append_state(late, 1, {std::nullopt, some_state()});
  call(late, FrameType::pong, 2);
  add(out, Reader::eager, late);
}

}  // namespace

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
  Bytes proved;
  const HelloBytes unproved = encode(hi, kSecret);
  const ProofBytes proof = proof_of(unproved, {1, 2}, kSecret);
  proved.insert(proved.end(), unproved.begin(), unproved.end());
  proved.insert(proved.end(), proof.begin(), proof.end());
  add(out, Reader::hello, proved);
  Welcome back;
  back.rails = 4;
  back.listeners[0] = address;
  add(out, Reader::welcome, encode(back, kSecret));
  add(out, Reader::welcome, encode(Challenge{kWireVersion, {3, 4}, 7}, kSecret));
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
  append_cts(body, 1, some_state().groups[1].cts);
  add(out, Reader::bodies, body_of(body));
  body.clear();
  append_rails(body, {});
  add(out, Reader::bodies, body_of(body));
  body.clear();
  append_rails(body, {}, kWireVersionEager);
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
  add_eager(out);
  return out;
}

}  // namespace fabric::hostile
