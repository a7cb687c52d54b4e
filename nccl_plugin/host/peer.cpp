#include "host/peer.h"
#include "core/schedule.h"
#include "host/monotonic.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace fabric::host {

namespace {

constexpr std::int64_t kCrossAfterNs = 50 * kMs;  // the pairs from the start come first
constexpr std::int64_t kGoneAfterNs = 200 * kMs;  // refused for so long, nothing alive
constexpr int kGoneRefusals = 2;
// One rail refuses and the others are silent: they may be dead and the process with them gone, or
// the one that answers may be a firewall that reloads, or another host's by now.
constexpr std::int64_t kGoneAloneNs = 2'000 * kMs;
constexpr std::int64_t kRefusalsApartNs = 4 * kDialMaxNs;  // further: not in a row
constexpr std::int64_t kPingMinNs = 8 * kMs;
// The answer to a ping is the last word, so its ACK waits for a word that does not come.
constexpr std::int64_t kDelayedAckNs = 45 * kMs;
constexpr std::size_t kMaxBacklog = 1U << 20U;  // unsent control bytes: pings are left out

}  // namespace

Peer::Peer(Context& context, bool is_outbound, std::uint64_t process, std::uint32_t listen,
           const Secret& key, OnFrame on_frame)
    : outbound(is_outbound),
      incarnation(process),
      listen_id(listen),
      secret(key),
      validation(context.incarnation ^ process),
      context_(context),
      on_frame_(std::move(on_frame)),
      created_(monotonic_ns()) {
  remote.weight.fill(core::kFullWeight);
  remote.rdma_weight.fill(core::kFullWeight);
}

std::string Peer::name() const {
  for (const Address& address : addresses) {
    if (address.present()) {
      return "peer " + address.text();
    }
  }
  return "peer";
}

std::size_t Peer::local_rail(core::PathIndex path) const {
  return outbound ? core::sender_rail(path) : core::receiver_rail(path);
}

std::size_t Peer::remote_rail(core::PathIndex path) const {
  return outbound ? core::receiver_rail(path) : core::sender_rail(path);
}

void Peer::set_base() {
  facts.base = 0;
  const std::size_t own = context_.rails.size();
  for (std::size_t i = 0; i < std::max(own, rails); ++i) {
    facts.base |= outbound ? core::bit(core::path_index(i % own, i % rails))
                           : core::bit(core::path_index(i % rails, i % own));
  }
  hints_dirty = true;
}

void Peer::attach(core::PathIndex index, std::unique_ptr<Connection> connection, std::int64_t now) {
  Link& link = links_[index];
  if (link.life.live()) {
    lose(index, false);  // the peer dialled anew: it knows better
  }
  if (!link.life.may(core::LinkEvent::connected)) {
    return;
  }
  link.life.on(core::LinkEvent::connected);
  facts.linked_at = now;
  link.connection = std::move(connection);
  link.in.clear();
  link.out.clear();
  link.out_at = 0;
  link.ack_timeout.reset();
  link.maybe_unacked = true;
  link.acknowledged = 0;
  link.unacked_since = now;
  link.last_ping = now;
  link.up_since = now;
  live_ |= core::bit(index);
  silent_ &= ~core::bit(index);
  answered();
}

void Peer::lose(core::PathIndex index, bool silent) {
  Link& link = links_[index];
  if (!link.life.live()) {
    return;
  }
  link.life.on(core::LinkEvent::lost);
  link.connection.reset();
  live_ &= ~core::bit(index);
  if (silent) {
    silent_ |= core::bit(index);
  }
  const std::int64_t now = monotonic_ns();
  link.lived = now - link.up_since;
  if (link.lived > kCalmNs) {
    link.backoff = 0;
  }
  link.next_dial = now + link.backoff;
}

void Peer::cut() {
  core::each(live_, [this](core::PathIndex index) {
    links_[index].connection->discard();
    lose(index, false);
  });
}

