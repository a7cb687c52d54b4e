#include "tests/sim/world.h"

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <optional>
#include <variant>
#include <vector>

#include "tests/sim/job.h"

namespace fabric::sim {

namespace {

using namespace fabric::core;

constexpr int kStormSteps = 3000;   // faults cease at the latest then
constexpr int kCalmSteps = 60'000;  // then it has to end: 5,000 right runs all did within 6,000
constexpr std::size_t kKept = 64;   // control messages that may turn up again

struct Packet {
  Epoch epoch = 0;
  ChunkHeader header;
  std::vector<std::byte> payload;
};

using Answer = std::variant<Grant, Acknowledgement, ReceiverState>;  // receiver to sender

struct Control {  // a fence, or its answer: may be lost, repeated, and late without bound
  bool to_receiver = true;
  bool unasked = false;  // the receiver answers before it is asked
  PathIndex path = 0;
  Epoch epoch = 0;
  ReceiverState state;
};

struct Arriving {
  Packet packet;
  std::byte* data = nullptr;  // where the bytes go; none: swallowed
};

struct Leaving {
  Outgoing chunk;  // its bytes belong to the core or the caller, and are read twice:
  std::vector<std::byte> payload;  // when the transport took it, and when it is done with it
};

struct Path {
  bool sender_live = false;
  bool receiver_live = false;
  bool telling = false;  // the receiver gave it up and says so until a fence comes
  Epoch epoch = 0;
  Epoch floor = 0;            // what the receiver promised: nothing below is admitted
  std::vector<Epoch> hellos;  // that may arrive late, and twice
  std::optional<Leaving> leaving;
  std::optional<Arriving> arriving;  // the first half of it is there
  std::deque<Packet> wire;           // in order, as a connection keeps it
  std::deque<Answer> back;
  std::vector<Packet> old;  // of retired connections: may turn up at any time
};

class World {
 public:
  explicit World(std::uint64_t seed);
  void run();
  [[nodiscard]] const Finding& finding() const { return finding_; }

 private:
  PathIndex any() { return indices_[random_.pick(indices_.size())]; }
  void step(bool calm);

  // Connections.
  void connect(PathIndex index);
  bool hello(PathIndex index, Epoch epoch);
  void late_hello(PathIndex index);
  void break_path(PathIndex index);
  void lose(PathIndex index);    // the sender gives it up
  void retire(PathIndex index);  // the receiver does
  void state_everywhere();

  // Chunks.
  void transmit(PathIndex index);
  void receive(PathIndex index);
  void begin(PathIndex index, Packet packet);
  void finish(PathIndex index);

  // What the receiver tells.
  void answer(PathIndex index);
  void hear(PathIndex index);
  void announce_fences();
  void run_control();
  void fence_arrives(const Control& message);

