// The engine's rounds of large packets (core/mtu.h).
#include <algorithm>

#include "core/engine.h"

namespace fabric::prober {

bool Engine::fit_for_mtu(const Entry& entry) const {
  const Path& path = *entry.path;
  return !entry.rdma && entry.answers_mtu && !entry.mtu.open() && path.peer_incarnation() != 0 &&
         path.heard(config_.misses) == Reachability::kWell &&
         path.told(config_.misses) == Reachability::kWell;
}

std::optional<std::size_t> Engine::mtu_due(Nanos now) {
  for (Entry& entry : paths_) entry.mtu.expire(now);
  for (std::size_t link = 0; link < mtu_turns_.size(); ++link) {
    MtuTurn& turn = mtu_turns_[link];
    if (turn.next == 0) {
      // Links and hosts begin apart from each other.
      turn.next = now + static_cast<Nanos>(random_() % static_cast<std::uint64_t>(mtu::kPace));
    }
    if (now < turn.next) continue;
    std::optional<std::size_t> next;
    std::optional<std::size_t> doubtful;
    bool haste = false;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      const std::size_t at = (turn.at + 1 + i) % paths_.size();
      const Entry& entry = paths_[at];
      if (entry.path->config().link != link) continue;
      const std::uint32_t missing = entry.mtu.tx().missing;
      haste = haste || missing != 0;
      if (!fit_for_mtu(entry)) continue;
      if (!next) next = at;
      if (!doubtful && missing != 0 && missing < mtu::kProven) doubtful = at;
    }
    turn.next = now + (haste ? mtu::kHaste : mtu::kPace);
    turn.others = !turn.others;
    // A path that drops one now and then does not keep the others from their turns.
    const auto chosen = doubtful && !turn.others ? doubtful : next;
    if (chosen && chosen == next) turn.at = *next;
    if (chosen) return chosen;
  }
  return std::nullopt;
}

void Engine::begin_mtu(std::size_t path, std::uint32_t most, Nanos now,
                       std::vector<mtu::Outgoing>& out) {
  Entry& entry = paths_[path];
  const PathConfig& config = entry.path->config();
  const std::uint32_t limit = mtu_turns_[config.link].limit;
  mtu::Packet packet;
  packet.limit = static_cast<std::uint16_t>(limit);
  packet.host_id = config_.host_id;
  packet.incarnation = incarnation_;
  packet.peer_incarnation = entry.path->peer_incarnation();
  packet.number = ++mtu_number_;
  packet.size = entry.mtu.begin(packet.number, std::min(limit, most), now);
  const Address& own = config_.links[config.link].address;
  out.push_back({config.link, config.peer, mtu::encode(packet, keys_, own, config.peer)});
  if (packet.size == 0) return;
  packet.kind = mtu::Kind::kLarge;
  out.push_back(
      {config.link, config.peer, mtu::encode(packet, keys_, own, config.peer), packet.size});
}

void Engine::take_mtu(std::uint16_t link, const Datagram& datagram) {
  const Address& own = config_.links[link].address;
  const auto packet = mtu::decode(datagram.bytes, datagram.length, keys_, datagram.source, own);
  if (!packet) return refuse(ring::Refusal::kAuth);
  const std::size_t found = find(link, datagram.source, packet->host_id);
  if (found == paths_.size()) return refuse(ring::Refusal::kUnknownPath);
  Entry& entry = paths_[found];
  if (packet->incarnation != entry.path->peer_incarnation() ||
      packet->peer_incarnation != incarnation_) {
    return refuse(ring::Refusal::kUnproven);
  }
  if (!entry.mtu.take(*packet, datagram.arrival.mono)) return;
  mtu::Packet answer;
  answer.kind = mtu::Kind::kAnswer;
  answer.limit = static_cast<std::uint16_t>(mtu_turns_[link].limit);
  answer.host_id = config_.host_id;
  answer.size = packet->kind == mtu::Kind::kLarge ? packet->size : 0;
  answer.incarnation = incarnation_;
  answer.peer_incarnation = packet->incarnation;
  answer.number = packet->number;
  mtu_answers_.push_back({link, datagram.source, mtu::encode(answer, keys_, own, datagram.source)});
}

void Engine::take_mtu_answers(std::vector<mtu::Outgoing>& out) {
  out.insert(out.end(), mtu_answers_.begin(), mtu_answers_.end());
  mtu_answers_.clear();
}

}  // namespace fabric::prober
