// Connections of the simulated comm: made, heard late, broken, cut off, and given up by reports.
#include <algorithm>
#include <bit>

#include "tests/sim/play.h"

namespace fabric::sim {

using namespace fabric::core;

namespace {

constexpr std::size_t kMostCredits = 12;

}  // namespace

void World::connect(PathIndex index) {
  Path& path = paths_[index];
  if (path.sender_live || path.flushing ||
      (by_policy_ && steering_.reports_down(End::sender, index) && live(End::sender) != 0)) {
    return;
  }
  const Epoch epoch = sender_.dial(index);
  if (path.refused) {
    return;
  }
  if (path.cut || random_.one_in(4)) {
    path.hellos.push_back(epoch);  // late, when the sender waits for it no more
    return;
  }
  if (!hello(index, epoch) || random_.one_in(4)) {
    return;  // the welcome is lost: the receiver has a connection that the sender has not
  }
  path.sender_live = true;
  path.sender_since = now_;
  path.one_sided = kind_of(index, epoch) == PathKind::one_sided;
  if (path.one_sided) {
    connect_one_sided(index);
  }
  path.back.emplace_back(receiver_.state());
  receiver_.clear_output();
}

bool World::hello(PathIndex index, Epoch epoch) {
  Path& path = paths_[index];
  if (path.receiver_live && epoch > path.epoch) {
    retire(index);
  }
  const auto credits = static_cast<std::uint32_t>(1 + random_.pick(kMostCredits));
  if (!receiver_.admit(index, epoch, kind_of(index, epoch), credits)) {
    return false;
  }
  path.credits = credits;
  finding_.expect(!path.dying, "a connection is admitted while the one before may write");
  finding_.expect(epoch >= path.floor, "a connection that was fenced or retired is admitted");
  for (Packet& packet : path.wire) {
    path.old.push_back(std::move(packet));  // sent into a connection that was dead already
  }
  path.wire.clear();
  path.receiver_live = true;
  path.receiver_since = now_;
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
  if (!path.hellos.empty() && !path.sender_live && !path.dead()) {
    saw(Seen::late_hello);
    hello(index, path.hellos[random_.pick(path.hellos.size())]);
  }
}

// A chunk that failed on another path before is on its way over this one.
bool World::carries_again(PathIndex index) const {
  const Path& path = paths_[index];
  return (path.leaving && path.leaving->chunk.again) ||
         (path.arriving && path.arriving->packet.again) ||
         std::any_of(path.wire.begin(), path.wire.end(),
                     [](const Packet& one) { return one.again; }) ||
         std::any_of(path.writes.begin(), path.writes.end(), [&](const Write& one) {
           return one.chunk.again && one.epoch == path.epoch && !one.notified;
         });
}

// A path that the sender believes in is given up at either end. How far is it with those that were
// lost before?
void World::further_loss(PathIndex index) {
  saw(Seen::fence_again, sender_.fencing(index));
  saw(Seen::further_resending, carries_again(index));
  if (!sender_.in_flight(index)) {
    return;
  }
  if (!sender_.has_chunk()) {
    to_send_again_ = 0;
  }
  saw(Seen::further_waiting, to_send_again_ != 0);
  std::uint8_t rails = 0;
  for (const PathIndex other : indices_) {
    const Path& path = paths_[other];
    if (sender_rail(other) == sender_rail(index) || !sender_.fencing(other)) {
      continue;
    }
    const Epoch fence = sender_.fence(other);
    const bool answered = path.answered >= fence;
    saw(Seen::further_answered, answered);
    saw(Seen::further_heard, !answered && path.heard >= fence);
    saw(Seen::further_asked, !answered && path.heard < fence);
    rails = static_cast<std::uint8_t>(rails | 1U << sender_rail(other));
  }
  saw(Seen::further_two, std::popcount(rails) >= 2);
}

void World::lose(PathIndex index) {
  Path& path = paths_[index];
  further_loss(index);
  path.sender_live = false;
  path.leaving.reset();
  path.back.clear();
  sender_.fail(index);
  path.flushing = sender_.reading(index) && path.one_sided;
  if (!path.flushing) {
    sender_.quiesced(index);
  }
}

void World::retire(PathIndex index) {
  Path& path = paths_[index];
  if (path.sender_live) {
    further_loss(index);
  }
  path.receiver_live = false;
  path.floor = std::max(path.floor, path.epoch + 1);
  if (kind_of(index, path.epoch) == PathKind::one_sided) {
    path.dying = path.epoch;
    receiver_.begin_retire(index);
    return;
  }
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
}

void World::break_path(PathIndex index) {
  Path& path = paths_[index];
  if (path.sender_live && !random_.one_in(3)) {
    lose(index);
  } else if (path.receiver_live) {
    receiver_gives_up(index);
  }
}

void World::receiver_gives_up(PathIndex index) {
  Path& path = paths_[index];
  retire(index);
  path.telling = path.cut || random_.one_in(2);  // the end of a connection is seen, but not there
  saw(Seen::retired_unasked, path.telling);
  if (path.sender_live && !path.telling) {
    lose(index);
  }
  state_everywhere();
}

PathSet World::live_one_sided() const {
  PathSet set = 0;
  each(live(End::sender),
       [&](PathIndex index) { set |= paths_[index].one_sided ? bit(index) : 0; });
  return set;
}

PathSet World::live(End end) const {
  PathSet set = 0;
  for (const PathIndex index : indices_) {
    const Path& path = paths_[index];
    set |= (end == End::sender ? path.sender_live : path.receiver_live) ? bit(index) : 0;
  }
  return set;
}

void World::close_reported() {
  if (!by_policy_) {
    return;
  }
  for (const End end : {End::sender, End::receiver}) {
    for (const PathIndex index : indices_) {
      const PathSet alive = live(end);
      if ((alive & bit(index)) == 0) {
        continue;
      }
      const Path& path = paths_[index];
      const std::int64_t since = end == End::sender ? path.sender_since : path.receiver_since;
      const bool may = steering_.may_close(end, index, since, alive);
      saw(Seen::hint_spared_last,
          steering_.reports_down(end, index) && !may && alive == bit(index));
      saw(Seen::hint_older, steering_.reports_down(end, index) && !may && alive != bit(index));
      if (!steering_.should_close(end, index, since, alive)) {
        continue;
      }
      finding_.expect(may, "a hint took the last path, or one that was newer than it");
      saw(Seen::hint_took_path);
      end == End::sender ? lose(index) : receiver_gives_up(index);
    }
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

}  // namespace fabric::sim
