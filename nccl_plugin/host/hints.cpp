#include "host/hints.h"

#include <algorithm>

namespace fabric::host {

Hints::Hints(Context& context, Poller& poller)
    : context_(context), steer_(context.params.run_dir + "/steer"), watch_(poller) {
  // Before the page is read for the first time: what is written after that is an event.
  steer_.on_open([this](const std::string& path) { watch_.follow(path); });
  up_.fill(true);
  local_.weight.fill(core::kFullWeight);
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
    report.down[i] = !up_[i] || moved_[i] ||
                     (entry != nullptr && entry->weight == 0 &&
                      entry->state == static_cast<std::uint8_t>(pages::LinkState::down));
  }
  if (report.weight != local_.weight || report.down != local_.down) {
    local_ = report;
    ++local_.number;
    changed = true;
  }
  return changed;
}

core::PathSet Hints::apply(PeerFacts& facts, const RailTable& remote_addresses,
                           const RailsReport& remote, std::size_t remote_rails,
                           bool outbound) const {
  core::PathSet down = 0;
  facts.weight.fill(0);
  const SteerView* view = steer_.view();
  for (std::size_t l = 0; l < context_.rails.size(); ++l) {
    for (std::size_t r = 0; r < remote_rails; ++r) {
      const core::PathIndex path = outbound ? core::path_index(l, r) : core::path_index(r, l);
      std::uint16_t weight = std::min(local_.weight[l], remote.weight[r]);
      const pages::SteerPath* entry =
          view == nullptr ? nullptr : view->path(context_.rails[l].name, remote_addresses[r]);
      bool page_down = local_.down[l];
      if (entry != nullptr) {
        weight = std::min(weight, entry->weight);
        page_down =
            page_down || (entry->weight == 0 &&
                          entry->state == static_cast<std::uint8_t>(pages::LinkState::down));
      }
      facts.weight[path] = weight;
      if (page_down || remote.down[r]) {
        down |= core::bit(path);
        facts.why[path] = !up_[l]     ? pages::PathDownReason::carrier
                          : moved_[l] ? pages::PathDownReason::moved
                          : page_down ? pages::PathDownReason::steer_page
                                      : pages::PathDownReason::peer_told;
      }
    }
  }
  return down;
}

}  // namespace fabric::host
