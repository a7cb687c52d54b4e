#include "core/engine.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace fabric::prober {
namespace {

constexpr Nanos kSecond = 1'000'000'000;
constexpr Nanos kStalledSaid = kSecond;  // how long peers are told of a gap
// For three link intervals, every half of one: a lost one is followed before anybody misses us.
constexpr std::uint32_t kByes = 6;
constexpr std::size_t kMostParked = ring::kMaxPaths;

bool is_bad(const PeerReport& v) {
  return v.heard == Reachability::kSilent || v.told == Reachability::kSilent;
}

bool same_path(const PathConfig& a, const LinkConfig& on, const PathConfig& b,
               const LinkConfig& other) {
  return a.peer == b.peer && a.host_id == b.host_id && on.netdev == other.netdev &&
         on.address == other.address;
}

}  // namespace

std::size_t Engine::AddressHash::operator()(const Address& a) const {
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), a.ip.data(), sizeof words);
  // The keys are the operator's: nobody chooses them to collide.
  std::uint64_t h = (words[0] ^ a.port) * 0x9e3779b97f4a7c15U;
  h = (h ^ h >> 32 ^ words[1]) * 0x9e3779b97f4a7c15U;
  return static_cast<std::size_t>(h ^ h >> 32);
}

void Engine::configure(Config config, Nanos now, Nanos wall_minus_mono) {
  if (running_ == 0) stalls_.begin(now);
  std::vector<Entry> old = std::move(paths_);
  const std::vector<LinkConfig> old_links = std::move(config_.links);
  config_ = std::move(config);
  paths_.clear();
  by_peer_.assign(config_.links.size(), {});
  carriers_.assign(config_.links.size(), Reachability::kUnknown);
  ud_terms_.assign(config_.links.size(), UdTerms{});
  udp_links_ = config_.udp_links();
  udp_paths_ = config_.udp_paths();
  suspected_.assign(config_.links.size(), false);
  miss_runs_.assign(config_.links.size(), MissRun{});
  miss_run_ = 0;
  std::vector<Nanos> heard(config_.links.size(), 0);
  for (std::size_t i = 0; i < config_.links.size(); ++i) {
    for (std::size_t j = 0; j < old_links.size(); ++j) {
      if (old_links[j].netdev == config_.links[i].netdev) heard[i] = link_heard_[j];
    }
  }
  link_heard_ = std::move(heard);
  for (const PathConfig& wanted : config_.paths) {
    Entry entry;
    const LinkConfig& link = config_.links[wanted.link];
    for (Entry& candidate : old) {
      if (!candidate.path) continue;
      const PathConfig& had = candidate.path->config();
      if (same_path(had, old_links[had.link], wanted, link)) {
        entry.path = std::move(candidate.path);
        entry.single = candidate.single;
        entry.mtu = candidate.mtu;
        entry.answers_mtu = candidate.answers_mtu;
        break;
      }
    }
    for (auto parked = parked_.begin(); !entry.path && parked != parked_.end(); ++parked) {
      if (!same_path(parked->path->config(), parked->link, wanted, link)) continue;
      entry.path = std::move(parked->path);
      entry.path->resume();
      byes_ -= parked->byes;
      parked_.erase(parked);
      break;
    }
    if (entry.path) entry.path->move_to(wanted);
    if (!entry.path) entry.path = std::make_unique<Path>(wanted, config_.link_interval, random_);
    entry.rdma = link.rdma();
    by_peer_[wanted.link].emplace(wanted.peer, paths_.size());
    paths_.push_back(std::move(entry));
  }
  for (Entry& left : old) {
    if (!left.path) continue;
    const LinkConfig& link = old_links[left.path->config().link];
    park(std::move(left.path), link, now);
  }
  pair_rdma_paths();
  for (Entry& entry : paths_) schedule(entry, now, grid(wall_minus_mono));
  turn_trains(now);
  mtu_turns_.resize(config_.links.size());
  find_next();
  all_quiet_ = by_due_time_ = any_suspected_ = false;
  want_ports();
  find_listeners();
}

void Engine::set_fabric_time(const std::optional<FabricReading>& reading, Nanos now) {
  fabric_.look(config_.synchronized ? reading : std::nullopt, config_.link_interval, now);
}

