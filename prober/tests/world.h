// A simulated world: hosts with engines, wires between them with delay, loss and cuts, one true
// time. No sockets, no sleep.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "util.h"

namespace fabric::prober::test {

// Where in a pass of the shell's loop a stop may fall.
enum class Point : std::uint8_t { kBetweenSockets, kBeforeJudge, kBeforeSend };

struct Host {
  std::uint8_t number = 0;
  std::uint64_t incarnation = 0;
  Nanos frozen_until = 0;
  Nanos next_wake = 0;
  std::map<Point, Nanos> stops;  // still to come, in the next pass
  Nanos began = 0;               // the present pass
  int stage = 0;
  std::unique_ptr<Engine> engine;
  Records records;
  struct Waiting {
    std::uint16_t link;
    Address source;
    std::vector<std::uint8_t> bytes;
    Nanos arrived;
  };
  std::vector<Outgoing> queue;  // sent, and not on the wire yet
  std::vector<Waiting> socket;  // what the kernel holds while the prober does not run
};

class World {
 public:
  static constexpr Nanos kTick = 2 * kMs;
  Nanos now = 1000 * kMs;
  Nanos delay = 30'000;
  // Says whether a packet from host a to host b on a rail is lost.
  std::function<bool(std::uint8_t from, std::uint8_t to, std::uint8_t rail)> lost =
      [](auto, auto, auto) { return false; };
  // Every link has an RDMA link beside it; the same of its packets.
  bool rdma = false;
  std::function<bool(std::uint8_t from, std::uint8_t to, std::uint8_t rail)> lost_rdma =
      [](auto, auto, auto) { return false; };
  // Until when all that a host sends stands in its own queue: not stamped, not on the wire.
  std::map<std::uint8_t, Nanos> queued_until;
  std::map<std::uint8_t, bool> no_way;  // the host's kernel refuses what is sent
  // The host does not say when its packets were due, and does not take them from other ports.
  std::map<std::uint8_t, bool> older;
  // What a host's clock page says, and its wall clock less the one monotonic clock of all.
  std::map<std::uint8_t, std::optional<FabricReading>> page;
  std::map<std::uint8_t, Nanos> wall;
  // Changes what a host sends, which is signed anew.
  std::map<std::uint8_t, std::function<void(Packet&)>> rewrite;
  std::function<bool(std::uint16_t port)> blocked = [](auto) { return false; };  // by source
  std::map<std::uint16_t, std::uint64_t> left_from;  // packets of host 1 by source port
  std::map<std::uint8_t, Host> hosts;
  std::vector<std::pair<Nanos, std::vector<std::uint8_t>>> captured;  // everything sent, host 1

  static std::uint32_t id(std::uint8_t number) { return 1000U + number; }
  // The queue pair of an RDMA link of a host.
  static UdTerms terms(std::uint8_t number, std::uint16_t link) {
    return {100U * number + link, static_cast<std::uint16_t>(link)};
  }

  void start(std::uint8_t number, std::uint64_t incarnation, const std::vector<std::uint8_t>& peers,
             std::uint8_t rails, Nanos link_interval, bool clock = false) {
    Host& h = hosts[number];
    h.number = number;
    h.incarnation = incarnation;
    auto rng = std::make_shared<std::mt19937_64>(incarnation);
    h.engine = std::make_unique<Engine>(incarnation, [rng] { return (*rng)(); });
    h.engine->set_keys(ring_of({key(9)}));
    Config c;
    c.host_id = id(number);
    c.link_interval = link_interval;
    for (std::uint8_t r = 0; r < rails; ++r) {
      c.links.push_back({r, "rail" + std::to_string(r), v4(r, number), false});
      for (const auto p : peers) {
        c.paths.push_back({static_cast<std::uint16_t>(c.paths.size()), r, v4(r, p), id(p), clock});
      }
    }
    for (std::uint8_t r = 0; rdma && r < rails; ++r) add_rdma_link(c, r, "rdma", 1);
    h.engine->configure(c, now, wall[number]);
    for (std::uint16_t r = rails; r < h.engine->config().links.size(); ++r) {
      h.engine->set_ud_terms(r, terms(number, r));
    }
    h.next_wake = now;
    h.frozen_until = 0;
    h.socket.clear();
  }

  void freeze(std::uint8_t number, Nanos how_long) { hosts[number].frozen_until = now + how_long; }
  // The same, but it catches the host in the midst of its next pass.
  void freeze_in_pass(std::uint8_t number, Point where, Nanos how_long) {
    hosts[number].stops[where] = how_long;
  }

  void inject(std::uint8_t to, std::uint16_t link, const Address& source,
              const std::vector<std::uint8_t>& bytes) {
    hosts[to].socket.push_back({link, source, bytes, now});
  }

  void run(Nanos how_long) {
    const Nanos end = now + how_long;
    while (now < end) {
      now += 250'000;
      for (auto& [number, h] : hosts) {
        if (now >= queued_until[number]) leave(h);
        const Nanos wanted = std::max(h.next_wake, Nanos{0});
        if (h.engine && now >= h.frozen_until && now >= wanted) wake(h, wanted);
      }
    }
  }

