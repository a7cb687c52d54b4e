// Queue pairs and completions over the fake network: what every device has done at some time.
#include <algorithm>
#include <cerrno>
#include <set>

#include "verbs/tests/kit.h"

using namespace fabric::verbs;
using fake::Call;
using test::End;
using test::Memory;
using test::Pair;

namespace {

struct Wire {
  fake::Network network;
  fake::Nic& left;
  fake::Nic& right;
  Wire() : left(network.add_nic("a0", "10.0.0.1")), right(network.add_nic("b0", "10.0.0.2")) {}
};

Write write_to(const Memory& from, const Memory& to, std::uint32_t length,
               std::optional<std::uint32_t> immediate = 5) {
  return {from.bytes.data(),        length,
          from.region->local_key(), reinterpret_cast<std::uintptr_t>(to.bytes.data()),
          to.region->remote_key(),  immediate};
}

}  // namespace

TEST_CASE("queue pair: writes land, and their immediate and length are told") {
  Wire wire;
  Pair pair;
  Memory from(pair.a.device, 4096);
  Memory to(pair.b.device, 4096);
  std::fill(from.bytes.begin(), from.bytes.end(), std::byte{7});
  CHECK(pair.a.pair->post_write(write_to(from, to, 4096, 0x12345678)) == Posted::done);
  CHECK(pair.a.pair->post_write(write_to(from, to, 32, std::nullopt)) == Posted::done);
  CHECK(pair.a.pair->sends_outstanding() == 2);
  wire.network.run();
  CHECK(to.bytes == from.bytes);
  const auto sent = pair.a.completions();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].status == IBV_WC_SUCCESS);
  CHECK(pair.a.pair->sends_outstanding() == 0);
  const auto landed = pair.b.completions();
  REQUIRE(landed.size() == 1);
  CHECK(QueuePair::is_receive(landed[0].id));
  CHECK(landed[0].has_immediate);
  CHECK(landed[0].immediate == 0x12345678);
  CHECK(landed[0].bytes == 4096);
}

TEST_CASE("completions: every status is somebody's fault, and an error has no immediate") {
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_GENERAL_ERR; ++status) {
    CAPTURE(status);
    Wire wire;
    Pair pair;
    Memory from(pair.a.device, 64);
    Memory to(pair.b.device, 64);
    wire.left.forced.push_back(static_cast<ibv_wc_status>(status));
    CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
    CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
    wire.network.run();
    const auto found = pair.a.completions();
    REQUIRE(found.size() == 2);
    CHECK(found[0].status == status);
    CHECK((fault_of(found[0].status) == Fault::none) == (status == IBV_WC_SUCCESS));
    CHECK((fault_of(found[0].status) == Fault::flushed) == (status == IBV_WC_WR_FLUSH_ERR));
    for (const Completion& completion : found) {
      CHECK(!completion.has_immediate);
      CHECK(completion.immediate == 0);
    }
    if (status != IBV_WC_SUCCESS) {
      CHECK(found[1].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(pair.a.pair->ask_state() == IBV_QPS_ERR);
    }
  }
  CHECK(fault_of(IBV_WC_RETRY_EXC_ERR) == Fault::path);
  CHECK(fault_of(IBV_WC_LOC_QP_OP_ERR) == Fault::path);  // rxe on 6.1: own interface down
  CHECK(fault_of(IBV_WC_LOC_PROT_ERR) == Fault::memory);
  CHECK(fault_of(IBV_WC_REM_ACCESS_ERR) == Fault::memory);
  CHECK(fault_of(IBV_WC_FATAL_ERR) == Fault::device);
}

TEST_CASE("queue pair: everything is flushed, each queue in its order, and no id comes twice") {
  Wire wire;
  Pair pair;
  Memory from(pair.a.device, 64);
  Memory to(pair.b.device, 64);
  CHECK(pair.a.pair->post_receives(8) == 8);
  for (int i = 0; i < 5; ++i) {
    CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
  }
  wire.network.step([](std::size_t) { return std::size_t{0}; });  // one has left
  Error error;
  CHECK(pair.a.pair->to_error(nullptr, error));
  CHECK(pair.a.pair->to_error(nullptr, error));  // again: no harm
  std::set<std::uint64_t> ids;
  for (const Completion& completion : pair.a.completions()) {
    CHECK(completion.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(ids.insert(completion.id).second);
  }
  CHECK(ids.size() == 13);
  CHECK(pair.a.pair->sends_outstanding() == 0);
  CHECK(pair.a.pair->receives_outstanding() == 0);
  CHECK(!pair.a.pair->completed(3));  // none is live any more
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::failed);
  CHECK(pair.a.pair->post_receives(1) == 0);
}