void Engine::find_listeners() {
  listeners_.clear();
  const auto known = [](int rail) { return rail >= 0 && rail <= kMaxRail; };
  const auto links = std::span(config_.links).first(udp_links_);
  const auto paths = std::span(config_.paths).first(udp_paths_);
  told_rails_ = std::all_of(links.begin(), links.end(),
                            [&](const LinkConfig& link) { return known(link.rail); }) &&
                std::all_of(paths.begin(), paths.end(),
                            [&](const PathConfig& path) { return known(path.peer_rail); });
  std::unordered_map<std::uint32_t, std::size_t> at;
  for (Entry& entry : paths_) {
    const auto [found, added] = at.emplace(entry.path->config().host_id, listeners_.size());
    if (added) {
      const std::size_t number = listeners_.size();
      listeners_.push_back({found->first, 0, number, 0, static_cast<std::uint32_t>(number) + 1});
    }
    entry.listener = found->second;
  }
}

PeerReport Engine::report_on(std::size_t index) const {
  if (index >= udp_paths_) {
    const LinkConfig& link = config_.links[index - udp_paths_];
    return {ReportKind::kPort,
            static_cast<std::uint8_t>(link.rail),
            0,
            carriers_[link.index],
            Reachability::kUnknown,
            0};
  }
  const Path& path = *paths_[index].path;
  const PathConfig& config = path.config();
  return {ReportKind::kPath,
          static_cast<std::uint8_t>(config_.links[config.link].rail),
          static_cast<std::uint8_t>(config.peer_rail),
          path.heard(config_.misses),
          path.told(config_.misses),
          config.host_id};
}

std::uint64_t Engine::next_report(Listener& listener) const {
  const std::size_t reports = udp_paths_ + udp_links_;
  if (!told_rails_ || reports == 0) return 0;
  std::uint32_t& dice = listener.dice;  // xorshift32 (Marsaglia, 2003)
  dice ^= dice << 13;
  dice ^= dice >> 17;
  dice ^= dice << 5;
  if (bad_ != 0 && (dice & 1) != 0) {
    for (std::size_t i = 0; i < reports; ++i) {
      const PeerReport report = report_on(listener.next_bad++ % reports);
      if (is_bad(report)) return pack(report);
    }
  }
  if (listener.next >= reports) {
    listener.next = 0;
    ++listener.round;
  }
  return pack(report_on((listener.next++ + listener.round) % reports));
}

void Engine::park(std::unique_ptr<Path> path, const LinkConfig& link, Nanos now) {
  if (parked_.size() == kMostParked) {
    byes_ -= parked_.front().byes;
    parked_.pop_front();
  }
  parked_.push_back({std::move(path), link, kByes, now});
  byes_ += kByes;
}

void Engine::push_bye(Path& path, std::uint16_t link, const Address& own, Nanos now,
                      std::vector<Outgoing>& out) {
  Packet packet = path.next_packet(0, now, incarnation_);
  packet.host_id = config_.host_id;
  stamp(packet, now);
  packet.path = ring::kNone;  // its transmit stamp is nobody's
  packet.flags |= kWireReport | kWireBye;
  if (own.port == kRocePort && path.ud_terms().qpn == 0) return;
  out.push_back({link, path.config().peer, encode(packet, keys_, own, path.config().peer), 0,
                 path.ud_terms()});
}

void Engine::send_byes(const Config* next, Nanos now, std::vector<Outgoing>& out) {
  for (Entry& entry : paths_) {
    const PathConfig& path = entry.path->config();
    const LinkConfig& link = config_.links[path.link];
    const bool stays =
        next != nullptr &&
        std::any_of(next->paths.begin(), next->paths.end(), [&](const PathConfig& wanted) {
          return same_path(path, link, wanted, next->links[wanted.link]);
        });
    if (!stays) push_bye(*entry.path, path.link, link.address, now, out);
  }
}

void Engine::say_parked(Nanos now, std::vector<Outgoing>& out) {
  for (Parked& parked : parked_) {
    if (parked.byes == 0 || parked.next > now) continue;
    parked.next = now + config_.link_interval / 2;
    --parked.byes;
    --byes_;
    for (const LinkConfig& link : config_.links) {
      if (link.netdev != parked.link.netdev || !(link.address == parked.link.address)) continue;
      push_bye(*parked.path, link.index, link.address, now, out);
    }
  }
}

