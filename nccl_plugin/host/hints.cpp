#include "host/hints.h"

#include <algorithm>

namespace fabric::host {

namespace {

using pages::LinkState;

template <typename Entry>
bool said_down(const Entry* entry) {
  return entry != nullptr && entry->weight == 0 &&
         entry->state == static_cast<std::uint8_t>(LinkState::down);
}

template <typename Entry>
bool rdma_said_down(const Entry* entry) {
  return entry != nullptr && pages::rdma_weight(*entry) == 0 &&
         pages::rdma_state(*entry) == LinkState::down;
}

// The daemon measures RDMA there, and it carries.
template <typename Entry>
bool rdma_well(const Entry& entry) {
  const LinkState state = pages::rdma_state(entry);
  return entry.rdma_given != 0 && entry.rdma_weight != 0 &&
         (state == LinkState::up || state == LinkState::degraded);
}

}  // namespace

Hints::Hints(Context& context, Poller& poller)
    : context_(context), steer_(context.params.run_dir + "/steer"), watch_(poller) {
  // Before the page is read for the first time: what is written after that is an event.
  steer_.on_open([this](const std::string& path) { watch_.follow(path); });
  up_.fill(true);
  local_.weight.fill(core::kFullWeight);
  local_.rdma_weight.fill(core::kFullWeight);
}

bool Hints::poll(std::int64_t now) {
  bool changed = steer_.poll(now);
  const SteerView* view = steer_.view();
  context_.stats.steer_present.store(view != nullptr, std::memory_order_relaxed);
  context_.stats.steer_rejected.store(steer_.rejected(), std::memory_order_relaxed);
  RailsReport report = local_;
  for (std::size_t i = 0; i < context_.rails.size(); ++i) {
    up_[i] = carrier_.up(context_.rails[i]);
    moved_[i] = gone_[i] || now < moved_until_[i];
    const pages::SteerRail* entry = view == nullptr ? nullptr : view->rail(context_.rails[i].name);
    report.weight[i] = entry == nullptr ? core::kFullWeight : entry->weight;
    report.down[i] = !up_[i] || moved_[i] || said_down(entry);
    report.rdma_weight[i] = entry == nullptr ? core::kFullWeight : pages::rdma_weight(*entry);
    report.rdma_down[i] = !up_[i] || moved_[i] || rdma_said_down(entry);
  }
  if (!report.same_rails(local_)) {
    say_rdma(report);
    local_ = report;
    ++local_.number;
    changed = true;
  }
  return changed;
}

// Whoever reads the log must see why paths are TCP.
void Hints::say_rdma(const RailsReport& next) const {
  if (context_.memory == nullptr) {
    return;  // they are TCP anyway
  }
  for (std::size_t i = 0; i < context_.rails.size(); ++i) {
    const bool had = local_.rdma_weight[i] != 0;
    if ((next.rdma_weight[i] != 0) == had || next.weight[i] == 0) {
      continue;
    }
    context_.say(LogLevel::info, "verbs: the steer page " +
                                     std::string(had ? "takes RDMA from " : "gives RDMA back to ") +
                                     context_.rails[i].name + (had ? "; its paths are TCP" : ""));
  }
}

SaidDown Hints::apply(PeerFacts& facts, const RailTable& remote_addresses,
                      const RailsReport& remote, std::size_t remote_rails, bool outbound) const {
  SaidDown down;
  facts.weight.fill(0);
  facts.rdma.weight.fill(0);
  facts.rdma_well = 0;
  const SteerView* view = steer_.view();
  for (std::size_t l = 0; l < context_.rails.size(); ++l) {
    const std::string& name = context_.rails[l].name;
    const pages::SteerRail* rail = view == nullptr ? nullptr : view->rail(name);
    for (std::size_t r = 0; r < remote_rails; ++r) {
      const core::PathIndex path = outbound ? core::path_index(l, r) : core::path_index(r, l);
      const pages::SteerPath* entry =
          view == nullptr ? nullptr : view->path(name, remote_addresses[r]);
      const auto say = [&](KindFacts& kind, core::PathSet& set, std::uint16_t weight,
                           bool page_down, bool told) {
        kind.weight[path] = weight;
        if (page_down || told) {
          set |= core::bit(path);
          kind.why[path] = !up_[l]     ? pages::PathDownReason::carrier
                           : moved_[l] ? pages::PathDownReason::moved
                           : page_down ? pages::PathDownReason::steer_page
                                       : pages::PathDownReason::peer_told;
        }
      };
      const std::uint16_t most = entry == nullptr ? core::kFullWeight : entry->weight;
      const std::uint16_t rdma_most =
          entry == nullptr ? core::kFullWeight : pages::rdma_weight(*entry);
      say(facts, down.stream, std::min({local_.weight[l], remote.weight[r], most}),
          local_.down[l] || said_down(entry), remote.down[r]);
      say(facts.rdma, down.rdma,
          std::min({local_.rdma_weight[l], remote.rdma_weight[r], rdma_most}),
          local_.rdma_down[l] || rdma_said_down(entry), remote.rdma_down[r]);
      if (rail != nullptr && rdma_well(*rail) && (entry == nullptr || rdma_well(*entry))) {
        facts.rdma_well |= core::bit(path);
      }
    }
  }
  return down;
}

}  // namespace fabric::host