 private:
  bool stopped(Host& h, Point where) {
    const auto found = h.stops.find(where);
    if (found == h.stops.end()) return false;
    h.frozen_until = now + found->second;
    h.stops.erase(found);
    return true;
  }

  // As Prober::pass; goes on where a stop caught it.
  void wake(Host& h, Nanos wanted) {
    constexpr int kSend = 2;
    if (h.stage == 0) {
      h.engine->note_gap(wanted, now, h.records);
      h.engine->set_fabric_time(page[h.number], now);
      h.began = now;
    }
    if (h.stage < kSend) {
      const std::uint16_t links = static_cast<std::uint16_t>(h.engine->config().links.size());
      for (std::uint16_t link = h.stage == 0 ? 0 : 1; link < links; ++link) {
        drain(h, link);
        if (link == 0 && stopped(h, Point::kBetweenSockets)) {
          h.stage = 1;
          return;
        }
      }
      h.stage = kSend;
      if (stopped(h, Point::kBeforeJudge)) return;
    }
    if (h.stage == kSend) {
      h.engine->judge(h.began, h.records);
      h.stage = kSend + 1;
      if (stopped(h, Point::kBeforeSend)) return;
    }
    h.stage = 0;
    h.engine->note_running(now, h.records);
    send(h);
    h.next_wake =
        std::min({now - now % kTick + kTick, h.engine->next_due(), h.engine->next_judgement(now)});
  }

  void drain(Host& h, std::uint16_t link) {
    std::vector<Host::Waiting> batch;
    std::erase_if(h.socket, [&](const Host::Waiting& w) {
      if (w.link != link) return false;
      batch.push_back(w);
      return true;
    });
    if (!batch.empty()) h.engine->note_running(now, h.records);
    for (const auto& w : batch) {
      h.engine->on_packet(w.link, w.source, w.bytes, {w.arrived + 1, false, w.arrived}, h.records);
    }
  }

  void send(Host& h) {
    std::vector<Outgoing> out;
    h.engine->take_due(now, wall[h.number], out);
    if (no_way[h.number]) {
      for (const Outgoing& o : out) h.engine->on_refused(o, now);
      return;
    }
    h.queue.insert(h.queue.end(), out.begin(), out.end());
    if (now >= queued_until[h.number]) leave(h);
  }

  std::vector<std::uint8_t> rewritten(const Host& h, const Outgoing& o) {
    Packet packet;
    (void)decode_unauthenticated(o.bytes, packet);
    if (older[h.number]) {
      packet.due_time = 0;
      packet.awake_us = 0;
      packet.next_due = 0;
      packet.flags &= static_cast<std::uint8_t>(~kWireRoams);
    }
    if (rewrite[h.number]) rewrite[h.number](packet);
    const WireBytes bytes =
        encode(packet, ring_of({key(9)}),
               v4(o.destination.ip[13], h.number, o.port == 0 ? 9200 : o.port), o.destination);
    return {bytes.begin(), bytes.end()};
  }

  void leave(Host& h) {
    for (const Outgoing& o : std::exchange(h.queue, {})) {
      h.engine->on_transmit_stamp(o.bytes, now + 1, false, now);
      const std::uint8_t to = o.destination.ip[15];
      const std::uint8_t rail = o.destination.ip[13];
      std::vector<std::uint8_t> bytes(o.bytes.begin(), o.bytes.end());
      if (older[h.number] || rewrite[h.number]) bytes = rewritten(h, o);
      if (h.number == 1) captured.emplace_back(now, bytes);
      if (o.destination.port == kRocePort) {
        const auto link = static_cast<std::uint16_t>(h.engine->config().udp_links() + rail);
        // Only the queue pair that it is sent to gets it.
        if (lost_rdma(h.number, to, rail) || hosts.count(to) == 0 || o.to != terms(to, link)) {
          continue;
        }
        hosts[to].socket.push_back(
            {link, v4(rail, h.number, kRocePort), std::move(bytes), now + delay});
        continue;
      }
      const Address source = v4(rail, h.number, o.port == 0 ? 9200 : o.port);
      if (h.number == 1) ++left_from[source.port];
      if (lost(h.number, to, rail) || blocked(source.port) || hosts.count(to) == 0) continue;
      if (older[to] && source.port != 9200) continue;
      hosts[to].socket.push_back({rail, source, std::move(bytes), now + delay});
    }
  }
};

inline ring::PathRow row(const Host& host, std::size_t path = 0) {
  ring::PathRow out{};
  host.engine->fill(path, out);
  return out;
}

// Hosts 1 and 2, which probe each other on so many rails.
inline World two_hosts(Nanos link_interval = 10 * kMs, bool clock = false, std::uint8_t rails = 1) {
  World w;
  w.start(1, 111, {2}, rails, link_interval, clock);
  w.start(2, 222, {1}, rails, link_interval, clock);
  return w;
}

}  // namespace fabric::prober::test