void Engine::schedule(Entry& entry, Nanos now, Nanos grid_minus_mono) {
  const PathConfig& path = entry.path->config();
  std::vector<std::uint32_t> members{config_.host_id};
  std::uint32_t peers = 0;
  std::uint32_t position = 0;
  for (const PathConfig& other : config_.paths) {
    if (other.link != path.link || other.extra) continue;
    if (other.index < path.index) ++position;
    ++peers;
    members.push_back(other.host_id);
  }
  peers = std::max(peers, 1U);
  std::sort(members.begin(), members.end());
  // Without distinct host ids there is no tournament; the order of the configuration then serves.
  const bool named = std::adjacent_find(members.begin(), members.end()) == members.end() &&
                     std::binary_search(members.begin(), members.end(), path.host_id);
  Slot slot =
      named ? meeting_slot(members, config_.host_id, path.host_id) : Slot{position % peers, peers};
  // Between two slots of the round, whose members hear each other at an even pace.
  if (path.extra) slot = {2 * slot.index + 1, 2 * slot.count};
  const Nanos period = config_.link_interval * peers;
  entry.train_period = path.clock && config_.clock_train_hz != 0
                           ? kSecond / static_cast<Nanos>(config_.clock_train_hz)
                           : 0;
  entry.path->set_carries_trains(path.clock && !entry.rdma);
  const Cadence before = entry.single;
  entry.single = Cadence(period, slot);
  entry.single.start(now, grid_minus_mono);
  const Nanos moves = std::min(period, config_.link_interval) / 16;
  const bool later = entry.single.due() > before.due() + moves;
  if (before.period() != 0 && (later || before.period() != period)) {
    // Its peer expects packets by the old pace, which will not be sent.
    stalls_.begin(entry.single.due());
  }
  if (entry.train_period != 0) {
    entry.train = Cadence(entry.train_period, slot);
    entry.train.start(now, grid_minus_mono);
  }
  entry.path->set_interval(period, config_.link_interval);
}

void Engine::note_gap(Nanos wanted, Nanos now, RecordSink& sink) {
  const Nanos start = std::max(wanted, running_);  // what was noted before is not noted twice
  const Nanos gap = now - start;
  running_ = std::max(running_, now);
  if (config_.links.empty()) return;
  if (gap <= std::max<Nanos>(3'000'000, config_.link_interval / 2)) return;
  stalls_.add(start, now);
  ++counters_.stalls;
  counters_.stall_ns += gap;
  counters_.stall_max_ns = std::max(counters_.stall_max_ns, gap);
  ring::EventRecord record{};
  record.mono_ns = static_cast<std::uint64_t>(now);
  record.kind = static_cast<std::uint16_t>(ring::EventKind::kStall);
  record.link = ring::kNone;
  record.path = ring::kNone;
  record.value[0] = static_cast<std::uint64_t>(gap);
  record.value[1] = static_cast<std::uint64_t>(start);
  sink.event(record);
}

std::size_t Engine::find(std::uint16_t link, const Address& source, std::uint32_t host_id) const {
  const std::size_t none = paths_.size();
  if (const auto found = by_peer_[link].find(source); found != by_peer_[link].end()) {
    const std::uint32_t wanted = paths_[found->second].path->config().host_id;
    return wanted == 0 || wanted == host_id ? found->second : none;
  }
  if (host_id == 0 || source.port < clock_ports::kLeastPort) return none;
  std::size_t at = none;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const PathConfig& path = paths_[i].path->config();
    if (path.link != link || path.host_id != host_id || path.peer.ip != source.ip) continue;
    if (at != none) return none;  // of one host at two ports
    at = i;
  }
  return at;
}

void Engine::set_ports(std::vector<PortWish> wishes) {
  wishes_ = std::move(wishes);
  want_ports();
}

void Engine::want_ports() {
  for (Entry& entry : paths_) {
    const PathConfig& path = entry.path->config();
    std::uint16_t port = 0;
    for (const PortWish& wish : wishes_) {
      if (!has_trains(entry) || wish.peer != path.peer || wish.host_id != path.host_id) continue;
      if (wish.own.ip == config_.links[path.link].address.ip) port = wish.port;
    }
    entry.path->source().want(port);
  }
}