  Random random_;
  Finding finding_;
  SendCore sender_{kChunk};
  ReceiveCore receiver_{kChunk};
  Job job_;
  bool one_sided_ = false;
  std::vector<PathIndex> indices_;
  std::array<Path, kMaxPaths> paths_;
  std::vector<Control> control_;
  std::vector<Control> kept_;  // what was delivered once, to be delivered again
};

World::World(std::uint64_t seed) : random_(seed), job_(random_, sender_, receiver_, finding_) {
  one_sided_ = random_.one_in(2);
  const std::size_t rails = 1 + random_.pick(3);
  for (std::size_t i = 0; i < rails; ++i) {
    indices_.push_back(path_index(i, i));
  }
  if (rails > 1) {
    indices_.push_back(path_index(0, 1));
  }
}

void World::connect(PathIndex index) {
  Path& path = paths_[index];
  if (path.sender_live) {
    return;
  }
  const Epoch epoch = sender_.dial(index);
  if (random_.one_in(4)) {
    path.hellos.push_back(epoch);  // late, when the sender waits for it no more
    return;
  }
  if (!hello(index, epoch) || random_.one_in(4)) {
    return;  // the welcome is lost: the receiver has a connection that the sender has not
  }
  path.sender_live = true;
  path.back.emplace_back(receiver_.state());
  receiver_.clear_output();
}

// The receiver hears a hello. False: refused.
bool World::hello(PathIndex index, Epoch epoch) {
  Path& path = paths_[index];
  if (path.receiver_live && epoch > path.epoch) {
    retire(index);
  }
  if (!receiver_.admit(index, epoch)) {
    return false;
  }
  finding_.expect(epoch >= path.floor, "a connection that was fenced or retired is admitted");
  for (Packet& packet : path.wire) {
    path.old.push_back(std::move(packet));  // sent into a connection that was dead already
  }
  path.wire.clear();
  path.receiver_live = true;
  path.telling = false;
  path.floor = epoch;
  path.epoch = epoch;
  path.back.clear();
  if (random_.one_in(4)) {
    path.hellos.push_back(epoch);
  }
  return true;
}

void World::late_hello(PathIndex index) {
  Path& path = paths_[index];
  if (!path.hellos.empty() && !path.sender_live) {
    hello(index, path.hellos[random_.pick(path.hellos.size())]);
  }
}

void World::lose(PathIndex index) {
  Path& path = paths_[index];
  path.sender_live = false;
  path.leaving.reset();
  path.back.clear();
  sender_.fail(index);
  sender_.quiesced(index);
}

// The receiver takes what its kernel holds of the connection, keeps whole chunks, closes.
void World::retire(PathIndex index) {
  Path& path = paths_[index];
  const std::size_t waiting = path.wire.size() + (path.arriving ? 1 : 0);
  const std::size_t kernel_has = random_.pick(waiting + 1);
  for (std::size_t i = 0; i < kernel_has; ++i) {
    if (!path.arriving) {
      Packet packet = std::move(path.wire.front());
      path.wire.pop_front();
      begin(index, std::move(packet));
    }
    finish(index);
  }
  path.arriving.reset();
  for (Packet& packet : path.wire) {
    path.old.push_back(std::move(packet));
  }
  path.wire.clear();
  receiver_.retire(index);
  path.receiver_live = false;
  path.floor = std::max(path.floor, path.epoch + 1);
}

void World::break_path(PathIndex index) {
  Path& path = paths_[index];
  if (path.sender_live && !random_.one_in(3)) {
    lose(index);
  } else if (path.receiver_live) {
    retire(index);  // the receiver gave it up; the answers in it are lost
    path.telling = random_.one_in(2);
    if (path.sender_live && !path.telling) {
      lose(index);
    }
    state_everywhere();
  }
}

void World::state_everywhere() {
  for (const PathIndex index : indices_) {
    if (paths_[index].sender_live && paths_[index].receiver_live) {
      paths_[index].back.emplace_back(receiver_.state());
    }
  }
  receiver_.clear_output();
}

// In two steps, so that a failure or an acknowledgement may fall between them.
void World::transmit(PathIndex index) {
  Path& path = paths_[index];
  if (!path.sender_live) {
    return;
  }
  if (!path.leaving) {
    const auto chunk = sender_.take(index);
    if (!chunk) {
      return;
    }
    path.leaving = Leaving{*chunk, {chunk->data, chunk->data + chunk->header.length}};
    if (random_.one_in(2)) {
      return;
    }
  }
  Leaving leaving = std::move(*path.leaving);
  path.leaving.reset();
  finding_.expect(std::equal(leaving.payload.begin(), leaving.payload.end(), leaving.chunk.data),
                  "a buffer was given back while a transport read it");
  sender_.written(index);
  path.wire.push_back({path.epoch, leaving.chunk.header, std::move(leaving.payload)});
}

// The first half of a chunk lands.
void World::begin(PathIndex index, Packet packet) {
  std::byte* data = nullptr;
  if (one_sided_) {
    data = job_.landing(packet.header);
  } else {
    const Placement placement = receiver_.begin(index, packet.epoch, packet.header);
    finding_.expect(placement.verdict != Verdict::refuse, "a chunk was refused");
    finding_.expect(placement.verdict != Verdict::stale, "a chunk of a living connection is stale");
    data = placement.verdict == Verdict::place ? placement.data : nullptr;
  }
  if (data != nullptr) {
    std::copy_n(packet.payload.begin(), packet.payload.size() / 2, data);
  }
  paths_[index].arriving = Arriving{std::move(packet), data};
}

// The second half, and the notice of it.
void World::finish(PathIndex index) {
  const Arriving arriving = std::move(*paths_[index].arriving);
  paths_[index].arriving.reset();
  const Packet& packet = arriving.packet;
  std::byte* data = one_sided_ ? job_.landing(packet.header) : arriving.data;
  if (data != nullptr) {
    const std::size_t half = packet.payload.size() / 2;
    std::copy(packet.payload.begin() + static_cast<std::ptrdiff_t>(half), packet.payload.end(),
              data + half);
  }
  if (one_sided_) {
    const Placement placement = receiver_.begin(index, packet.epoch, packet.header);
    finding_.expect(placement.verdict == Verdict::place, "a write that was not wanted");
    if (placement.verdict != Verdict::place) {
      return;
    }
    finding_.expect(placement.data == data, "a write in the wrong place");
  }
  if (!finding_.any()) {
    receiver_.finish(index);
  }
}

void World::receive(PathIndex index) {
  Path& path = paths_[index];
  if (!path.old.empty() && random_.one_in(4)) {
    // What a retired connection still had; twice, to see that nothing depends on its absence.
    const Packet& packet = path.old[random_.pick(path.old.size())];
    const Placement placement = receiver_.begin(index, packet.epoch, packet.header);
    finding_.expect(placement.verdict == Verdict::stale, "a stale chunk was not seen as such");
  }
  if (!path.receiver_live) {
    return;
  }
  if (path.arriving) {
    finish(index);
    return;
  }
  if (path.wire.empty()) {
    return;
  }
  Packet packet = std::move(path.wire.front());
  path.wire.pop_front();
  if (random_.one_in(8) && packet.epoch > 0) {
    path.old.push_back(packet);
    --path.old.back().epoch;
  }
  begin(index, std::move(packet));
  if (!finding_.any() && !random_.one_in(3)) {
    finish(index);
  }
}

void World::answer(PathIndex index) {
  Path& path = paths_[index];
  if (!path.receiver_live || !path.sender_live) {
    return;
  }
  while (const auto next = receiver_.next_acknowledgement()) {
    path.back.emplace_back(*next);
  }
  while (const auto grant = receiver_.next_grant()) {
    path.back.emplace_back(*grant);
  }
}

void World::hear(PathIndex index) {
  Path& path = paths_[index];
  if (path.back.empty()) {
    return;
  }
  const Answer next = std::move(path.back.front());
  path.back.pop_front();
  for (int times = random_.one_in(6) ? 2 : 1; times > 0; --times) {
    if (const auto* grant = std::get_if<Grant>(&next)) {
      sender_.on_grant(*grant);
    } else if (const auto* acknowledgement = std::get_if<Acknowledgement>(&next)) {
      sender_.on_acknowledge(acknowledgement->group, acknowledgement->slot);
    } else {
      sender_.on_state(std::get<ReceiverState>(next));
    }
  }
}

void World::announce_fences() {
  for (const PathIndex index : indices_) {
    if (sender_.fencing(index)) {
      control_.push_back({true, false, index, sender_.fence(index), {}});
    }
    if (paths_[index].telling) {
      control_.push_back({false, true, index, paths_[index].epoch + 1, receiver_.state()});
    }
  }
}

void World::fence_arrives(const Control& message) {
  Path& path = paths_[message.path];
  path.floor = std::max(path.floor, message.epoch);
  path.telling = path.telling && path.epoch >= message.epoch;
  if (receiver_.fence(message.path, message.epoch)) {
    finding_.expect(!path.sender_live, "a fence hit a living connection");
    retire(message.path);
    state_everywhere();
  }
  ReceiverState state = receiver_.state();
  for (GroupReport& group : state.groups) {
    for (SlotReport& slot : group.slots) {
      if (!one_sided_ && random_.one_in(3)) {
        slot.have.clear();  // a report may leave chunks out: they come again as duplicates
      }
    }
  }
  control_.push_back({false, false, message.path, message.epoch, std::move(state)});
}

void World::run_control() {
  if (!kept_.empty() && random_.one_in(4)) {
    control_.push_back(kept_[random_.pick(kept_.size())]);  // from long ago
  }
  if (control_.empty()) {
    return;
  }
  const std::size_t at = random_.pick(control_.size());
  const Control message = std::move(control_[at]);
  control_.erase(control_.begin() + static_cast<std::ptrdiff_t>(at));
  if (random_.one_in(5)) {
    return;  // lost
  }
  if (kept_.size() < kKept) {
    kept_.push_back(message);
  } else if (random_.one_in(4)) {
    kept_[random_.pick(kKept)] = message;
  }
  if (message.to_receiver) {
    fence_arrives(message);
    return;
  }
  if (message.unasked) {
    if (paths_[message.path].sender_live && sender_.epoch(message.path) < message.epoch) {
      lose(message.path);
    }
    control_.push_back({true, false, message.path, message.epoch, {}});
  }
  sender_.on_fence_answer(message.path, message.epoch, message.state);
}

void World::step(bool calm) {
  switch (random_.pick(10)) {
    case 0:
      job_.post_send();
      break;
    case 1:
      job_.post_receive();
      break;
    case 2:
      connect(any());
      break;
    case 3:
      if (!calm && random_.one_in(3)) {
        break_path(any());
      } else if (random_.one_in(3)) {
        late_hello(any());
      }
      break;
    case 4:
      announce_fences();
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
}

void World::run() {
  // Often early: what a later failure would repair has to show.
  const int calm = 20 + static_cast<int>(random_.pick(random_.pick(kStormSteps) + 1));
  for (int at = 1; at < calm + kCalmSteps; ++at) {
    step(at > calm);
    if (finding_.any()) {
      return;
    }
    job_.complete();
    if (job_.finished()) {
      job_.check_end();
      return;
    }
  }
  finding_.expect(false, "it did not end");
}

}  // namespace

std::string play(std::uint64_t seed) {
  World world(seed);
  try {
    world.run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return world.finding().what();
}

}  // namespace fabric::sim
