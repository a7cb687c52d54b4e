// Random schedules of loss, duplication, stale packets and dying paths against both cores.
//
// Each schedule has a seed: FABRIC_SIM_SEED=N replays one alone, FABRIC_SIM_RUNS=N sets how many.
// Checked on each: every byte right, each message once and in posted order, no completion before
// the receiver is whole, nothing written into a buffer that was handed back, and an end in bounded
// time as paths keep coming back.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/receive_core.h"
#include "core/send_core.h"

using namespace fabric::core;

namespace {

constexpr std::uint32_t kChunk = 4096;

struct World {
  struct Packet {
    Epoch epoch = 0;
    ChunkHeader header;
    std::vector<std::byte> payload;
  };
  struct Answer {  // from the receiver
    Epoch epoch = 0;
    int kind = 0;  // 0 grant, 1 acknowledgement, 2 state
    Grant grant;
    Acknowledgement acknowledgement;
    ReceiverState state;
  };
  struct Path {
    bool sender_live = false;
    bool receiver_live = false;
    Epoch epoch = 0;
    std::deque<Packet> wire;  // in order, as a connection keeps it
    std::deque<Answer> back;
    std::vector<Packet> old;  // of retired connections: may turn up at any time
  };
  struct Control {  // fences and answers: may be lost, repeated, late
    bool to_receiver = true;
    PathIndex path = 0;
    Epoch epoch = 0;
    ReceiverState state;
  };

  std::mt19937_64 random;
  SendCore sender{kChunk};
  ReceiveCore receiver{kChunk};
  std::vector<PathIndex> indices;
  std::array<Path, kMaxPaths> paths;
  std::vector<Control> control;
  struct Sent {
    std::vector<std::byte> bytes;
    Sequence sequence = 0;
    bool done = false;
    bool copied = false;
  };
  struct Received {
    std::vector<std::byte> bytes;
    GroupId group = 0;
    bool done = false;
  };
  std::vector<std::unique_ptr<Sent>> sent;
  std::vector<std::unique_ptr<Received>> received;
  std::size_t total = 0;
  std::string wrong;

  explicit World(std::uint64_t seed) : random(seed) {
    const std::size_t rails = 1 + pick(3);
    for (std::size_t i = 0; i < rails; ++i) {
      indices.push_back(path_index(i, i));
    }
    if (rails > 1) {
      indices.push_back(path_index(0, 1));
    }
    total = 3 + pick(12);
  }

  std::size_t pick(std::size_t below) { return random() % below; }
  PathIndex any() { return indices[pick(indices.size())]; }
  void expect(bool holds, const char* what) {
    if (!holds && wrong.empty()) {
      wrong = what;
    }
  }

