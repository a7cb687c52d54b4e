// Wire formats: round trips, refusals, and random bytes into every parser.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "host/handle.h"
#include "host/rails.h"
#include "host/wire.h"

using namespace fabric;
using namespace fabric::host;

namespace {

Secret secret_of(int seed) {
  Secret secret{};
  secret.fill(static_cast<std::byte>(seed));
  return secret;
}

Address v4(std::uint8_t last, std::uint16_t port) {
  Address address;
  address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
  address.port = port;
  return address;
}

Hello hello() {
  Hello made;
  made.kind = HelloKind::data;
  made.rails = 4;
  made.initiator_rail = 3;
  made.acceptor_rail = 1;
  made.primary_rail = 2;
  made.listen_id = 77;
  made.chunk_size = 65536;
  made.epoch = 5;
  made.initiator = 0x1122334455667788;
  made.acceptor = 42;
  made.comm = 99;
  made.nonce = 1234;
  made.listeners[2] = v4(3, 4000);
  made.run_incarnation = 0x99aabbccddeeff00;
  return made;
}

}  // namespace

TEST_CASE("siphash: the reference vector") {
  // Aumasson and Bernstein, appendix A: key 00..0f, input 00..0e.
  Secret secret{};
  std::array<std::byte, 15> input{};
  for (std::size_t i = 0; i < 16; ++i) {
    secret[i] = static_cast<std::byte>(i);
  }
  for (std::size_t i = 0; i < 15; ++i) {
    input[i] = static_cast<std::byte>(i);
  }
  CHECK(siphash(secret, input) == 0xa129ca6149be45e5ULL);
}

