// Device memory in the reliability core: only one-sided paths carry it.
#include "tests/one_sided_kit.h"

using namespace fabric::core;
using namespace fabric::core::one_sided;

TEST_CASE("no stream carries what comes from device memory, or goes there") {
  Comm comm;
  const Epoch stream = comm.sender.dial(kPrimary);
  REQUIRE(comm.receiver.admit(kPrimary, stream));
  constexpr Origin kDevice{nullptr, true, true};
  constexpr Origin kHost;
  // From it, into it, between CPUs, and an empty one from it.
  comm.receive(100, 1);
  comm.receive(100, 2, true);
  comm.receive(100, 3);
  comm.receive(100, 4);
  int tag = 0;
  for (const Origin& origin : {kDevice, kHost, kHost}) {
    REQUIRE(comm.sender.post(comm.from.data(), 100, ++tag, 0, NoCopy::refuse, origin));
  }
  REQUIRE(comm.sender.post(nullptr, 0, 4, 0, NoCopy::refuse, kDevice));
  CHECK(comm.sender.needs_one_sided());
  const std::vector<Outgoing> streamed = comm.take_all(kPrimary);
  REQUIRE(streamed.size() == 2);
  CHECK(streamed[0].header.group == 2);
  CHECK(streamed[1].header.group == 3);
  CHECK(comm.sender.has_chunk());
  const Epoch epoch = comm.connect(kOther);
  const std::vector<Outgoing> written = comm.take_all(kOther);
  REQUIRE(written.size() == 2);
  CHECK(written[0].device);
  CHECK_FALSE(written[1].device);
  // What failed goes over no stream either, though it is the first that has to go again.
  const Epoch fence = comm.sender.fail(kOther);
  comm.sender.quiesced(kOther);
  comm.receiver.begin_retire(kOther);
  comm.receiver.retired(kOther, epoch);
  REQUIRE(comm.sender.on_fence_answer(kOther, fence, comm.receiver.state()) == 200);
  CHECK_FALSE(comm.sender.take(kPrimary));
  const Epoch again = comm.connect(kOther);
  for (const Outgoing& out : comm.take_all(kOther)) {
    CHECK(comm.receiver.land(kOther, again, notice(out)).whole);
  }
  comm.sender.on_progress(comm.receiver.progress());
  CHECK_FALSE(comm.sender.needs_one_sided());
}

TEST_CASE("a stream that brings something for device memory breaks the protocol") {
  Comm comm;
  const Epoch stream = comm.sender.dial(kPrimary);
  REQUIRE(comm.receiver.admit(kPrimary, stream));
  const GroupId group = comm.receive(100, 0, true);
  ChunkHeader header{.group = group, .message_size = 100, .length = 100};
  CHECK(comm.receiver.begin(kPrimary, stream, header).verdict == Verdict::refuse);
  header.message_size = header.length = 0;
  CHECK(comm.receiver.begin(kPrimary, stream, header).verdict == Verdict::place);
}
