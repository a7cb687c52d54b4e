// What travels over the paths of the simulated comm: chunks, answers, fences.
#include <algorithm>
#include <bit>

#include "tests/sim/play.h"

namespace fabric::sim {

using namespace fabric::core;

namespace {

constexpr std::size_t kKept = 64;    // control messages that may turn up again
constexpr std::size_t kWindow = 12;  // chunks that fit into one connection

}  // namespace

World::World(std::uint64_t seed)
    : random_(seed),
      one_sided_(random_.one_in(3)),
      mixed_(!one_sided_ && random_.one_in(2)),
      kinds_(random_.pick(~std::size_t{0})),
      sender_(kChunk, pool()),
      job_(random_, sender_, receiver_, finding_, one_sided_ || mixed_),
      steering_(random_, indices_) {
  streams_until_.fill(~Epoch{0});
  pings_ = random_.one_in(2);
  by_policy_ = random_.one_in(2);
  const bool eager = !one_sided_ && !random_.one_in(3);
  lazy_ = eager && random_.one_in(2);
  saw(Seen::one_sided, one_sided_);
  saw(Seen::mixed, mixed_);
  saw(Seen::by_policy, by_policy_);
  saw(Seen::group, job_.has_group());
  saw(Seen::several_ranks, job_.has_ranks());
  saw(Seen::empty_message, job_.has_empty());
  saw(Seen::short_message, job_.has_short());
  saw(Seen::device_source, job_.sends_device_memory());
  saw(Seen::device_target, job_.fills_device_memory());
  const std::size_t rails =
      random_.one_in(6) ? 5 + random_.pick(kMaxRails - 4) : 1 + random_.pick(3);
  for (std::size_t i = 0; i < rails; ++i) {
    indices_.push_back(path_index(i, i));
  }
  if (rails > 1) {
    indices_.push_back(path_index(0, 1));
  }
  if ((one_sided_ || mixed_) && random_.one_in(8)) {
    begin_at(kLandedGroups - 1 - random_.pick(12));
    saw(Seen::group_wrap);
  }
  sender_.allow_eager(eager);
  receiver_.expect_eager(eager);
}

// Where small messages are copied to. On a stream any memory does.
CopyPool* World::pool() {
  constexpr std::array<std::size_t, 3> kLargest{0, 400, kCopyLimit};
  if (one_sided_ || mixed_ || random_.one_in(4)) {
    pool_.emplace(kLargest[random_.pick(kLargest.size())], 1 + random_.pick(20));
  }
  return pool_ ? &*pool_ : nullptr;
}

void World::transmit_by_policy() {
  PathSet blocked = 0;
  const PathSet alive = live(End::sender);
  each(alive, [&](PathIndex index) {
    if (paths_[index].leaving && random_.one_in(2)) {
      transmit(index);
    }
    if (paths_[index].leaving || paths_[index].wire.size() >= kWindow ||
        sender_.credits(index) == 0) {
      blocked |= bit(index);
    }
  });
  saw(Seen::all_without_weight, steering_.weightless(alive));
  saw(Seen::only_untrusted, steering_.untrusted(alive));
  const PathSet one_sided = live_one_sided();
  if (sender_.needs_one_sided()) {
    steering_.with_device_memory();
  }
  const auto index = steering_.next(alive, one_sided, blocked);
  if (index) {
    finding_.expect(paths_[*index].sender_live, "a dead path was chosen");
    finding_.expect((one_sided & bit(*index)) != 0 || !steering_.carries(one_sided),
                    "a stream carries beside a one-sided path with a weight");
    transmit(*index);
  }
}

// In two steps, so that a failure or an acknowledgement may fall between them.
void World::transmit(PathIndex index) {
  Path& path = paths_[index];
  if (!path.sender_live || (!path.leaving && path.wire.size() >= kWindow)) {
    return;
  }
  if (path.one_sided) {
    post_write(index);
    return;
  }
  if (!path.leaving) {
    const auto chunk = sender_.take(index);
    if (!chunk) {
      saw(Seen::waits_for_one_sided, sender_.has_chunk());
      return;
    }
    finding_.expect(!chunk->device || chunk->header.length == 0, "a stream reads device memory");
    path.leaving = Leaving{*chunk, {chunk->data, chunk->data + chunk->header.length}};
    took(index, *chunk);
    if (random_.one_in(2)) {
      return;
    }
  }
  Leaving leaving = std::move(*path.leaving);
  path.leaving.reset();
  finding_.expect(std::equal(leaving.payload.begin(), leaving.payload.end(), leaving.chunk.data),
                  "a buffer was given back while a transport read it");
  sender_.written(index);
  path.wire.push_back(
      {path.epoch, leaving.chunk.header, std::move(leaving.payload), leaving.chunk.again});
}

void World::took(PathIndex index, const Outgoing& chunk) {
  const ChunkHeader& header = chunk.header;
  steering_.carried(index, header.length);
  PathSet& used = used_[{header.group, header.slot}];
  used |= bit(index);
  saw(Seen::striped, (used & (used - 1)) != 0);
  std::uint8_t nics = 0;
  each(used,
       [&](PathIndex path) { nics = static_cast<std::uint8_t>(nics | 1U << receiver_rail(path)); });
  saw(Seen::five_nics, std::popcount(nics) >= 5);
  Replayed& replayed = chunks_[{header.group, header.slot, header.offset}];
  const PathKind kind = paths_[index].one_sided ? PathKind::one_sided : PathKind::stream;
  replayed.times += chunk.again ? 1 : 0;
  if (chunk.again) {
    to_send_again_ -= std::min<std::uint64_t>(to_send_again_, header.length);
  }
  saw(Seen::kind_changed, chunk.again && replayed.kind != kind);
  saw(Seen::fails_again, replayed.times == 2);
  saw(Seen::fails_third, replayed.times == 3);
  replayed.kind = kind;
}

// The first half of a chunk lands.
void World::begin(PathIndex index, Packet packet) {
  const Placement placement = receiver_.begin(index, packet.epoch, packet.header);
  finding_.expect(placement.verdict != Verdict::refuse, "a chunk was refused");
  finding_.expect(placement.verdict != Verdict::stale, "a chunk of a living connection is stale");
  std::byte* const data = placement.verdict == Verdict::place ? placement.data : nullptr;
  saw(Seen::guess_failed, packet.header.eager && placement.verdict == Verdict::duplicate);
  if (data != nullptr) {
    std::copy_n(packet.payload.begin(), packet.payload.size() / 2, data);
  }
  paths_[index].arriving = Arriving{std::move(packet), data};
}

// The second half.
void World::finish(PathIndex index) {
  const Arriving arriving = std::move(*paths_[index].arriving);
  paths_[index].arriving.reset();
  const Packet& packet = arriving.packet;
  if (arriving.data != nullptr) {
    const std::size_t half = packet.payload.size() / 2;
    std::copy(packet.payload.begin() + static_cast<std::ptrdiff_t>(half), packet.payload.end(),
              arriving.data + half);
  }
  if (!finding_.any()) {
    receiver_.finish(index);
  }
}

void World::receive(PathIndex index) {
  Path& path = paths_[index];
  run_nic(index);
  if (!path.old.empty() && random_.one_in(4)) {
    // What a retired connection still had; twice, to see that nothing depends on its absence.
    const Packet& packet = path.old[random_.pick(path.old.size())];
    const Placement placement = receiver_.begin(index, packet.epoch, packet.header);
    finding_.expect(placement.verdict == Verdict::stale, "a stale chunk was not seen as such");
    saw(Seen::stale_packet);
  }
  if (!path.receiver_live || path.cut) {
    return;
  }
  if (path.arriving) {
    finish(index);
    delivered_ |= bit(index);
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
    delivered_ |= bit(index);
  }
}

void World::answer(PathIndex index) {
  Path& path = paths_[index];
  if (!path.receiver_live || !path.sender_live) {
    return;
  }
  const bool urgent = receiver_.urgent() || (receiver_.credits_due() & bit(index)) != 0;
  if (!urgent && !random_.one_in(lazy_ ? 40 : 8)) {
    return;  // it may wait, and be told with more
  }
  if (path.one_sided) {
    answer_in_lines(index);
    return;
  }
  if (const auto below = receiver_.next_done_below()) {
    path.back.emplace_back(ReceiverState{*below, {}});
  }
  while (const auto next = receiver_.next_acknowledgement()) {
    path.back.emplace_back(*next);
  }
  if (random_.one_in(4)) {
    return;  // the CTS come later, perhaps on another path
  }
  while (const auto cts = receiver_.next_cts()) {
    path.back.emplace_back(*cts);
  }
}

void World::take_answers(PathIndex index) {
  Path& path = paths_[index];
  if (path.back.empty() || path.cut) {
    return;
  }
  const Answer next = std::move(path.back.front());
  path.back.pop_front();
  for (int times = random_.one_in(6) ? 2 : 1; times > 0; --times) {
    saw(Seen::duplication, times == 2);
    if (const auto* cts = std::get_if<Cts>(&next)) {
      sender_.on_cts(*cts);
    } else if (const auto* acknowledgement = std::get_if<Acknowledgement>(&next)) {
      sender_.on_acknowledge(acknowledgement->group, acknowledgement->slot);
    } else if (const auto* lines = std::get_if<Lines>(&next)) {
      take_lines(*lines);
    } else if (const auto* line = std::get_if<verbs::Line>(&next)) {
      take_progress(*line);
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
    if (paths_[index].telling && receiver_.fence_done(index, paths_[index].epoch + 1)) {
      promise(index, paths_[index].epoch + 1);
      control_.push_back({false, true, index, paths_[index].epoch + 1, receiver_.state()});
    }
  }
}

// A fence is answered: nothing of an epoch before it lands any more.
void World::promise(PathIndex index, Epoch epoch) {
  paths_[index].answered = std::max(paths_[index].answered, epoch);
}

void World::fence_arrives(const Control& message) {
  Path& path = paths_[message.path];
  path.floor = std::max(path.floor, message.epoch);
  path.heard = std::max(path.heard, message.epoch);
  path.telling = path.telling && path.epoch >= message.epoch;
  if (receiver_.fence(message.path, message.epoch)) {
    finding_.expect(!path.sender_live, "a fence hit a living connection");
    retire(message.path);
    state_everywhere();
  }
  if (!receiver_.fence_done(message.path, message.epoch)) {
    saw(Seen::fence_pending);
    return;  // not yet: it is asked again
  }
  promise(message.path, message.epoch);
  ReceiverState state = receiver_.state();
  for (GroupReport& group : state.groups) {
    for (SlotReport& slot : group.slots) {
      if (!one_sided_ && !mixed_ && random_.one_in(3)) {
        slot.have.clear();  // a report may leave chunks out: they come again as duplicates
      }
    }
  }
  control_.push_back({false, false, message.path, message.epoch, std::move(state)});
}

void World::run_control() {
  if (!kept_.empty() && random_.one_in(4)) {
    control_.push_back(kept_[random_.pick(kept_.size())]);  // from long ago
    saw(Seen::late_control);
  }
  if (control_.empty()) {
    return;
  }
  std::swap(control_[random_.pick(control_.size())], control_.back());
  const Control message = std::move(control_.back());
  control_.pop_back();
  const bool nothing_passes = std::all_of(indices_.begin(), indices_.end(),
                                          [&](PathIndex index) { return paths_[index].dead(); });
  if (nothing_passes || random_.one_in(5)) {
    saw(Seen::loss);
    return;
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
  const auto again = sender_.on_fence_answer(message.path, message.epoch, message.state);
  saw(Seen::replay, again && *again != 0);
  to_send_again_ += again.value_or(0);
}

}  // namespace fabric::sim
