// How a schedule goes. A storm of faults; then they cease, but some paths stay dead, often all but
// one, and everything has to arrive over those that live; then the others come back, and have to
// carry again.
#include <algorithm>
#include <bit>
#include <exception>

#include "tests/sim/play.h"
#include "tests/sim/world.h"

namespace fabric::sim {

using namespace fabric::core;

namespace {

constexpr int kStormSteps = 3000;  // at most
// Then each phase has to end; with more than four paths it may take longer by as much.
constexpr int kPhaseSteps = 60'000;
constexpr std::size_t kFewPaths = 4;

}  // namespace

void World::trouble() {
  switch (random_.pick(5)) {
    case 0:  // a partition: nothing gets through, whatever it is
      for (const PathIndex index : indices_) {
        paths_[index].cut = true;
      }
      saw(Seen::partition);
      break;
    case 1: {  // a rail of one end dies
      const PathIndex dead = any();
      const bool sending = random_.one_in(2);
      for (const PathIndex index : indices_) {
        if (sending ? sender_rail(index) == sender_rail(dead)
                    : receiver_rail(index) == receiver_rail(dead)) {
          paths_[index].cut = true;
        }
      }
      saw(Seen::rail_death);
      break;
    }
    case 2: {  // both ends give up at once: the same path, or one each
      const PathIndex of_sender = any();
      const PathIndex of_receiver = any();
      if (paths_[of_sender].sender_live && paths_[of_receiver].receiver_live) {
        saw(Seen::both_ends_at_once);
        lose(of_sender);
        receiver_gives_up(of_receiver);
      }
      break;
    }
    default:
      heal();
      break;
  }
}

void World::heal() {
  for (const PathIndex index : indices_) {
    saw(Seen::healed, paths_[index].dead());
    paths_[index].cut = false;
    paths_[index].refused = false;
  }
}

// Some paths live, the others stay dead; which had a connection before does not count.
void World::strand() {
  heal();
  PathSet survivors = random_.one_in(2) ? bit(any()) : PathSet{0};
  while (survivors == 0) {
    for (const PathIndex index : indices_) {
      survivors |= random_.one_in(2) ? bit(index) : 0;
    }
  }
  const PathSet before = live(End::sender);
  saw(Seen::one_left, indices_.size() > 1 && std::has_single_bit(survivors));
  saw(Seen::another_left, before != 0 && (before & survivors) == 0);
  for (const PathIndex index : indices_) {
    Path& path = paths_[index];
    if ((survivors & bit(index)) != 0) {
      continue;
    }
    if (random_.one_in(2)) {
      path.cut = true;
      saw(Seen::black_hole, path.sender_live && path.receiver_live);
    } else {
      refuse(index);
    }
  }
}

// What no stream may carry has to arrive as well: whoever connects again is one-sided.
void World::end_streams() {
  if (!mixed_ || !job_.devices()) {
    return;
  }
  for (const PathIndex index : indices_) {
    Path& path = paths_[index];
    if (path.sender_live && !path.one_sided) {
      lose(index);
    }
    streams_until_[index] = sender_.epoch(index);
  }
}

void World::refuse(PathIndex index) {
  Path& path = paths_[index];
  path.refused = true;
  saw(Seen::refusal, path.sender_live || path.receiver_live);
  if (path.sender_live) {
    lose(index);
  }
  if (path.receiver_live) {
    receiver_gives_up(index);
  }
}

// An end whose bytes are not acknowledged gives a black hole up; who has nothing under way there
// hears of it only where something pings beside it.
void World::notice(PathIndex index) {
  Path& path = paths_[index];
  if (!path.cut) {
    return;
  }
  if (path.sender_live && (pings_ || !path.wire.empty() || path.arriving || !path.writes.empty())) {
    saw(Seen::timeout_found);
    lose(index);
  } else if (path.receiver_live && (pings_ || !path.back.empty())) {
    saw(Seen::timeout_found);
    receiver_gives_up(index);
  }
}

void World::step() {
  const bool storm = phase_ == Phase::storm;
  switch (random_.pick(12)) {
    case 0:
      job_.post_send();
      break;
    case 1:
      if (!lazy_ || random_.one_in(6)) {
        job_.post_receive();
      }
      break;
    case 2:
      flush(any());
      confirm(any());
      connect(any());
      break;
    case 3:
      if (storm && random_.one_in(3)) {
        break_path(any());
      } else if (!storm && random_.one_in(3)) {
        notice(any());
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
      take_answers(any());
      break;
    case 8:
      receive(any());
      break;
    case 9:  // a daemon that dies leaves its last words
      if (by_policy_ && storm && random_.one_in(3)) {
        saw(Seen::hints_vanish, steering_.update(now_));
        saw(Seen::hints_contradict, steering_.contradict());
      }
      close_reported();
      break;
    case 10:
      if (storm && random_.one_in(5)) {
        trouble();
      }
      break;
    default:
      by_policy_ ? transmit_by_policy() : transmit(any());
      break;
  }
}

// Until `over`. False: not within so many steps, or something is wrong.
bool World::play_on(int steps, const std::function<bool()>& over) {
  for (; steps > 0; --steps) {
    ++now_;
    step();
    if (finding_.any()) {
      return false;
    }
    job_.complete();
    if (over()) {
      return true;
    }
  }
  return false;
}

// The paths that have to carry when all live. A policy leaves a cross-rail path alone where both
// its rails have their own path, and a stream where a path is one-sided.
PathSet World::wanted() const {
  PathSet set = 0;
  for (const PathIndex index : indices_) {
    set |= !by_policy_ || sender_rail(index) == receiver_rail(index) ? bit(index) : 0;
  }
  const PathSet one_sided = live_one_sided();
  return by_policy_ && one_sided != 0 ? set & one_sided : set;
}

void World::run() {
  // Often short: what a later failure would repair has to show.
  const int storm = 20 + static_cast<int>(random_.pick(random_.pick(kStormSteps) + 1));
  const auto finished = [this] { return job_.finished(); };
  if (play_on(storm, finished)) {
    job_.more();
  }
  if (finding_.any()) {
    return;
  }

  const int phase_steps = kPhaseSteps / static_cast<int>(kFewPaths) *
                          static_cast<int>(std::max(kFewPaths, indices_.size()));
  phase_ = Phase::few;
  strand();
  end_streams();
  if (!play_on(phase_steps, finished)) {
    finding_.expect(false, "a path lives, and not everything arrives");
    return;
  }

  phase_ = Phase::whole;
  heal();
  steering_.well(now_);
  job_.more();
  delivered_ = 0;
  const bool ended = play_on(phase_steps, [&] {
    if (!job_.finished()) {
      return false;
    }
    const bool all = (wanted() & ~delivered_) == 0;
    if (!all) {
      job_.more();
    }
    return all;
  });
  finding_.expect(ended, "all paths live, and not everything arrives, or not over each");
  saw(Seen::carried_again, ended && indices_.size() > 1);
  job_.check_end();
}

void World::add_to(Coverage& coverage) {
  saw(Seen::registered_copy, pool_ && pool_->used());
  for (std::size_t i = 0; i < kSeenCount; ++i) {
    coverage.schedules[i] += seen_[i] ? 1U : 0U;
  }
}

std::string play(std::uint64_t seed, Coverage* coverage) {
  World world(seed);
  std::string thrown;
  try {
    world.run();
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  if (coverage != nullptr) {
    world.add_to(*coverage);
  }
  return thrown.empty() ? world.finding().what() : thrown;
}

}  // namespace fabric::sim