bool Engine::uses_port(std::uint16_t link, std::uint16_t port) const {
  return std::any_of(paths_.begin(), paths_.end(), [&](const Entry& entry) {
    const SourcePort& source = entry.path->source();
    return entry.path->config().link == link && (source.used() == port || source.wanted() == port);
  });
}

void Engine::take_packet(std::uint16_t link, const Datagram& datagram, RecordSink& sink) {
  const auto& [source, bytes, length, arrival] = datagram;
  Packet packet;
  if (decode_unauthenticated(bytes, packet) != WireError::kNone) return;
  const std::size_t found = find(link, source, packet.host_id);
  if (found == paths_.size()) return refuse(ring::Refusal::kUnknownPath);
  Entry& entry = paths_[found];
  Path& path = *entry.path;
  const std::uint16_t from = source.port == path.config().peer.port ? 0 : source.port;
  entry.quiet = all_quiet_ = false;
  switch (path.on_packet(packet, from, arrival, incarnation_, stalls_, sink)) {
    case Path::Verdict::kAccepted:
      ++counters_.received;
      entry.answers_mtu = (packet.flags & kWireMtu) != 0;
      if (!entry.answers_mtu) entry.mtu = {};  // an older version would never say that they pass
      if (!path.on_next_due(packet, arrival, fabric_)) ++counters_.due_times_refused;
      by_due_time_ = by_due_time_ || path.judged_by_due_time();
      peer_reports_.update(packet.host_id, packet.peer_report, arrival.mono);
      if (const auto terms = unpack_ud_terms(packet.peer_report);
          terms && !entry.rdma && entry.beside < paths_.size()) {
        paths_[entry.beside].path->set_ud_terms(*terms);
      }
      link_heard_[link] = std::max(link_heard_[link], arrival.mono);
      break;
    case Path::Verdict::kReplay:
      return refuse(ring::Refusal::kReplay);
    case Path::Verdict::kUnproven:
      return refuse(ring::Refusal::kUnproven);
  }
}

void Engine::on_transmit_stamp(std::span<const std::uint8_t> bytes, std::int64_t stamp,
                               bool hardware, Nanos now) {
  const auto own = identify_own(bytes);
  if (!own || own->incarnation != incarnation_ || own->path >= paths_.size()) return;
  paths_[own->path].path->on_transmit_stamp(own->seq, stamp, hardware, now);
}

void Engine::on_refused(const Outgoing& packet, Nanos now) {
  const auto own = identify_own(packet.bytes);
  if (own && own->path < paths_.size()) paths_[own->path].path->on_refused(own->seq, now);
}

void Engine::judge(Nanos drained, RecordSink& sink) {
  if (all_quiet_ && drained < quiet_until_) return;
  all_quiet_ = true;
  quiet_until_ = std::numeric_limits<Nanos>::max();
  std::fill(suspected_.begin(), suspected_.end(), false);
  std::fill(miss_runs_.begin(), miss_runs_.end(), MissRun{});
  bad_ = static_cast<std::size_t>(
      std::count(carriers_.begin(), carriers_.end(), Reachability::kSilent));
  for (Entry& entry : paths_) {
    if (entry.quiet && drained < entry.quiet_until) {
      quiet_until_ = std::min(quiet_until_, entry.quiet_until);
      continue;
    }
    entry.path->judge(drained, stalls_, sink);
    if (entry.path->missing()) suspected_[entry.path->config().link] = true;
    if (!entry.rdma && entry.path->broken(config_.misses)) ++bad_;
    entry.quiet_until = entry.path->next_judgement();
    entry.quiet = entry.path->quiet();
    all_quiet_ = all_quiet_ && entry.quiet;
    quiet_until_ = std::min(quiet_until_, entry.quiet_until);
    MissRun& run = miss_runs_[entry.path->config().link];
    run.rx += entry.path->rx_miss_run();
    run.tx += entry.path->tx_miss_run();
  }
  any_suspected_ = std::find(suspected_.begin(), suspected_.end(), true) != suspected_.end();
  miss_run_ = 0;
  for (const MissRun& run : miss_runs_) miss_run_ = std::max({miss_run_, run.rx, run.tx});
  turn_trains(drained);
}

