#include "tests/sim/steering.h"

namespace fabric::sim {

using namespace fabric::core;

Steering::Steering(Random& random, const std::vector<PathIndex>& paths)
    : random_(random), paths_(paths) {
  weight_.fill(kFullWeight);
  trusted_ = ~PathSet{0};
}

bool Steering::update(std::int64_t now) {
  const auto end = random_.pick(2);
  const bool gone = random_.one_in(4);
  PathSet down = 0;
  for (const PathIndex path : paths_) {
    if (!gone && random_.one_in(2)) {
      down |= bit(path);
    }
  }
  each(down & ~said_[end], [&](PathIndex path) { since_[end][path] = now; });
  said_[end] = down;
  reported_[end].report(down, now);
  constexpr std::array<std::uint16_t, 5> kWeights{0, 0, 1, 500, kFullWeight};
  const bool weightless = random_.one_in(4);
  for (const PathIndex path : paths_) {
    weight_[path] = gone         ? kFullWeight
                    : weightless ? std::uint16_t{0}
                                 : kWeights[random_.pick(kWeights.size())];
  }
  trusted_ = random_.one_in(4) ? 0 : PathSet{random_.pick(~std::size_t{0})};
  policy_.stripe = random_.one_in(3);
  policy_.primary_lost = random_.one_in(3);
  policy_.primaries = bit(paths_[random_.pick(paths_.size())]);
  policy_.backup_of.fill(kBackupOfNone);
  if (random_.one_in(3)) {
    policy_.backup_of[random_.pick(kMaxRails)] = static_cast<std::uint8_t>(random_.pick(3));
  }
  return gone;
}

void Steering::well(std::int64_t now) {
  said_ = {};
  for (ReportedDown& reported : reported_) {
    reported.report(0, now);
  }
  weight_.fill(kFullWeight);
  trusted_ = ~PathSet{0};
  const bool device_memory = policy_.device_memory;
  policy_ = {};
  policy_.device_memory = device_memory;
  policy_.stripe = true;
  // A chunk on a path of weight 1 counts as much as thousands on the others: more than the schedule
  // still has.
  share_ = {};
}

bool Steering::contradict() const { return said_[0] != said_[1]; }

bool Steering::should_close(End end, PathIndex path, std::int64_t since, PathSet live) const {
  return reported_[at(end)].should_close(path, since, live);
}

bool Steering::may_close(End end, PathIndex path, std::int64_t since, PathSet live) const {
  return reports_down(end, path) && since_[at(end)][path] >= since && (live & ~said_[at(end)]) != 0;
}

std::optional<PathIndex> Steering::next(PathSet live, PathSet one_sided, PathSet blocked) {
  std::vector<PathView> views;
  each(live, [&](PathIndex path) {
    PathView& view = views.emplace_back();
    view.path = path;
    view.primary = path == paths_.front();
    view.base = sender_rail(path) == receiver_rail(path);
    view.trusted = (trusted_ & bit(path)) != 0;
    view.weight = weight_[path];
    view.kind = (one_sided & bit(path)) != 0 ? PathKind::one_sided : PathKind::stream;
    view.backup = policy_.backup_of[sender_rail(path)] == sender_rail(paths_.front());
  });
  const PathSet chosen = eligible(views, policy_);
  share_.change(eligible_, chosen);
  eligible_ = chosen;
  return share_.next(eligible_ & ~blocked);
}

void Steering::carried(PathIndex path, std::size_t bytes) {
  share_.carried(path, bytes, weight_[path]);
}

bool Steering::weightless(PathSet live) const {
  bool none = live != 0;
  each(live, [&](PathIndex path) { none = none && weight_[path] == 0; });
  return none;
}

bool Steering::carries(PathSet paths) const {
  bool any = false;
  each(paths & trusted_, [&](PathIndex path) { any = any || weight_[path] != 0; });
  return any;
}

bool Steering::untrusted(PathSet live) const { return live != 0 && (live & trusted_) == 0; }

}  // namespace fabric::sim
