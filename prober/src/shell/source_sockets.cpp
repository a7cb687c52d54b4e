#include "shell/source_sockets.h"

#include <system_error>

#include "shell/log.h"

namespace fabric::prober {
namespace {

constexpr Nanos kSourceRetry = 100'000'000;

}  // namespace

ProbeSocket* SourceSockets::at(std::uint16_t port) {
  const auto found = sockets_.find(port);
  return found == sockets_.end() ? nullptr : found->second.socket.get();
}

bool SourceSockets::open(const LinkConfig& link, std::uint16_t port, std::uint8_t dscp,
                         const std::shared_ptr<ProbeSocket::Buffers>& buffers, Nanos now) {
  Slot& slot = sockets_[port];
  if (slot.socket || now < slot.next_open) return slot.socket != nullptr;
  LinkConfig from = link;
  from.address.port = port;
  try {
    slot.socket = std::make_unique<ProbeSocket>(from, dscp, buffers, ProbeSocket::Use::kSends);
    slot.complaint.clear();
    log_info(link.netdev + ": probing from port " + std::to_string(port) + " too");
  } catch (const std::system_error& error) {
    if (slot.complaint != error.what()) {
      slot.complaint = error.what();
      log_warning(link.netdev + ", port " + std::to_string(port) + ": " + slot.complaint +
                  "; retried");
    }
    slot.next_open = now + kSourceRetry;
  }
  return slot.socket != nullptr;
}

void SourceSockets::close_unless(const std::function<bool(std::uint16_t port)>& used) {
  std::erase_if(sockets_, [&](const auto& entry) { return !used(entry.first); });
}

void SourceSockets::drain_stamps(const ProbeSocket::OnStamp& on_stamp) {
  for (auto& [port, slot] : sockets_) {
    if (slot.socket) slot.socket->drain_stamps(on_stamp);
  }
}

}  // namespace fabric::prober
