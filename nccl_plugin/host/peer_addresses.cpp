// Where a peer is, and what a change of that (or of our own rails) does to its links.
#include <algorithm>
#include <utility>

#include "core/schedule.h"
#include "host/peer.h"

namespace fabric::host {

void Peer::found() {
  answered();
  for (Link& link : links_) {
    link.next_dial = 0;
    link.backoff = 0;
  }
}

void Peer::probe_soon() {
  next_probe_ = 0;
  probe_backoff_ = 0;
}

void Peer::learn(const RailTable& table, std::size_t count, std::uint64_t number,
                 std::int64_t now) {
  if (number < addresses_number) {
    return;
  }
  addresses_number = number;
  take(table, count, false, now);
}

void Peer::learn_absent(const RailTable& table, std::size_t count, std::int64_t now) {
  take(table, count, true, now);
}

void Peer::on_liveness_probe(const RailTable& table, std::size_t count, std::uint64_t number,
                             std::int64_t now) {
  if (number > addresses_number && addresses_number != 0) {
    core::each(live_, [&](core::PathIndex index) {
      facts.moved[index] = now;
      lose(index, false);
    });
  }
  learn(table, count, number, now);
  found();
}

void Peer::rail_moved(std::size_t local, std::int64_t now) {
  if (!context_.params.failover) {
    return;  // nothing brings a connection back
  }
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    const auto index = static_cast<core::PathIndex>(i);
    if (local_rail(index) == local) {
      facts.moved[i] = now;
      lose(index, false);
      links_[i].next_dial = 0;
      links_[i].backoff = 0;
      path_changed(index);
    }
  }
  probe_soon();
}

void Peer::rail_changed(std::size_t local) {
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    const auto index = static_cast<core::PathIndex>(i);
    if (local_rail(index) == local) {
      path_changed(index);
    }
  }
}

void Peer::take(const RailTable& table, std::size_t count, bool only_absent, std::int64_t now) {
  // Whoever holds the secret may name any address, and would have us connect to it.
  const bool loopback = std::any_of(context_.rails.begin(), context_.rails.end(),
                                    [](const Rail& rail) { return rail.address.loopback(); });
  // An address that this host has as well (both have a bridge of 172.17.0.1) leads to ourselves. Of
  // a peer that is a process on this host all are such.
  const bool elsewhere = std::any_of(table.begin(), table.end(), [&](const Address& told) {
    return told.reachable() && !told.loopback() && !context_.rails.is_own(told);
  });
  bool changed = false;
  for (std::size_t rail = 0; rail < table.size(); ++rail) {
    const Address& told = table[rail];
    Address& known = addresses[rail];
    if (!told.reachable() || (told.loopback() && !loopback) || told == known ||
        (only_absent && known.present())) {
      continue;
    }
    if (elsewhere && context_.rails.is_own(told)) {
      if (!std::exchange(told_own_, true)) {
        context_.say(LogLevel::info, name() + ": no path to its " + told.host_text() +
                                         ", which this host has as well");
      }
      continue;
    }
    const bool moved = known.present() && known.ip != told.ip;
    known = told;
    changed = true;
    for (std::size_t i = 0; moved && context_.params.failover && i < core::kMaxPaths; ++i) {
      const auto index = static_cast<core::PathIndex>(i);
      if (remote_rail(index) == rail) {
        facts.moved[i] = now;
        if (links_[i].life.live() && links_[i].connection->far_end().ip != told.ip) {
          lose(index, false);
        }
      }
    }
  }
  if (changed) {
    found();
  }
  if (rails == 0 || (rails != count && !only_absent)) {
    rails = count;
    changed = true;
  }
  if (changed) {
    set_base();
  }
}

}  // namespace fabric::host