TEST_CASE("queue pair: a completion out of order is none of ours") {
  Wire wire;
  Pair pair;
  Memory from(pair.a.device, 64);
  Memory to(pair.b.device, 64);
  CHECK(!pair.a.pair->completed(0));
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
  CHECK(!pair.a.pair->completed(1));
  CHECK(!pair.a.pair->completed(QueuePair::kReceiveId));
  CHECK(pair.a.pair->completed(0));
  CHECK(pair.a.pair->completed(1));
}

TEST_CASE("queue pair: full send queue, by our count and by the device's") {
  Wire wire;
  Pair pair;
  Memory from(pair.a.device, 64);
  Memory to(pair.b.device, 64);
  wire.left.send_room = 6;  // it promised 8
  for (int i = 0; i < 6; ++i) {
    CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
  }
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::full);
  CHECK(!pair.a.pair->failed());
  wire.left.send_room = 8;
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
  CHECK(!pair.a.pair->send_room());
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::full);
  wire.network.run();
  CHECK(pair.a.completions().size() == 8);
  CHECK(pair.b.completions().size() == 8);
}

TEST_CASE("queue pair: ENOMEM with nothing outstanding, and any other error, end it") {
  Wire wire;
  for (const int code : {ENOMEM, EINVAL}) {
    Pair pair;
    Memory from(pair.a.device, 64);
    Memory to(pair.b.device, 64);
    wire.left.fail(Call::post_send, code);
    CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::failed);
    CHECK(pair.a.pair->failed());
    CHECK(pair.a.pair->last_error() == code);
    CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::failed);
  }
}

TEST_CASE("queue pair: a full receive queue takes no more, and one that fails half way counts") {
  Wire wire;
  Pair pair;
  CHECK(pair.b.pair->post_receives(1) == 0);
  CHECK(!pair.b.pair->failed());
  wire.left.fail(Call::post_recv, ENOMEM, 1, 3);
  CHECK(pair.a.pair->post_receives(8) == 3);
  CHECK(!pair.a.pair->failed());
  CHECK(pair.a.pair->post_receives(8) == 5);
}

TEST_CASE("queue pair: a receiver that is not ready delays a write and loses nothing") {
  Wire wire;
  Pair pair("a0", "b0", {8, 2, 0});
  Memory from(pair.a.device, 64);
  Memory to(pair.b.device, 64);
  for (int i = 0; i < 3; ++i) {
    CHECK(pair.a.pair->post_write(write_to(from, to, 64, i)) == Posted::done);
  }
  wire.network.run();
  CHECK(pair.a.completions().size() == 2);
  CHECK(pair.b.completions().size() == 2);
  CHECK(pair.b.pair->post_receives(1) == 1);
  wire.network.run();
  CHECK(pair.a.completions().size() == 1);
  const auto landed = pair.b.completions();
  REQUIRE(landed.size() == 1);
  CHECK(landed[0].immediate == 2);
}

TEST_CASE("queue pair: modify fails on the way to RTS") {
  Wire wire;
  for (const Call call : {Call::to_init, Call::to_rtr, Call::to_rts}) {
    CAPTURE(static_cast<int>(call));
    End a("a0");
    const End b("b0");
    wire.left.fail(call, ETIMEDOUT);
    Error error;
    const bool ready = a.pair->to_init(a.settings, error) &&
                       a.pair->to_rtr(a.settings, a.terms, b.terms, b.terms.data, error) &&
                       a.pair->to_rts(a.settings, 7, error);
    CHECK(!ready);
    CHECK(a.pair->failed());
    CHECK(error.code == ETIMEDOUT);
    CHECK(error.text.starts_with("ibv_modify_qp to "));
    CHECK(error.text.find("a0: Connection timed out") != std::string::npos);
  }
}

