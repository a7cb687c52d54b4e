// The NICs of one-sided paths. They do what they may: read a message's memory again and again until
// its completion, write in any order, in parts and twice, and go on writing for a connection that
// both ends have given up, until the receiver's queue pair is confirmed to be in the error state.
#include <algorithm>

#include "tests/sim/play.h"
#include "verbs/cts_line.h"
#include "verbs/immediate.h"
#include "verbs/progress_line.h"

namespace fabric::sim {

using namespace fabric::core;

namespace {

constexpr std::size_t kOldNotices = 16;

Landed notice_of(const Write& write, bool split) {
  const ChunkHeader& header = write.chunk.header;
  return verbs::decode_immediate(
      verbs::encode_immediate(header.group, header.slot, write.chunk.chunk, write.chunk.last),
      split ? 0 : header.length);
}

}  // namespace

// The same whenever it is asked.
PathKind World::kind_of(PathIndex index, Epoch epoch) const {
  if (!mixed_) {
    return one_sided_ ? PathKind::one_sided : PathKind::stream;
  }
  if (epoch > streams_until_[index]) {
    return PathKind::one_sided;
  }
  const std::uint64_t mixed =
      (kinds_ ^ (std::uint64_t{index} << 32U | epoch)) * 0x9e3779b97f4a7c15ULL;
  return (mixed >> 63U) != 0 ? PathKind::one_sided : PathKind::stream;
}

void World::post_write(PathIndex index) {
  Path& path = paths_[index];
  const auto chunk = sender_.take(index);
  if (!chunk) {
    saw(Seen::no_credit, sender_.has_chunk() && sender_.credits(index) == 0);
    return;
  }
  took(index, *chunk);
  finding_.expect(!chunk->header.eager, "a write without a CTS");
  finding_.expect(chunk->header.length == 0 || chunk->region == chunk->data - chunk->header.offset,
                  "a write from memory that is registered otherwise");
  Write& write = path.writes.emplace_back();
  write.chunk = *chunk;
  write.epoch = path.epoch;
  write.payload.assign(chunk->data, chunk->data + chunk->header.length);
  const auto waiting = std::count_if(path.writes.begin(), path.writes.end(),
                                     [](const Write& one) { return !one.notified; });
  finding_.expect(static_cast<std::uint64_t>(waiting) <= path.credits + doubled_[index],
                  "more writes than posted receives");
}

void World::run_nic(PathIndex index) {
  Path& path = paths_[index];
  if (!path.old_notices.empty() && random_.one_in(4)) {
    const auto& [epoch, landed] = path.old_notices[random_.pick(path.old_notices.size())];
    finding_.expect(receiver_.land(index, epoch, landed).verdict == Verdict::stale,
                    "a stale notification was not seen as such");
  }
  for (std::size_t tries = 1 + random_.pick(4); tries > 0 && !path.writes.empty(); --tries) {
    work_on(index, path.writes[random_.pick(path.writes.size())]);
    if (finding_.any()) {
      return;
    }
  }
  complete(index);
}

void World::work_on(PathIndex index, Write& write) {
  Path& path = paths_[index];
  if (write.readable && (!write.read || random_.one_in(4))) {
    finding_.expect(std::equal(write.payload.begin(), write.payload.end(), write.chunk.data),
                    "a buffer was given back while a transport read it");
    write.read = true;
    return;
  }
  const bool living = path.receiver_live && path.epoch == write.epoch;
  const bool reaches = !path.cut && (living || path.dying == write.epoch);
  if (!write.read || !reaches || write.notified) {
    return;
  }
  if (!write.arrived) {
    land(index, write, random_.pick(2));
    saw(Seen::wrote_while_retired, !living && !path.sender_live);
    write.arrived = write.landed[0] && write.landed[1] && random_.one_in(2);
  } else {
    poll(index, write);
  }
}

// One half of it.
void World::land(PathIndex index, Write& write, std::size_t half) {
  finding_.expect(write.epoch >= paths_[index].answered,
                  "a write landed after a fence was answered");
  std::byte* const data = job_.landing(write.chunk, receiver_rail(index));
  const std::size_t middle = write.payload.size() / 2;
  if (data != nullptr) {
    const auto begin = write.payload.begin();
    half == 0 ? std::copy(begin, begin + static_cast<std::ptrdiff_t>(middle), data)
              : std::copy(begin + static_cast<std::ptrdiff_t>(middle), write.payload.end(),
                          data + middle);
  }
  write.landed[half] = true;
}

// The receiver's core hears of it.
void World::poll(PathIndex index, Write& write) {
  const ChunkHeader& header = write.chunk.header;
  const bool full = header.length == kChunk && !write.chunk.last;
  const Landed landed = notice_of(write, full && random_.one_in(2));
  std::uint8_t& rails = landed_rails_[header.group];
  rails = static_cast<std::uint8_t>(rails | 1U << receiver_rail(index));
  std::uint64_t& chunks = landed_chunks_[{header.group, header.slot}];
  saw(Seen::last_landed_first,
      write.chunk.last && chunks != (std::uint64_t{1} << write.chunk.chunk) - 1);
  chunks |= std::uint64_t{1} << write.chunk.chunk;
  finding_.expect(receiver_.land(index, write.epoch, landed).verdict == Verdict::place,
                  "a landing that was not wanted");
  finding_.expect(receiver_.landed_rails(header.group) == rails, "a NIC that landed is missed");
  if (random_.one_in(6)) {
    ++doubled_[index];
    finding_.expect(receiver_.land(index, write.epoch, landed).verdict == Verdict::duplicate,
                    "a notification counted twice");
    saw(Seen::landed_twice);
  }
  write.notified = true;
  if (paths_[index].receiver_live) {
    delivered_ |= bit(index);
  }
}

// In posted order, as a queue pair completes what its peer has.
void World::complete(PathIndex index) {
  Path& path = paths_[index];
  for (Write& write : path.writes) {
    if (write.completed || path.cut) {
      continue;
    }
    if (!write.arrived || !path.sender_live || random_.one_in(3)) {
      break;
    }
    sender_.written(index);
    write.completed = true;
    write.readable = false;
  }
  while (!path.writes.empty() && path.writes.front().completed && path.writes.front().notified) {
    path.writes.pop_front();
  }
}

// The sender's queue pair is flushed: its NIC reads no more. What it read may be on its way.
void World::flush(PathIndex index) {
  Path& path = paths_[index];
  if (!path.flushing) {
    return;
  }
  path.flushing = false;
  std::erase_if(path.writes, [](const Write& write) { return !write.read; });
  for (Write& write : path.writes) {
    write.readable = false;
  }
  sender_.quiesced(index);
}

// The receiver's queue pair is in the error state, and all that had come is polled.
void World::confirm(PathIndex index) {
  Path& path = paths_[index];
  if (!path.dying) {
    return;
  }
  const Epoch epoch = *path.dying;
  for (Write& write : path.writes) {
    if (write.epoch == epoch && write.arrived && !write.notified) {
      poll(index, write);
    }
    if (path.old_notices.size() < kOldNotices) {
      path.old_notices.emplace_back(write.epoch, notice_of(write, false));
    }
  }
  if (!path.sender_live && !path.flushing) {
    std::erase_if(path.writes, [&](const Write& write) { return write.epoch == epoch; });
  }
  path.dying.reset();
  finding_.expect(receiver_.retired(index, epoch), "a confirmation that was not wanted");
  state_everywhere();
}

// What the receiver tells over a one-sided path: lines that its NIC writes.
void World::answer_in_lines(PathIndex index) {
  Path& path = paths_[index];
  bool news = receiver_.landed(index) != path.told_landed || receiver_.next_done_below();
  while (receiver_.next_acknowledgement()) {
    news = true;
  }
  if (news) {
    path.told_landed = receiver_.tell_landed(index);
    const Progress progress = receiver_.progress();
    path.back.emplace_back(verbs::encode_progress({progress, path.told_landed, path.epoch, index}));
    if (progress.beyond) {
      path.back.emplace_back(receiver_.state());
    }
  }
  if (random_.one_in(4)) {
    return;  // the CTS come later, perhaps on another path
  }
  while (const auto cts = receiver_.next_cts()) {
    Lines lines;
    for (std::uint8_t slot = 0; slot < cts->count; ++slot) {
      lines.push_back(verbs::encode_cts({cts->group, cts->count, slot, cts->slots[slot]}));
    }
    path.back.emplace_back(std::move(lines));
  }
}

void World::take_lines(const Lines& lines) {
  Cts cts;
  for (const verbs::Line& line : lines) {
    const auto part = verbs::decode_cts(line);
    if (!part) {
      finding_.expect(false, "a CTS line was not understood");
      return;
    }
    cts.group = part->group;
    cts.count = part->count;
    cts.slots[part->index] = part->slot;
  }
  sender_.on_cts(cts);
}

void World::take_progress(const verbs::Line& line) {
  const auto said = verbs::decode_progress(line);
  if (!said) {
    finding_.expect(false, "a progress line was not understood");
    return;
  }
  sender_.on_progress(said->progress);
  sender_.on_landed(said->path, said->epoch, said->landed);
}

// The connection stands at both ends.
void World::connect_one_sided(PathIndex index) {
  Path& path = paths_[index];
  path.told_landed = 0;
  doubled_[index] = 0;
  std::erase_if(path.writes, [&](const Write& write) { return write.epoch != path.epoch; });
  sender_.one_sided(index, path.credits);
}

// So many receives, one after the other, before the schedule begins: then the number of a group
// wraps in the middle of it.
void World::begin_at(GroupId group) {
  const PathIndex index = indices_.front();
  const Epoch epoch = sender_.dial(index);
  sender_.one_sided(index, 1);
  receiver_.admit(index, epoch, PathKind::one_sided, 1);
  std::byte from{1};
  std::byte to{};
  for (GroupId next = 0; next < group; ++next) {
    Buffer buffer;
    buffer.data = &to;
    buffer.slot.size = 1;
    receiver_.post({&buffer, 1});
    sender_.on_cts(*receiver_.next_cts());
    const auto sequence = sender_.post(&from, 1, 0, 0, NoCopy::refuse, {&from, false});
    const auto chunk = sender_.take(index);
    to = *chunk->data;
    sender_.written(index);
    const auto landed = static_cast<std::uint16_t>(next % kLandedGroups);
    receiver_.land(index, epoch, {.group = landed, .length = 1, .last = true});
    receiver_.forget(next);
    while (receiver_.next_acknowledgement()) {
    }
    receiver_.next_done_below();
    sender_.on_progress(receiver_.progress());
    finding_.expect(receiver_.credits_due() == bit(index), "a credit is kept back");
    sender_.on_landed(index, epoch, receiver_.tell_landed(index));
    finding_.expect(sender_.done(*sequence), "a message before the schedule is not done");
    sender_.forget(*sequence);
  }
  const Epoch fence = sender_.fail(index);
  receiver_.begin_retire(index);
  receiver_.retired(index, epoch);
  sender_.on_fence_answer(index, fence, receiver_.state());
  receiver_.clear_output();
  sender_.clear_delivered();
}

}  // namespace fabric::sim