TEST_CASE("hello: round trip, and whoever lacks the secret is refused") {
  const Secret secret = secret_of(1);
  const HelloBytes bytes = encode(hello(), secret);
  const auto claim = claim_of(bytes);
  REQUIRE(claim);
  CHECK(claim->listen_id == 77);
  CHECK(claim->kind == HelloKind::data);
  CHECK(claim->initiator == 0x1122334455667788);
  const auto back = decode_hello(bytes, secret);
  REQUIRE(back);
  CHECK(back->epoch == 5);
  CHECK(back->comm == 99);
  CHECK(back->nonce == 1234);
  CHECK(back->primary_rail == 2);
  CHECK(back->listeners[2] == v4(3, 4000));
  CHECK_FALSE(decode_hello(bytes, secret_of(2)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    HelloBytes bent = bytes;
    bent[i] ^= std::byte{0x10};
    CHECK_FALSE(decode_hello(bent, secret));
  }
}

TEST_CASE("hello: versions") {
  const auto common_of = [](const Hello& said, std::uint8_t highest) {
    return common_version(said.version_min, said.version_max, highest);
  };
  const Secret secret = secret_of(1);
  Hello newer = hello();
  newer.version_max = kWireVersion + 1;  // speaks ours too
  CHECK(decode_hello(encode(newer, secret), secret));
  CHECK(common_of(newer, kWireVersion) == kWireVersion);
  CHECK(common_of(newer, kWireVersionUnsafe) == kWireVersionUnsafe - 1);
  CHECK(common_version(kWireVersionUnsafe, kWireVersionUnsafe, kWireVersion) == 0);
  newer.version_min = kWireVersion + 1;
  CHECK(decode_hello(encode(newer, secret), secret));  // it has to be told
  CHECK(common_of(newer, kWireVersion) == 0);
  Hello older = hello();
  older.version_max = older.version_min;
  CHECK(common_of(older, kWireVersion) == kWireVersionMin);
  Hello odd = hello();
  odd.rails = 9;
  CHECK_FALSE(decode_hello(encode(odd, secret), secret));
  odd = hello();
  odd.kind = HelloKind::one_sided;
  CHECK(decode_hello(encode(odd, secret), secret));
  odd.beside = true;
  const auto beside = decode_hello(encode(odd, secret), secret);
  REQUIRE(beside);
  CHECK(beside->beside);
  odd.kind = HelloKind::data;  // a stream takes the place of none
  CHECK_FALSE(decode_hello(encode(odd, secret), secret));
  odd.kind = HelloKind::one_sided;
  odd.beside = false;
  CHECK_FALSE(decode_hello(encode(odd, secret), secret)->beside);
  odd.version_max = kWireVersionOneSided - 1;  // has no such paths
  CHECK_FALSE(decode_hello(encode(odd, secret), secret));
  odd = hello();
  odd.initiator_rail = 4;
  CHECK_FALSE(decode_hello(encode(odd, secret), secret));
}

TEST_CASE("welcome: round trip and refusal") {
  Welcome welcome;
  welcome.status = WelcomeStatus::stale;
  welcome.rails = 2;
  welcome.floor = 9;
  welcome.incarnation = 5;
  welcome.nonce = 6;
  const WelcomeBytes bytes = encode(welcome, secret_of(3));
  const auto back = decode_welcome(bytes, secret_of(3));
  REQUIRE(back);
  CHECK(back->floor == 9);
  CHECK(back->nonce == 6);
  CHECK(back->status == WelcomeStatus::stale);
  CHECK_FALSE(decode_welcome(bytes, secret_of(4)));
  welcome.version = kWireVersion + 7;
  CHECK_FALSE(decode_welcome(encode(welcome, secret_of(3)), secret_of(3)));
  welcome.status = WelcomeStatus::version;
  welcome.version_min = kWireVersion + 6;
  const auto refusal = decode_welcome(encode(welcome, secret_of(3)), secret_of(3));
  REQUIRE(refusal);
  CHECK(refusal->version == kWireVersion + 7);
  CHECK(refusal->version_min == kWireVersion + 6);
}

TEST_CASE("handle: eight IPv4 rails fit, of IPv6 as many as fit with the primary rail first") {
  Handle handle;
  handle.listen_id = 3;
  handle.incarnation = 4;
  handle.secret = secret_of(9);
  handle.primary_rail = 6;
  handle.rails = 8;
  for (std::uint8_t i = 0; i < 8; ++i) {
    handle.listeners[i] = v4(i, static_cast<std::uint16_t>(1000 + i));
  }
  std::array<std::byte, kHandleSize> bytes{};
  encode(handle, bytes);
  auto back = decode_handle(bytes);
  REQUIRE(back);
  CHECK(back->listeners == handle.listeners);
  CHECK(back->secret == handle.secret);
  for (std::uint8_t i = 0; i < 8; ++i) {
    handle.listeners[i].ip[0] = 0xfd;
    handle.listeners[i].ip[10] = 0;
  }
  encode(handle, bytes);
  back = decode_handle(bytes);
  REQUIRE(back);
  CHECK(back->listeners[6] == handle.listeners[6]);
  CHECK(std::count_if(back->listeners.begin(), back->listeners.end(),
                      [](const Address& address) { return address.present(); }) == 4);
  bytes[0] ^= std::byte{1};
  CHECK_FALSE(decode_handle(bytes));
}

TEST_CASE("the incarnation of a fabric-run lies where older releases wrote zeros") {
  constexpr std::size_t kHelloRunAt = 200;
  constexpr std::size_t kHandleRunAt = 120;
  const Secret secret = secret_of(1);
  Hello said = hello();
  CHECK(decode_hello(encode(said, secret), secret)->run_incarnation == 0x99aabbccddeeff00);
  said.run_incarnation = 0;
  const HelloBytes old = encode(said, secret);
  CHECK(std::all_of(old.begin() + kHelloRunAt, old.end() - 8,
                    [](std::byte byte) { return byte == std::byte{0}; }));
  CHECK(decode_hello(old, secret)->run_incarnation == 0);

  Handle handle;
  handle.rails = 8;
  for (std::uint8_t i = 0; i < 8; ++i) {
    handle.listeners[i] = v4(i, static_cast<std::uint16_t>(1000 + i));
    handle.listeners[i].ip[0] = i < 4 ? 0xfd : 0;
  }
  std::array<std::byte, kHandleSize> bytes{};
  encode(handle, bytes);
  CHECK(decode_handle(bytes)->run_incarnation == 0);
  handle.run_incarnation = 0x99aabbccddeeff00;
  encode(handle, bytes);
  const auto back = decode_handle(bytes);
  REQUIRE(back);
  CHECK(back->run_incarnation == 0x99aabbccddeeff00);
  CHECK(bytes[kHandleRunAt] == std::byte{0x00});
  CHECK(bytes[kHandleSize - 1] == std::byte{0x99});
  CHECK(back->listeners[4].present());
  CHECK_FALSE(back->listeners[5].present());  // the first welcome brings it

  // An older release let one address more reach into the last bytes.
  constexpr std::size_t kCountAt = 36;
  constexpr std::size_t kSixthAt = kCountAt + 1 + 4 * 19 + 7;
  bytes[kCountAt] = std::byte{6};
  bytes[kSixthAt] = std::byte{5};
  const auto older = decode_handle(bytes);
  REQUIRE(older);
  CHECK(older->listeners[5].present());
  CHECK(older->run_incarnation == 0);
}

TEST_CASE("handle: versions of the wire") {
  constexpr std::size_t kWireAt = 7;
  Handle handle;
  handle.rails = 1;
  handle.listeners[0] = v4(1, 1000);
  handle.wire_min = 3;
  handle.wire_max = 11;
  std::array<std::byte, kHandleSize> bytes{};
  encode(handle, bytes);
  auto back = decode_handle(bytes);
  REQUIRE(back);
  CHECK(back->wire_min == 3);
  CHECK(back->wire_max == 11);
  bytes[kWireAt] = std::byte{0};  // of a release that did not say
  back = decode_handle(bytes);
  REQUIRE(back);
  CHECK(back->wire_min == 1);
  CHECK(back->wire_max == 2);
  for (const unsigned damaged : {0x21U, 0x02U, 0x10U}) {
    CAPTURE(damaged);
    bytes[kWireAt] = static_cast<std::byte>(damaged);
    CHECK_FALSE(decode_handle(bytes));
    CHECK(handle_fault(bytes) == "the handle is damaged");
  }
}

TEST_CASE("frames: round trips") {
  Bytes out;
  core::Cts cts;
  cts.group = 12;
  cts.count = 2;
  cts.slots[1].size = 77;
  cts.slots[1].tag = -3;
  append_cts(out, 5, cts);
  const auto header = decode_frame_header(out);
  REQUIRE(header);
  CHECK(header->comm == 5);
  CHECK(header->length == out.size() - kFrameHeaderSize);
  const auto body = std::span<const std::byte>(out).subspan(kFrameHeaderSize);
  CHECK(decode_cts(body)->slots[1].tag == -3);
  CHECK_FALSE(decode_cts(body.first(body.size() - 1)));

  StateFrame frame;
  frame.fenced = PathEpoch{9, 3, 0};
  frame.state.done_below = 4;
  core::GroupReport& report = frame.state.groups.emplace_back();
  report.cts = cts;
  report.slots[1].have = {{0, 3}, {7, 8}};
  report.slots[0].whole = true;
  Bytes state;
  append_state(state, 5, frame);
  const auto back = decode_state(std::span<const std::byte>(state).subspan(kFrameHeaderSize));
  REQUIRE(back);
  CHECK(back->fenced->path == 9);
  CHECK(back->state.groups[0].slots[1].have[1].last == 8);
  CHECK(back->state.groups[0].slots[0].whole);

  const core::ChunkHeader chunk{
      .group = 8, .message_size = 1000, .offset = 0, .length = 1000, .slot = 3};
  const auto bytes = encode_chunk(7, chunk);
  CHECK(decode_chunk(bytes)->slot == 3);
  CHECK_FALSE(decode_chunk(bytes)->waits);
  core::ChunkHeader small = chunk;
  small.waits = true;
  CHECK(decode_chunk(encode_chunk(7, small))->slot == 3);
  CHECK(decode_chunk(encode_chunk(7, small))->waits);
  CHECK_FALSE(decode_chunk(encode_chunk(7, small))->budget_low);
  small.budget_low = true;
  CHECK(decode_chunk(encode_chunk(7, small))->budget_low);
  CHECK(decode_chunk(encode_chunk(7, small))->slot == 3);
  CHECK(decode_chunk(encode_chunk(7, small))->follow == 0);
  small.follow = core::kMostFollow;
  CHECK(decode_chunk(encode_chunk(7, small))->follow == core::kMostFollow);
  CHECK(decode_chunk(encode_chunk(7, small))->waits);
  CHECK(decode_chunk(encode_chunk(7, small))->slot == 3);
  small.slot = core::kMaxSlots;
  CHECK_FALSE(decode_chunk(encode_chunk(7, small)));
  core::ChunkHeader beyond = chunk;
  beyond.offset = 1;
  CHECK_FALSE(decode_chunk(encode_chunk(7, beyond)));

  const core::ChunkHeader eager{.group = 8,
                                .message_size = 1000,
                                .length = 1000,
                                .eager = true,
                                .era = 0xfffe,
                                .tag = -77,
                                .budget_low = true};
  auto early = encode_chunk(7, eager);
  const auto read = decode_chunk(early);
  REQUIRE(read);
  CHECK(read->eager);
  CHECK(read->era == 0xfffe);
  CHECK(read->tag == -77);
  CHECK(read->budget_low);
  CHECK(read->offset == 0);
  early[36] = std::byte{2};  // a flag of nobody's
  CHECK_FALSE(decode_chunk(early));
  core::ChunkHeader part = eager;
  part.length = 999;  // what goes eagerly is a whole message
  CHECK_FALSE(decode_chunk(encode_chunk(7, part)));
}

TEST_CASE("frames: a CTS has a key for each rail, and is as it was where it has none") {
  constexpr std::size_t kSlotSize = 24;
  constexpr std::size_t kKeysSize = 32;
  core::Cts cts;
  cts.group = 12;
  cts.count = 2;
  cts.slots[0].size = 77;
  cts.slots[0].tag = -3;
  Bytes plain;
  append_cts(plain, 5, cts);
  CHECK(plain.size() == kFrameHeaderSize + 9 + 2 * kSlotSize);
  cts.slots[0].where = 0x0102030405060708;
  cts.slots[1].keys = {1, 0, 3, 4, 5, 6, 7, 0xfffffffe};
  cts.slots[1].device = true;
  Bytes keyed;
  append_cts(keyed, 5, cts);
  CHECK(keyed.size() == plain.size() + 2 * kKeysSize);
  const auto body = std::span<const std::byte>(keyed).subspan(kFrameHeaderSize);
  const auto back = decode_cts(body);
  REQUIRE(back);
  CHECK(back->count == 2);
  CHECK(back->slots[0].size == 77);
  CHECK(back->slots[0].where == cts.slots[0].where);
  CHECK(back->slots[0].tag == -3);
  CHECK(back->slots[0].keys == core::Slot{}.keys);
  CHECK(back->slots[1].keys == cts.slots[1].keys);
  CHECK_FALSE(back->slots[0].device);
  CHECK(back->slots[1].device);
  CHECK_FALSE(decode_cts(body.first(body.size() - 1)));

  StateFrame frame;
  frame.state.groups.emplace_back().cts = cts;
  Bytes state;
  append_state(state, 5, frame);
  const auto read = decode_state(std::span<const std::byte>(state).subspan(kFrameHeaderSize));
  REQUIRE(read);
  CHECK(read->state.groups[0].cts.slots[1].keys == cts.slots[1].keys);
  CHECK(read->state.groups[0].cts.slots[1].device);
}

TEST_CASE("frames: terms are short, and opaque") {
  Bytes terms(kMaxTerms, std::byte{7});
  Bytes out;
  append_terms(out, 5, terms);
  const auto header = decode_frame_header(out);
  REQUIRE(header);
  CHECK(header->type == FrameType::terms);
  CHECK(header->length == kMaxTerms);
  CHECK(header->comm == 5);
  CHECK(std::equal(terms.begin(), terms.end(), out.begin() + kFrameHeaderSize));
  terms.push_back(std::byte{7});
  Bytes more;
  append_terms(more, 5, terms);
  CHECK_FALSE(decode_frame_header(more));
}

TEST_CASE("frames: what a version has") {
  for (const FrameType type : {FrameType::chunk, FrameType::close, FrameType::retired}) {
    CHECK(speaks(kWireVersionMin, type));
    CHECK(speaks(kWireVersion, type));
  }
  for (const FrameType type : {FrameType::path_validation, FrameType::path_validation_done,
                               FrameType::addresses, FrameType::eager}) {
    CHECK_FALSE(speaks(kWireVersionMin, type));
    CHECK(speaks(kWireVersionEager, type));
    CHECK(speaks(kWireVersion, type));
  }
  CHECK_FALSE(speaks(kWireVersionMin, FrameType::terms));
  CHECK_FALSE(speaks(kWireVersionEager, FrameType::terms));
  CHECK(speaks(kWireVersionOneSided, FrameType::terms));
  CHECK(speaks(kWireVersion, FrameType::terms));
}

TEST_CASE("a report of any size fits into a frame") {
  core::ReceiverState state;
  for (core::GroupId id = 0; id < 1024; ++id) {
    core::GroupReport& group = state.groups.emplace_back();
    group.cts.group = id;
    group.cts.count = core::kMaxSlots;
    for (core::SlotReport& slot : group.slots) {
      for (std::uint32_t chunk = 0; chunk < 200; chunk += 2) {
        slot.have.push_back({chunk, chunk + 1});
      }
    }
  }
  Bytes out;
  append_state(out, 1, {std::nullopt, state});
  const auto header = decode_frame_header(out);
  REQUIRE(header);
  const auto read = decode_state(std::span(out).subspan(kFrameHeaderSize));
  REQUIRE(read);
  CHECK(read->state.groups.size() == 1024);  // no CTS is left out, only chunks are
  CHECK(read->state.groups[0].slots[0].have.size() == 100);
  CHECK(read->state.groups[1023].slots[7].have.empty());
}

TEST_CASE("addresses: there and back, whole or not at all") {
  AddressReport report;
  report.number = 0x0102030405060708;
  report.rails = 2;
  report.listeners[1].ip[15] = 1;
  report.listeners[1].port = 4711;
  Bytes out;
  append_addresses(out, report);
  const std::span<const std::byte> body = std::span(out).subspan(kFrameHeaderSize);
  const auto read = decode_addresses(body);
  REQUIRE(read);
  CHECK(read->number == report.number);
  CHECK(read->rails == 2);
  CHECK(read->listeners == report.listeners);
  CHECK_FALSE(decode_addresses(body.first(body.size() - 1)));
}

TEST_CASE("random and mutated bytes into every parser") {
  std::mt19937_64 random(20261121);
  Bytes state;
  StateFrame frame;
  frame.state.groups.resize(3);
  for (core::GroupReport& report : frame.state.groups) {
    report.cts.count = 8;
    report.slots[2].have = {{1, 2}, {4, 9}};
  }
  append_state(state, 1, frame);
  for (int round = 0; round < 100'000; ++round) {
    Bytes bytes;
    if (round % 2 == 0) {
      bytes.resize(random() % 300);
      std::generate(bytes.begin(), bytes.end(),
                    [&random] { return static_cast<std::byte>(random()); });
    } else {
      bytes.assign(state.begin() + kFrameHeaderSize, state.end());
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      bytes.resize(bytes.size() - random() % 4);
    }
    decode_frame_header(bytes);
    decode_chunk(bytes);
    decode_cts(bytes);
    decode_state(bytes);
    decode_rails(bytes);
    decode_path(bytes);
    decode_addresses(bytes);
    decode_acknowledge(bytes);
    decode_number(bytes);
    bytes.resize(kHelloSize);
    CHECK_FALSE(decode_hello(std::span<const std::byte, kHelloSize>(bytes), secret_of(1)));
    decode_handle(std::span<const std::byte>(bytes).first<kHandleSize>());
  }
}

TEST_CASE("NCCL_SOCKET_IFNAME") {
  CHECK(name_wanted("", "eth0"));
  CHECK_FALSE(name_wanted("", "lo"));
  CHECK_FALSE(name_wanted("", "docker0"));
  CHECK(name_wanted("eth,ib", "ib3"));
  CHECK_FALSE(name_wanted("eth,ib", "rail0"));
  CHECK(name_wanted("=eth1", "eth1"));
  CHECK_FALSE(name_wanted("=eth1", "eth10"));
  CHECK_FALSE(name_wanted("^docker,lo", "docker0"));
  CHECK(name_wanted("^docker,lo", "rail0"));
  CHECK(name_wanted("^=eth1", "eth10"));
}