bool Peer::readable(core::PathIndex index) {
  Link& link = links_[index];
  bool pings = true;
  while (link.life.live()) {
    std::array<std::byte, 16384> buffer;
    const auto count = link.connection->read(buffer);
    if (!count) {
      lose(index, false);
      return false;
    }
    if (*count == 0) {
      return pings;
    }
    link.in.insert(link.in.end(), buffer.begin(),
                   buffer.begin() + static_cast<std::ptrdiff_t>(*count));
    std::size_t at = 0;
    while (link.life.live() && link.in.size() - at >= kFrameHeaderSize) {
      const auto header = decode_frame_header({link.in.data() + at, kFrameHeaderSize});
      if (!header || carries_payload(header->type) || !speaks(facts.version, header->type)) {
        lose(index, false);
        return false;
      }
      pings = pings && (header->type == FrameType::ping || header->type == FrameType::pong);
      if (link.in.size() - at < kFrameHeaderSize + header->length) {
        break;
      }
      const Bytes body(
          link.in.begin() + static_cast<std::ptrdiff_t>(at + kFrameHeaderSize),
          link.in.begin() + static_cast<std::ptrdiff_t>(at + kFrameHeaderSize + header->length));
      at += kFrameHeaderSize + header->length;
      on_frame_(*this, index, *header, body);
    }
    link.in.erase(link.in.begin(), link.in.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return false;
}

void Peer::heard_rails(const RailsReport& report) {
  if (report.number > remote.number) {
    for (std::size_t i = 0; i < rails; ++i) {
      if (report.down[i] && !remote.down[i]) {
        context_.stats.event(pages::StatsEventKind::rail_told_down, 0, 255,
                             static_cast<std::uint8_t>(i), 0);
      }
    }
    remote = report;
    hints_dirty = true;
  }
}

void Peer::tick(std::int64_t now, std::int64_t ping_every) {
  core::each(hinted_before_ & ~hinted.down(), [&](core::PathIndex index) {
    links_[index].next_dial = now;  // said to be well again: try at once
    links_[index].backoff = 0;
    path_changed(index);
  });
  hinted_before_ = hinted.down();
  core::each(live_, [&](core::PathIndex index) {
    Link& link = links_[index];
    if (hinted.should_close(index, link.up_since, live_)) {
      lose(index, false);
      return;
    }
    flush(index);
    if (!link.life.live()) {
      return;
    }
    const auto info = link.connection->sample();
    // What the peer says of itself proves only that way; an answer to our own words proves both.
    if (info &&
        std::exchange(link.acknowledged, info->acknowledged_bytes) != info->acknowledged_bytes) {
      facts.heard[index] = now - info->since_ack_ns;
    }
    if (link.maybe_unacked && info) {
      // It is its own witness: a ping that was lost alone in flight shows with the next one's ACK.
      const core::Liveness liveness = link.ack_timeout.judge(*info, now, 0);
      if (liveness == core::Liveness::dead) {
        lose(index, true);
        return;
      }
      // Sooner, each would answer the other's answer for ever.
      if (liveness == core::Liveness::suspect && now - link.unacked_since >= kDelayedAckNs) {
        ping(core::bit(index), now);
      }
      if (info->unacknowledged == 0 && link.connection->backlog() == 0) {
        link.maybe_unacked = false;
        link.ack_timeout.reset();
      }
    }
    // The side that only answers pings as well, seldomer: a peer that was rebooted says RST to
    // that, and to silence nothing.
    if (now - link.last_ping >= (outbound ? ping_every : 4 * ping_every)) {
      ping(core::bit(index), now);
    }
  });
  // A link that comes and goes every second is no news of its path: large packets alone may die.
  core::each(live_ & ~facts.control_live, [this](core::PathIndex index) {
    if (links_[index].lived > kCalmNs) {
      path_changed(index);
    }
  });
  facts.control_live = live_;
  facts.held = validation.held(now);
  facts.down.report(hinted.down() | silent_, now);
  core::each(silent_ & ~hinted.down(),
             [this](core::PathIndex index) { facts.why[index] = pages::PathDownReason::no_ack; });
  const core::PathSet silent = silent_ & ~facts.rdma_well;
  facts.rdma.down.report(rdma_hinted | silent, now);
  core::each(silent & ~rdma_hinted, [this](core::PathIndex index) {
    facts.rdma.why[index] = pages::PathDownReason::no_ack;
  });
}

bool Peer::calm(std::int64_t now) const {
  bool calm = true;
  core::each(live_, [&](core::PathIndex index) {
    const Link& link = links_[index];
    calm = calm && link.out.empty() &&
           (!link.maybe_unacked || now - link.unacked_since < kDelayedAckNs);
  });
  return calm;
}

void Peer::ping(core::PathSet links, std::int64_t now) {
  core::each(links & live_, [&](core::PathIndex index) {
    Link& link = links_[index];
    if (now - link.last_ping >= kPingMinNs && link.out.empty()) {
      link.last_ping = now;
      send(index, [now](Bytes& out) {
        append_number(out, FrameType::ping, static_cast<std::uint64_t>(now));
      });
    }
  });
}

// Pairs of rails that each lost their own pair: all that is left when the ends lost different ones.
core::PathSet Peer::cross_rail_paths() const {
  core::PathSet set = 0;
  core::each(facts.base & ~live_, [&](core::PathIndex a) {
    core::each(facts.base & ~live_, [&](core::PathIndex b) {
      set |= core::bit(core::path_index(core::sender_rail(a), core::receiver_rail(b)));
    });
  });
  return set;
}

core::PathSet Peer::to_dial(std::int64_t now) {
  core::PathSet wanted = facts.base | primaries;
  if (now - created_ > kCrossAfterNs) {
    wanted |= cross_rail_paths();
  }
  core::PathSet set = 0;
  core::each(wanted & ~live_, [&](core::PathIndex index) {
    const Link& link = links_[index];
    if (link.life.may(core::LinkEvent::dial) && now >= link.next_dial &&
        addresses[remote_rail(index)].present() && (!hinted.reports(index) || live_ == 0)) {
      set |= core::bit(index);
    }
  });
  return set;
}

void Peer::dialing(core::PathIndex index, std::int64_t now) {
  Link& link = links_[index];
  link.life.on(core::LinkEvent::dial);
  link.backoff = link.backoff == 0 ? kDialMinNs : std::min(2 * link.backoff, kDialMaxNs);
  link.next_dial = now + link.backoff;
}

void Peer::dial_failed(core::PathIndex index, std::int64_t now) {
  Link& link = links_[index];
  if (link.life.phase() == core::LinkPhase::dialing) {
    link.life.on(core::LinkEvent::lost);
    link.next_dial = std::max(link.next_dial, now);
  }
}

core::PathSet Peer::to_probe(std::int64_t now) {
  if (outbound || live_ != 0 || comms == 0 || gone || now < next_probe_) {
    if (live_ != 0) {
      probe_backoff_ = 0;
      next_probe_ = now + kDialMinNs;
    }
    return 0;
  }
  probe_backoff_ = probe_backoff_ == 0 ? 2 * kDialMinNs : std::min(2 * probe_backoff_, kDialMaxNs);
  next_probe_ = now + probe_backoff_;
  core::PathSet set = 0;
  core::each(facts.base, [&](core::PathIndex index) {
    if (addresses[remote_rail(index)].present()) {
      set |= core::bit(index);
    }
  });
  return set;
}

void Peer::refused(core::PathIndex index, std::int64_t now) {
  if (live_ != 0) {
    return;
  }
  Refusals& row = refusals_[remote_rail(index)];
  if (row.count == 0 || now - row.last > kRefusalsApartNs) {
    row = {0, now, now};
  }
  ++row.count;
  row.last = now;
}

// A closed port on the peer's own address means that its process is gone; a pause in which nothing
// refuses proves nothing, and one address alone little.
bool Peer::dead(std::int64_t now) const {
  bool every = true;
  std::int64_t longest = -1;
  for (std::size_t rail = 0; rail < addresses.size(); ++rail) {
    const Refusals& row = refusals_[rail];
    const bool lasting = row.count >= kGoneRefusals && now - row.first >= kGoneAfterNs &&
                         now - row.last <= kRefusalsApartNs;
    if (lasting) {
      longest = std::max(longest, row.last - row.first);
    } else if (addresses[rail].present()) {
      every = false;
    }
  }
  return live_ == 0 && longest >= 0 && (every || longest >= kGoneAloneNs);
}

void Peer::send(core::PathIndex index, const std::function<void(Bytes&)>& append) {
  Link& link = links_[index];
  if (!link.life.live() || link.out.size() > kMaxBacklog) {
    return;
  }
  append(link.out);
  flush(index);
}

void Peer::broadcast(const std::function<void(Bytes&)>& append) {
  core::each(live_, [&](core::PathIndex index) { send(index, append); });
}

void Peer::flush(core::PathIndex index) {
  Link& link = links_[index];
  while (link.out_at < link.out.size()) {
    const auto count = link.connection->write(std::span(link.out).subspan(link.out_at));
    if (!count) {
      lose(index, false);
      return;
    }
    if (*count == 0) {
      return;
    }
    if (!std::exchange(link.maybe_unacked, true)) {
      link.unacked_since = monotonic_ns();
    }
    link.out_at += *count;
  }
  link.out.clear();
  link.out_at = 0;
}

}  // namespace fabric::host
