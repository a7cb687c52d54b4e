#include "core/ports.h"

#include <algorithm>

namespace fabric::prober {

std::vector<PortWish> parse_ports(const clock_ports::Record& record) {
  std::vector<PortWish> out;
  for (const clock_ports::Entry& entry : record.entry) {
    if (entry.port < clock_ports::kLeastPort || entry.host_id == 0 || entry.peer_port == 0)
      continue;
    PortWish wish;
    std::copy_n(entry.own, wish.own.ip.size(), wish.own.ip.begin());
    std::copy_n(entry.peer, wish.peer.ip.size(), wish.peer.ip.begin());
    wish.peer.port = entry.peer_port;
    wish.host_id = entry.host_id;
    wish.port = entry.port;
    out.push_back(wish);
  }
  return out;
}

void SourcePort::want(std::uint16_t port) {
  if (port == wanted_) return;
  wanted_ = port;
  refused_ = false;
  attempts_ = 0;
  if (port == 0) used_ = 0;
}

void SourcePort::peer_roams(bool roams) {
  told_ = true;
  roams_ = roams;
  if (!roams) used_ = 0;
}

std::uint16_t SourcePort::next(std::uint8_t train, Nanos now) {
  if (wanted_ == used_ || refused_ || !roams_) return used_;
  if (attempts_ == kAttempts) {
    refused_ = now - last_attempt_ > kAttemptWait;
    return used_;
  }
  if (train != 1) return used_;
  ++attempts_;
  last_attempt_ = now;
  return wanted_;
}

void SourcePort::heard(std::uint16_t port) {
  if (port != 0 && port == wanted_ && !refused_) used_ = port;
}

void SourcePort::missed() {
  if (used_ == 0) return;
  used_ = 0;
  refused_ = true;
}

}  // namespace fabric::prober
