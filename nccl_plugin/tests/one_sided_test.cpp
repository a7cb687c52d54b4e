// The reliability core with one-sided paths: keys and regions, landings, fences that wait, credits.
#include <map>
#include <memory>

#include "tests/one_sided_kit.h"

using namespace fabric::core;
using namespace fabric::core::one_sided;

namespace {

// A ring of registered memory, or none of it.
class Pool : public CopyPool {
 public:
  Pool(std::size_t largest, std::size_t most) : largest_(largest), most_(most) {}
  [[nodiscard]] std::size_t largest() const override { return largest_; }
  std::byte* take(std::size_t size) override {
    if (taken_.size() == most_) {
      return nullptr;
    }
    auto bytes = std::make_unique<std::byte[]>(size + 1);
    std::byte* const at = bytes.get();
    taken_.emplace(at, std::move(bytes));
    return at;
  }
  void release(std::byte* copy) override { REQUIRE(taken_.erase(copy) == 1); }
  [[nodiscard]] Region region(const std::byte* copy) override {
    CHECK(taken_.contains(copy));
    return this;
  }
  [[nodiscard]] std::size_t taken() const { return taken_.size(); }

 private:
  std::size_t largest_;
  std::size_t most_;
  std::map<const std::byte*, std::unique_ptr<std::byte[]>> taken_;
};

}  // namespace