TEST_CASE("queue pair: ERR is refused, and the device is gone") {
  Wire wire;
  Pair pair;
  wire.left.fail(Call::to_error, EINVAL);
  Error error;
  CHECK(!pair.a.pair->to_error(nullptr, error));
  CHECK(pair.a.pair->failed());
  CHECK(pair.a.pair->phase() != QueuePhase::error);
  wire.right.unplug();
  CHECK(pair.b.pair->to_error(nullptr, error));
  CHECK(pair.b.device->gone());
  CHECK(pair.b.pair->destroy());
}

TEST_CASE("queue pair: a device that takes its time with ERR keeps nobody waiting") {
  for (const bool destroyed : {false, true}) {
    CAPTURE(destroyed);
    Wire wire;
    std::atomic<bool> hangs{true};
    wire.network.on_error = [&hangs] {
      while (hangs) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    Pair pair;
    Reaper reaper;
    const Elsewhere elsewhere = [&reaper](std::function<void()> task) {
      reaper.run(std::move(task));
    };
    Memory from(pair.a.device, 64);
    Memory to(pair.b.device, 64);
    Error error;
    CHECK_FALSE(pair.a.pair->to_error(elsewhere, error));  // it would never return
    CHECK_FALSE(pair.a.pair->to_error(elsewhere, error));
    CHECK(error.text.empty());
    CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::failed);
    CHECK((!destroyed || !pair.a.pair->destroyed(elsewhere)));  // after that
    hangs = false;
    while (!(destroyed ? pair.a.pair->destroyed(elsewhere)
                       : pair.a.pair->to_error(elsewhere, error))) {
      std::this_thread::yield();
    }
    CHECK(pair.a.pair->phase() == QueuePhase::error);
  }
}

TEST_CASE("queue pair: a device that refuses to destroy keeps it") {
  Wire wire;
  Pair pair;
  wire.left.fail(Call::destroy_qp, EBUSY);
  CHECK(!pair.a.pair->destroy());
  CHECK(pair.a.device->refused() == 1);
  CHECK(!pair.a.device->gone());
}

TEST_CASE("queue pair: a provider that refuses inline data gives none") {
  Wire wire;
  const End end("a0", {8, 8, 4096});
  CHECK(end.pair->inline_bytes() == 0);
}

TEST_CASE("queue pair: a lost acknowledgement: the bytes are there, and the sender has an error") {
  Wire wire;
  Pair pair;
  Memory from(pair.a.device, 64);
  Memory to(pair.b.device, 64);
  from.bytes[0] = std::byte{9};
  wire.right.lose_acknowledgements = true;
  CHECK(pair.a.pair->post_write(write_to(from, to, 64)) == Posted::done);
  wire.network.run();
  CHECK(to.bytes[0] == std::byte{9});
  CHECK(pair.a.completions().at(0).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(pair.b.completions().at(0).status == IBV_WC_SUCCESS);
  CHECK(pair.b.pair->ask_state() == IBV_QPS_RTS);
}

TEST_CASE("queue pair: a key that the peer does not have is the memory's fault") {
  Wire wire;
  Pair pair;
  Memory from(pair.a.device, 64);
  Memory to(pair.b.device, 64);
  Write write = write_to(from, to, 64);
  write.remote_key ^= 1U << 20U;
  CHECK(pair.a.pair->post_write(write) == Posted::done);
  wire.network.run();
  CHECK(fault_of(pair.a.completions().at(0).status) == Fault::memory);
}

TEST_CASE("completion queue: an overrun, or a device that is gone, is told") {
  Wire wire;
  Pair pair;
  wire.left.fail(Call::poll_cq, EIO);
  std::array<Completion, 4> found{};
  CHECK(pair.a.queue->poll(found) < 0);
}

TEST_CASE("completion queue: events wake whoever armed it, once") {
  Wire wire;
  Pair pair;
  Error error;
  const auto queue = CompletionQueue::make(pair.a.device, 16, true, error);
  REQUIRE(queue != nullptr);
  CHECK(queue->fd() >= 0);
  CHECK(queue->arm() == 0);
  queue->drain_events();  // none: returns at once
}