void Engine::stamp(Packet& packet, Nanos due) const {
  packet.due_time = due;
  packet.awake_us = static_cast<std::uint32_t>(
      std::min<Nanos>(stalls_.awake(due) / 1000, std::numeric_limits<std::uint32_t>::max()));
}

ClockMessage Engine::next_clock_message(Entry& entry) const {
  const std::size_t link = entry.path->config().link;
  const bool own =
      link < link_clock_messages_.size() && link_clock_messages_[link] != ClockMessage{};
  const std::size_t count = clock_messages_.size() + (own ? 1 : 0);
  if (count == 0) return {};
  const std::size_t turn = entry.next_clock_message++ % count;
  return turn < clock_messages_.size() ? clock_messages_[turn] : link_clock_messages_[link];
}

void Engine::push(Entry& entry, std::uint8_t train, bool report, Nanos now, Nanos due,
                  std::vector<Outgoing>& out) {
  const PathConfig& path = entry.path->config();
  Packet packet = entry.path->next_packet(train, now, incarnation_);
  packet.host_id = config_.host_id;
  stamp(packet, due);
  if (!entry.path->searched()) {
    packet.next_due = pack_next_due(std::max(entry.single.due(), now), now, fabric_);
  }
  packet.peer_report = next_report(entry, packet.seq);
  if (entry.path->carries_trains()) packet.clock_message = next_clock_message(entry);
  if (report) packet.flags |= kWireReport;
  if (stalls_.lately(now, kStalledSaid)) packet.flags |= kWireStalled;
  const std::uint16_t port = entry.path->port_of(packet.seq);
  out.push_back({path.link, path.peer, encode_untagged(packet), port, entry.path->ud_terms()});
}

void Engine::take_due(Nanos now, Nanos wall_minus_mono, std::vector<Outgoing>& out) {
  if (byes_ != 0) say_parked(now, out);
  if (all_quiet_ && now < next_take_) return;
  const std::size_t first = out.size();
  const Nanos grid_minus_mono = grid(wall_minus_mono);
  for (Entry& entry : paths_) {
    const bool lost = is_lost(entry, now);
    const bool rare = lost || entry.path->searched();
    if (!has_peer(entry) || (rare && now < entry.next_search)) {
      if (entry.single.due() <= now) entry.single.advance(now, grid_minus_mono);
      continue;
    }
    bool sent = false;
    if (sends_trains(entry) && entry.train.due() <= now + train_early(entry)) {
      for (std::uint8_t position = 1; position <= 3; ++position)
        push(entry, position, false, now, now, out);
      entry.train.advance(now, grid_minus_mono);
      sent = true;
    }
    if (entry.single.due() <= now + slack() / 2) {
      // First the next due time: the packet announces it.
      const Nanos due = entry.single.due();
      entry.single.advance(now, grid_minus_mono);
      push(entry, 0, false, now, due, out);
      entry.next_search = now + kSearch;
      sent = true;
    }
    // What was just sent already says it.
    if (!lost && !entry.quiet && entry.path->take_report(now) && !sent)
      push(entry, 0, true, now, now, out);
  }
  sign_from(first, out);
  find_next();
}

Nanos Engine::next_judgement(Nanos now) const {
  if (!any_suspected_ && !by_due_time_) return std::numeric_limits<Nanos>::max();
  Nanos next = std::numeric_limits<Nanos>::max();
  for (const Entry& entry : paths_) {
    if (!suspected_[entry.path->config().link] && !entry.path->awaited(now)) continue;
    if (const Nanos at = entry.path->next_judgement(); at > now) next = std::min(next, at);
  }
  return next;
}

void Engine::find_next() {
  next_due_ = next_take_ = std::numeric_limits<Nanos>::max();
  for (const Entry& entry : paths_) {
    const Nanos single = entry.single.due() - slack() / 2;
    next_due_ = std::min(next_due_, single);
    next_take_ = std::min(next_take_, single);
    if (!sends_trains(entry)) continue;
    next_due_ = std::min(next_due_, entry.train.due());
    next_take_ = std::min(next_take_, entry.train.due() - train_early(entry));
  }
}

}  // namespace fabric::prober