TEST_CASE("a one-sided chunk says where it goes, with the key of the receiver's rail") {
  Comm comm;
  comm.connect(kOther);
  const int handle = 0;
  comm.receive(12'000);
  REQUIRE(comm.sender.post(comm.from.data(), 10'000, 0, 0, NoCopy::refuse, {&handle, true}));
  const auto out = comm.take_all(kOther);
  REQUIRE(out.size() == 3);
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
    CHECK(out[chunk].where == 0x10000 + std::uint64_t{chunk} * kChunk);
    CHECK(out[chunk].key == 102);
    CHECK(out[chunk].chunk == chunk);
    CHECK(out[chunk].last == (chunk == 2));
    CHECK(out[chunk].region == &handle);
    CHECK(out[chunk].data == comm.from.data() + std::size_t{chunk} * kChunk);
  }
}

TEST_CASE("chunks land in any order and twice, the last one first") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  const Epoch other = comm.connect(kOther);
  const GroupId group = comm.receive(12'000);
  const auto sequence = comm.sender.post(comm.from.data(), 10'000, 0);
  const auto primary = comm.sender.take(kPrimary);
  const auto rest = comm.take_all(kOther);
  REQUIRE(rest.size() == 2);
  for (const Outgoing& out : {rest[1], rest[0], *primary}) {
    comm.write(out);
  }
  CHECK(comm.receiver.land(kOther, other, notice(rest[1])).verdict == Verdict::place);
  CHECK(comm.receiver.land(kOther, other, notice(rest[1])).verdict == Verdict::duplicate);
  CHECK(comm.receiver.landed_rails(group) == 0b100);
  CHECK_FALSE(comm.receiver.done(group));
  Landing landing = comm.receiver.land(kPrimary, epoch, notice(*primary));
  CHECK(landing.verdict == Verdict::place);
  CHECK_FALSE(landing.whole);
  landing = comm.receiver.land(kOther, other, notice(rest[0]));
  CHECK(landing.whole);
  CHECK(comm.receiver.done(group));
  CHECK(comm.receiver.received(group, 0) == 10'000);
  CHECK(comm.receiver.landed_rails(group) == 0b101);
  CHECK(comm.receiver.landed(kOther) == 3);  // a receive was used up by each
  CHECK(comm.receiver.landed(kPrimary) == 1);
  CHECK(comm.receiver.land(kPrimary, epoch, notice(*primary)).verdict == Verdict::duplicate);
  comm.sender.on_progress(comm.receiver.progress());
  for (int i = 0; i < 3; ++i) {
    comm.sender.written(i == 0 ? kPrimary : kOther);
  }
  CHECK(comm.sender.done(*sequence));
  CHECK(std::equal(comm.from.begin(), comm.from.begin() + 10'000, comm.to.begin()));
  comm.receiver.forget(group);
  CHECK(comm.receiver.landed_rails(group) == 0);
  CHECK(comm.receiver.land(kPrimary, epoch, notice(*primary)).verdict == Verdict::duplicate);
}

TEST_CASE("an empty message lands, and one of whole chunks") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  for (const std::size_t size : {std::size_t{0}, std::size_t{2} * kChunk}) {
    const GroupId group = comm.receive(20'000);
    REQUIRE(comm.sender.post(comm.from.data(), size, 0));
    for (const Outgoing& out : comm.take_all(kPrimary)) {
      comm.write(out);
      CHECK(comm.receiver.land(kPrimary, epoch, notice(out)).verdict == Verdict::place);
    }
    CHECK(comm.receiver.done(group));
    CHECK(comm.receiver.received(group, 0) == size);
  }
}

TEST_CASE("a full chunk may be told by a write of no bytes") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  const GroupId group = comm.receive(8000);
  CHECK(comm.receiver.land(kPrimary, epoch, {.chunk = 0, .length = 0}).verdict == Verdict::place);
  CHECK(comm.receiver.land(kPrimary, epoch, {.chunk = 1, .length = 10, .last = true}).whole);
  CHECK(comm.receiver.received(group, 0) == kChunk + 10);
}

TEST_CASE("a notification that makes no sense is refused and changes nothing") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  const GroupId group = comm.receive(10'000);
  REQUIRE(comm.receiver.admit(kOther, 1));  // a stream
  const auto verdict = [&](const Landed& landed, PathIndex path = kPrimary) {
    return comm.receiver.land(path, path == kPrimary ? epoch : 1, landed).verdict;
  };
  CHECK(verdict({.length = kChunk}, kOther) == Verdict::refuse);
  CHECK(comm.receiver.begin(kPrimary, epoch, {.message_size = 1, .length = 1}).verdict ==
        Verdict::refuse);
  CHECK(verdict({.group = 1, .length = kChunk}) == Verdict::refuse);  // not posted
  CHECK(verdict({.group = kLandedGroups, .length = kChunk}) == Verdict::refuse);
  CHECK(verdict({.slot = 1, .length = kChunk}) == Verdict::refuse);
  CHECK(verdict({.chunk = 2, .length = kChunk}) == Verdict::refuse);  // past the slot
  CHECK(verdict({.chunk = kLandedChunks, .length = 1, .last = true}) == Verdict::refuse);
  CHECK(verdict({.length = kChunk - 1}) == Verdict::refuse);  // neither full nor the last
  CHECK(verdict({.length = kChunk + 1, .last = true}) == Verdict::refuse);
  CHECK(verdict({.chunk = 1, .length = 0, .last = true}) == Verdict::refuse);
  CHECK(comm.receiver.landed(kPrimary) == 0);
  CHECK(verdict({.chunk = 1, .length = kChunk}) == Verdict::place);
  CHECK(verdict({.chunk = 0, .length = 5, .last = true}) == Verdict::refuse);  // 1 is here
  CHECK(verdict({.chunk = 2, .length = 5, .last = true}) == Verdict::place);
  CHECK(verdict({.chunk = 2, .length = 6, .last = true}) == Verdict::refuse);  // another size
  CHECK(verdict({.chunk = 1, .length = kChunk, .last = true}) == Verdict::refuse);
  CHECK_FALSE(comm.receiver.done(group));
  CHECK(verdict({.chunk = 0, .length = kChunk}) == Verdict::place);
  CHECK(comm.receiver.received(group, 0) == 2 * kChunk + 5);
}

TEST_CASE("groups are told apart across the wrap of their number") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  for (int i = 0; i < 2500; ++i) {
    const GroupId group = comm.receive(100);
    REQUIRE(comm.sender.post(comm.from.data(), 100, 0));
    const auto out = comm.sender.take(kPrimary);
    REQUIRE(out);
    CHECK(comm.receiver.land(kPrimary, epoch, notice(*out)).whole);
    comm.sender.written(kPrimary);
    CHECK(comm.receiver.land(kPrimary, epoch, notice(*out)).verdict == Verdict::duplicate);
    REQUIRE(comm.receiver.done(group));
    comm.receiver.forget(group);
    CHECK(comm.receiver.land(kPrimary, epoch, notice(*out)).verdict == Verdict::duplicate);
    comm.sender.on_landed(kPrimary, epoch, comm.receiver.landed(kPrimary));  // duplicates count too
    while (comm.receiver.next_acknowledgement()) {
    }
    comm.receiver.next_done_below();
    comm.sender.on_progress(comm.receiver.progress());
  }
  CHECK_FALSE(comm.sender.unacknowledged());
  // Ten are open: the newest first.
  std::vector<GroupId> groups;
  for (int i = 0; i < 10; ++i) {
    groups.push_back(comm.receive(100));
    REQUIRE(comm.sender.post(comm.from.data(), 100, 0));
  }
  std::vector<Outgoing> out = comm.take_all(kPrimary);
  for (auto next = out.rbegin(); next != out.rend(); ++next) {
    CHECK(comm.receiver.land(kPrimary, epoch, notice(*next)).whole);
  }
  for (const GroupId group : groups) {
    CHECK(comm.receiver.done(group));
  }
}

TEST_CASE("a fence is answered only when the old connection can write no more") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  const GroupId group = comm.receive(10'000);
  REQUIRE(comm.sender.post(comm.from.data(), 10'000, 0));
  const auto sent = comm.take_all(kPrimary);
  CHECK(comm.receiver.land(kPrimary, epoch, notice(sent[0])).verdict == Verdict::place);
  const Epoch fence = comm.sender.fail(kPrimary);
  REQUIRE(comm.receiver.fence(kPrimary, fence));
  CHECK_FALSE(comm.receiver.fence_done(kPrimary, fence));
  CHECK_THROWS_AS(comm.receiver.retire(kPrimary), std::logic_error);
  comm.receiver.begin_retire(kPrimary);
  CHECK(comm.receiver.retiring(kPrimary));
  CHECK_FALSE(comm.receiver.fence(kPrimary, fence));  // asked again: nothing to begin
  CHECK_FALSE(comm.receiver.fence_done(kPrimary, fence));
  CHECK_FALSE(comm.receiver.admit(kPrimary, fence + 1, PathKind::one_sided));
  // Its NIC still writes, and that counts.
  CHECK(comm.receiver.land(kPrimary, epoch, notice(sent[2])).verdict == Verdict::place);
  CHECK_FALSE(comm.receiver.retired(kPrimary, epoch + 1));
  CHECK(comm.receiver.retired(kPrimary, epoch));
  CHECK_FALSE(comm.receiver.retired(kPrimary, epoch));
  CHECK(comm.receiver.fence_done(kPrimary, fence));
  CHECK(comm.receiver.land(kPrimary, epoch, notice(sent[1])).verdict == Verdict::stale);
  CHECK(comm.sender.on_fence_answer(kPrimary, fence, comm.receiver.state()) == kChunk);
  // The sender's own queue pair still reads: it is no path yet.
  CHECK(comm.sender.reading(kPrimary));
  CHECK_THROWS_AS(comm.sender.dial(kPrimary), std::logic_error);
  const Epoch other = comm.connect(kOther);
  const auto again = comm.sender.take(kOther);
  REQUIRE(again);
  CHECK(again->again);
  CHECK(again->chunk == 1);
  CHECK(comm.receiver.land(kOther, other, notice(*again)).whole);
  CHECK(comm.receiver.done(group));
  comm.sender.quiesced(kPrimary);
  const Epoch back = comm.connect(kPrimary);
  CHECK(comm.receiver.fence_done(kPrimary, fence));  // asked once more, late
  CHECK(comm.receiver.open(kPrimary));
  CHECK(comm.receiver.land(kPrimary, back, notice(sent[1])).verdict == Verdict::duplicate);
}

TEST_CASE("a path is one-sided in one epoch and a stream in the next") {
  Comm comm;
  const Epoch first = comm.connect(kPrimary);
  const GroupId group = comm.receive(20'000);
  REQUIRE(comm.sender.post(comm.from.data(), 20'000, 0));
  const auto landed = comm.sender.take(kPrimary);
  const auto lost = comm.sender.take(kPrimary);
  CHECK(comm.receiver.land(kPrimary, first, notice(*landed)).verdict == Verdict::place);
  const Epoch fence = comm.sender.fail(kPrimary);
  comm.sender.quiesced(kPrimary);
  comm.receiver.begin_retire(kPrimary);
  comm.receiver.retired(kPrimary, first);
  CHECK(comm.sender.on_fence_answer(kPrimary, fence, comm.receiver.state()) == kChunk);
  const Epoch second = comm.sender.dial(kPrimary);
  REQUIRE(comm.receiver.admit(kPrimary, second));
  const Epoch other = comm.connect(kOther);
  // The message's size comes with the stream's chunk; one of the five lands beside it.
  const auto beside = comm.sender.take(kOther);
  REQUIRE(beside);
  CHECK(beside->chunk == lost->chunk);
  while (const auto out = comm.sender.take(kPrimary)) {
    CHECK(out->where == 0);
    const Placement placement = comm.receiver.begin(kPrimary, second, out->header);
    REQUIRE(placement.verdict == Verdict::place);
    std::memcpy(placement.data, out->data, out->header.length);
    comm.receiver.finish(kPrimary);
  }
  comm.write(*landed);
  comm.write(*beside);
  CHECK(comm.receiver.land(kOther, other, notice(*beside)).whole);
  CHECK(comm.receiver.received(group, 0) == 20'000);
  CHECK(std::equal(comm.from.begin(), comm.from.begin() + 20'000, comm.to.begin()));
}

TEST_CASE("no more chunks are on their way than the receiver has receives for") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary, 3);
  comm.receive(40'000);
  REQUIRE(comm.sender.post(comm.from.data(), 40'000, 0));
  auto out = comm.take_all(kPrimary);
  REQUIRE(out.size() == 3);
  CHECK(comm.sender.has_chunk());
  CHECK(comm.sender.credits(kPrimary) == 0);
  comm.sender.written(
      kPrimary);  // that a write completed is no credit: its receive may not be back
  CHECK_FALSE(comm.sender.take(kPrimary));
  CHECK(comm.sender.credits(kPrimary) == 0);
  comm.sender.on_landed(kPrimary, epoch, 2);
  comm.sender.on_landed(kPrimary, epoch, 1);  // late
  CHECK(comm.sender.credits(kPrimary) == 2);
  CHECK(comm.take_all(kPrimary).size() == 2);
  comm.sender.on_landed(kPrimary, epoch, 1'000);  // more than were sent
  CHECK(comm.sender.credits(kPrimary) == 3);
  comm.sender.fail(kPrimary);
  comm.sender.quiesced(kPrimary);
  const Epoch next = comm.sender.dial(kPrimary);
  comm.sender.one_sided(kPrimary, 3);
  REQUIRE(comm.sender.take(kPrimary));
  comm.sender.on_landed(kPrimary, epoch, 5);  // of the connection before
  CHECK(comm.sender.credits(kPrimary) == 2);
  CHECK(next > epoch);
  const Epoch stream = comm.sender.dial(kOther);
  comm.sender.on_landed(kOther, stream, 77);  // means nothing on a stream
  CHECK(comm.sender.credits(kOther) > 1'000'000);
}

TEST_CASE("credits go back at the latest when the sender lacks half of them") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary, 4);
  const Epoch other = comm.connect(kOther, 1);
  comm.receive(40'000);
  REQUIRE(comm.sender.post(comm.from.data(), 40'000, 0));
  const auto out = comm.take_all(kPrimary);
  const auto beside = comm.sender.take(kOther);
  CHECK(comm.receiver.credits_due() == 0);
  comm.receiver.land(kPrimary, epoch, notice(out[0]));
  CHECK(comm.receiver.credits_due() == 0);
  comm.receiver.land(kPrimary, epoch, notice(out[1]));
  CHECK(comm.receiver.credits_due() == bit(kPrimary));
  comm.receiver.land(kOther, other, notice(*beside));
  CHECK(comm.receiver.credits_due() == (bit(kPrimary) | bit(kOther)));
  CHECK(comm.receiver.tell_landed(kPrimary) == 2);
  CHECK(comm.receiver.credits_due() == bit(kOther));
  comm.receiver.begin_retire(kOther);
  CHECK(comm.receiver.credits_due() == 0);
}

TEST_CASE("what went before its CTS does not go one-sided before the CTS") {
  Comm comm;
  comm.sender.allow_eager(true);
  comm.connect(kPrimary);
  REQUIRE(comm.sender.post(comm.from.data(), 100, 0));
  REQUIRE(comm.sender.post(comm.from.data(), 20'000, 0));
  CHECK(comm.sender.has_chunk());
  CHECK_FALSE(comm.sender.take(kPrimary));
  comm.receive(200);
  const auto first = comm.sender.take(kPrimary);
  REQUIRE(first);
  CHECK(first->header.length == 100);
  CHECK_FALSE(first->header.eager);
  CHECK(first->where == 0x10000);
  comm.receive(30'000);
  CHECK(comm.take_all(kPrimary).size() == 5);
}

TEST_CASE("device memory is not copied, and its message is done when it is acknowledged") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  comm.receive(100);
  const auto sequence =
      comm.sender.post(comm.from.data(), 100, 0, 0, NoCopy::refuse, {nullptr, true, true});
  REQUIRE(sequence);
  const auto out = comm.sender.take(kPrimary);
  CHECK(out->data == comm.from.data());
  comm.sender.written(kPrimary);
  CHECK_FALSE(comm.sender.done(*sequence));
  CHECK(comm.receiver.land(kPrimary, epoch, notice(*out)).whole);
  comm.sender.on_progress(comm.receiver.progress());
  CHECK(comm.sender.done(*sequence));
}

TEST_CASE("copies lie in the transport's pool, as long as they may have to go again") {
  Pool pool(500, 2);
  {
    Comm comm(&pool);
    const Epoch epoch = comm.connect(kPrimary);
    comm.receive(500);
    const auto sequence = comm.sender.post(comm.from.data(), 300, 0);
    REQUIRE(sequence);
    CHECK(pool.taken() == 1);
    const auto out = comm.sender.take(kPrimary);
    CHECK(out->region == &pool);
    CHECK(out->data != comm.from.data());
    comm.sender.written(kPrimary);
    CHECK(comm.sender.done(*sequence));
    CHECK(pool.taken() == 1);
    CHECK(comm.receiver.land(kPrimary, epoch, notice(*out)).whole);
    comm.sender.on_progress(comm.receiver.progress());
    comm.sender.catch_up();
    CHECK(pool.taken() == 0);

    REQUIRE(comm.sender.post(comm.from.data(), 501, 0));  // never copied, so it waits
    CHECK(pool.taken() == 0);
    REQUIRE(comm.sender.post(comm.from.data(), 0, 0));
    REQUIRE(comm.sender.post(comm.from.data(), 1, 0));
    CHECK(pool.taken() == 2);
    CHECK_FALSE(comm.sender.post(comm.from.data(), 1, 0));  // the pool has no room
    REQUIRE(comm.sender.post(comm.from.data(), 1, 0, 0, NoCopy::take));
  }
  CHECK(pool.taken() == 0);
}

TEST_CASE("progress tells groups of several slots, and says when it does not tell all") {
  Comm comm;
  const Epoch epoch = comm.connect(kPrimary);
  std::array<Buffer, 2> buffers{};
  for (std::size_t i = 0; i < 2; ++i) {
    buffers[i].data = comm.to.data() + i * 1000;
    buffers[i].slot.size = 1000;
    buffers[i].slot.tag = static_cast<std::int32_t>(i);
  }
  comm.receiver.post(buffers);
  comm.sender.on_cts(*comm.receiver.next_cts());
  const auto first = comm.sender.post(comm.from.data(), 9000, 1);  // cut to 1000, not copied
  const auto out = comm.sender.take(kPrimary);
  comm.sender.written(kPrimary);
  CHECK(comm.receiver.land(kPrimary, epoch, notice(*out)).whole);
  const Progress progress = comm.receiver.progress();
  CHECK(progress.done_below == 0);
  CHECK(progress.whole[0] == 0b10);
  CHECK_FALSE(progress.beyond);
  comm.sender.on_progress(progress);
  CHECK(comm.sender.done(*first));
  for (std::size_t i = 0; i < kProgressGroups; ++i) {
    comm.receive(100, 7);
  }
  for (std::size_t i = 0; i < kProgressGroups; ++i) {
    CHECK_FALSE(comm.receiver.progress().beyond);
    REQUIRE(comm.sender.post(comm.from.data(), 100, 7));
    const auto next = comm.sender.take(kPrimary);
    CHECK(comm.receiver.land(kPrimary, epoch, notice(*next)).whole);
  }
  CHECK(comm.receiver.progress().beyond);
  CHECK(comm.receiver.progress().whole[kProgressGroups - 1] == 1);
}