  void post_send() {
    if (sent.size() == total) {
      return;
    }
    auto one = std::make_unique<Sent>();
    const std::size_t sizes[] = {0, 1, 100, kCopyLimit, kCopyLimit + 1, 3 * kChunk, 40'000};
    one->bytes.resize(sizes[pick(7)]);
    for (std::byte& byte : one->bytes) {
      byte = static_cast<std::byte>(random());
    }
    one->copied = one->bytes.size() <= kCopyLimit;
    std::vector<std::byte> mine = one->bytes;
    const auto sequence = one->copied ? sender.post(mine.data(), mine.size(), 0)
                                      : sender.post(one->bytes.data(), one->bytes.size(), 0);
    std::fill(mine.begin(), mine.end(), std::byte{0});  // copied means copied
    if (sequence) {
      one->sequence = *sequence;
      sent.push_back(std::move(one));
    }
  }

  void post_receive() {
    if (received.size() == total) {
      return;
    }
    auto one = std::make_unique<Received>();
    one->bytes.resize(48'000);
    Buffer buffer;
    buffer.data = one->bytes.data();
    buffer.slot.size = one->bytes.size();
    one->group = receiver.post(std::array{buffer});
    received.push_back(std::move(one));
  }

  void connect(PathIndex index) {
    Path& path = paths[index];
    if (path.sender_live) {
      return;
    }
    const Epoch epoch = sender.dial(index);
    if (pick(4) == 0) {
      return;  // the hello is lost
    }
    if (path.receiver_live && receiver.open(index)) {
      retire(index);
    }
    if (!receiver.admit(index, epoch)) {
      return;
    }
    path.receiver_live = true;
    path.epoch = epoch;
    path.wire.clear();
    path.back.clear();
    if (pick(4) == 0) {
      return;  // the welcome is lost: the receiver has a connection that the sender has not
    }
    path.sender_live = true;
    path.back.push_back({epoch, 2, {}, {}, receiver.state()});
    receiver.clear_output();
  }

  // The receiver drains what it holds of a connection, keeps whole chunks, closes.
  void retire(PathIndex index) {
    Path& path = paths[index];
    const std::size_t kernel_has = path.wire.empty() ? 0 : pick(path.wire.size() + 1);
    for (std::size_t i = 0; i < kernel_has; ++i) {
      deliver(index, path.wire.front());
      path.wire.pop_front();
    }
    for (Packet& packet : path.wire) {
      path.old.push_back(std::move(packet));
    }
    path.wire.clear();
    receiver.retire(index);
    path.receiver_live = false;
  }

  void break_path(PathIndex index) {
    Path& path = paths[index];
    if (path.sender_live && pick(3) != 0) {
      path.sender_live = false;
      path.back.clear();
      sender.fail(index);
      sender.quiesced(index);
    } else if (path.receiver_live) {
      retire(index);  // the receiver gave it up and tells; the answers in it are lost
      path.back.clear();
      if (path.sender_live) {
        path.sender_live = false;
        sender.fail(index);
        sender.quiesced(index);
      }
      state_everywhere();
    }
  }

  void state_everywhere() {
    for (const PathIndex index : indices) {
      if (paths[index].sender_live && paths[index].receiver_live) {
        paths[index].back.push_back({paths[index].epoch, 2, {}, {}, receiver.state()});
      }
    }
    receiver.clear_output();
  }

  void deliver(PathIndex index, const Packet& packet) {
    const Placement placement = receiver.begin(index, packet.epoch, packet.header);
    if (placement.verdict == Verdict::refuse) {
      expect(false, "a chunk was refused");
    }
    if (placement.verdict == Verdict::place) {
      std::copy(packet.payload.begin(), packet.payload.end(), placement.data);
    }
    if (placement.verdict == Verdict::place || placement.verdict == Verdict::duplicate) {
      receiver.finish(index);
    }
  }

  void transmit(PathIndex index) {
    Path& path = paths[index];
    if (!path.sender_live) {
      return;
    }
    if (const auto out = sender.take(index)) {
      Packet packet{path.epoch, out->header, {}};
      if (out->header.length != 0) {
        packet.payload.assign(out->data, out->data + out->header.length);
      }
      sender.written(index);
      path.wire.push_back(std::move(packet));
    }
  }

  void receive(PathIndex index) {
    Path& path = paths[index];
    if (!path.old.empty() && pick(4) == 0) {
      // What a retired connection still had; twice, to see that nothing depends on its absence.
      const Packet packet = path.old[pick(path.old.size())];
      const Placement placement = receiver.begin(index, packet.epoch, packet.header);
      expect(placement.verdict == Verdict::stale, "a stale packet was not seen as such");
    }
    if (path.receiver_live && !path.wire.empty()) {
      deliver(index, path.wire.front());
      if (pick(8) == 0) {
        path.old.push_back(path.wire.front());
        path.old.back().epoch = path.old.back().epoch == 0 ? 0 : path.old.back().epoch - 1;
      }
      path.wire.pop_front();
    }
  }

  void answer(PathIndex index) {
    Path& path = paths[index];
    if (path.receiver_live && path.sender_live) {
      while (const auto next = receiver.next_acknowledgement()) {
        path.back.push_back({path.epoch, 1, {}, *next, {}});
      }
      while (const auto grant = receiver.next_grant()) {
        path.back.push_back({path.epoch, 0, *grant, {}, {}});
      }
    }
  }

  void hear(PathIndex index) {
    Path& path = paths[index];
    if (path.back.empty()) {
      return;
    }
    const Answer next = path.back.front();
    const int times = pick(6) == 0 ? 2 : 1;
    path.back.pop_front();
    for (int i = 0; i < times; ++i) {
      if (next.kind == 0) {
        sender.on_grant(next.grant);
      } else if (next.kind == 1) {
        sender.on_acknowledge(next.acknowledgement.group, next.acknowledgement.slot);
      } else {
        sender.on_state(next.state);
      }
    }
  }

  void fences() {
    for (const PathIndex index : indices) {
      if (sender.fencing(index)) {
        control.push_back({true, index, sender.fence(index), {}});
      }
    }
  }

  void run_control() {
    if (control.empty()) {
      return;
    }
    const std::size_t at = pick(control.size());
    const Control message = control[at];
    if (pick(5) != 0) {  // else it stays and comes once more
      control.erase(control.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (pick(5) == 0) {
      return;  // lost
    }
    if (message.to_receiver) {
      if (receiver.fence(message.path, message.epoch)) {
        retire(message.path);
        paths[message.path].back.clear();
        if (paths[message.path].sender_live) {
          expect(false, "a fence hit a living connection");
        }
        state_everywhere();
      }
      ReceiverState state = receiver.state();
      for (GroupReport& group : state.groups) {
        if (pick(3) == 0) {
          group.slots[0].have.clear();  // a report may leave chunks out
        }
      }
      control.push_back({false, message.path, message.epoch, state});
    } else {
      sender.on_fence_answer(message.path, message.epoch, message.state);
    }
    if (control.size() > 64) {
      control.erase(control.begin(), control.begin() + 32);
    }
  }

  void complete() {
    for (std::size_t i = 0; i < received.size(); ++i) {
      Received& one = *received[i];
      if (!one.done && receiver.done(one.group)) {
        one.done = true;
        expect(i < sent.size(), "received before sent");
        if (i < sent.size()) {
          const std::vector<std::byte>& want = sent[i]->bytes;
          expect(receiver.received(one.group, 0) == want.size(), "wrong size");
          expect(std::equal(want.begin(), want.end(), one.bytes.begin()), "wrong bytes");
        }
        receiver.forget(one.group);
        std::fill(one.bytes.begin(), one.bytes.end(), std::byte{0xcd});  // recycled
      } else if (one.done) {
        expect(one.bytes[0] == std::byte{0xcd} && one.bytes[4096] == std::byte{0xcd} &&
                   one.bytes[39'999] == std::byte{0xcd},
               "a late packet landed in a recycled buffer");
      }
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      Sent& one = *sent[i];
      if (!one.done && sender.done(one.sequence)) {
        one.done = true;
        expect(one.copied || (i < received.size() && received[i]->done),
               "a send completed before the receiver was whole");
        sender.forget(one.sequence);
      }
    }
  }

  [[nodiscard]] bool finished() const {
    return sent.size() == total && received.size() == total && !sender.unacknowledged() &&
           std::all_of(received.begin(), received.end(), [](const auto& one) { return one->done; });
  }

  // The number of steps it took; 0: it did not end.
  int run() {
    for (int step = 1; step < 200'000 && wrong.empty(); ++step) {
      const bool calm = step > 3000;  // then faults cease, and it has to end
      switch (pick(10)) {
        case 0:
          post_send();
          break;
        case 1:
          post_receive();
          break;
        case 2:
          connect(any());
          break;
        case 3:
          if (!calm && pick(3) == 0) {
            break_path(any());
          }
          break;
        case 4:
          fences();
          break;
        case 5:
          run_control();
          break;
        case 6:
          answer(any());
          break;
        case 7:
          hear(any());
          break;
        case 8:
          receive(any());
          break;
        default:
          transmit(any());
          break;
      }
      complete();
      if (finished()) {
        return step;
      }
    }
    return 0;
  }
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

TEST_CASE("random schedules") {
  const std::uint64_t only = from_environment("FABRIC_SIM_SEED", 0);
  const std::uint64_t runs = only != 0 ? 1 : from_environment("FABRIC_SIM_RUNS", 10'000);
  const std::uint64_t base = only != 0 ? only : std::random_device{}() | 1U;
  for (std::uint64_t i = 0; i < runs; ++i) {
    const std::uint64_t seed = base + i;
    World world(seed);
    const int steps = world.run();
    if (steps == 0 || !world.wrong.empty()) {
      FAIL("FABRIC_SIM_SEED=" << seed << ": "
                              << (world.wrong.empty() ? "it did not end" : world.wrong));
    }
  }
  MESSAGE("seeds " << base << " to " << base + runs - 1);
}
