#include "shell/rdma_ports.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <stdexcept>

#include "shell/clock.h"
#include "shell/log.h"

namespace fabric::prober {
namespace {

constexpr Nanos kDeviceRetry = 1'000'000'000;
constexpr Nanos kHandleRetry = 250'000'000;
constexpr Nanos kDoubted = 1'000'000'000;  // a handle so old is made anew when its peer is silent
constexpr Nanos kOld = 1'000'000'000;      // no send needs a handle that was replaced so long ago

std::string name_of(const LinkConfig& link) {
  return link.netdev + " (" + link.device + "/" + std::to_string(link.device_port) + ")";
}

const verbs::Functions& libibverbs() {
  const verbs::Library& library = verbs::Library::get();
  if (library.functions() == nullptr) throw std::runtime_error(library.missing());
  return *library.functions();
}

bool same_port(const LinkConfig& a, const LinkConfig& b) {
  return a.netdev == b.netdev && a.address == b.address && a.device == b.device &&
         a.device_port == b.device_port;
}

}  // namespace

RdmaPorts::RdmaPorts(int epoll, const verbs::Functions* verbs) : epoll_(epoll), verbs_(verbs) {}

RdmaPorts::~RdmaPorts() = default;

void RdmaPorts::configure(std::span<const LinkConfig> links, std::uint8_t dscp) {
  std::vector<std::unique_ptr<Port>> old = std::exchange(ports_, {});
  for (const LinkConfig& link : links) {
    const auto same = std::find_if(old.begin(), old.end(), [&](const auto& port) {
      return port && same_port(port->config, link);
    });
    if (same != old.end() && dscp == dscp_) {
      ports_.push_back(std::move(*same));
    } else {
      ports_.push_back(std::make_unique<Port>());
      ports_.back()->life = ++lives_;
    }
    ports_.back()->config = link;
  }
  for (auto& port : old) {
    if (port && port->port) close(*port, "");
  }
  dscp_ = dscp;
}

RdmaPorts::Port* RdmaPorts::find(std::uint16_t link) {
  for (const auto& port : ports_) {
    if (port->config.index == link) return port.get();
  }
  return nullptr;
}

void RdmaPorts::watch(int fd, bool on) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  ::epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event);
}

void RdmaPorts::open(Port& port) {
  port.busy = true;
  worker_.post([this, link = port.config, life = port.life, dscp = dscp_]() -> SlowWorker::Result {
    std::shared_ptr<UdPort> opened;
    std::string why;
    try {
      opened = std::make_shared<UdPort>(verbs_ != nullptr ? *verbs_ : libibverbs(), link, dscp);
    } catch (const std::exception& error) {
      why = error.what();
    }
    return [this, life, opened, why] { take_opened(life, opened, why); };
  });
}

void RdmaPorts::take_opened(std::uint64_t life, std::shared_ptr<UdPort> opened,
                            const std::string& why) {
  const auto found = std::find_if(ports_.begin(), ports_.end(),
                                  [&](const auto& item) { return item->life == life; });
  if (found == ports_.end()) {
    // Another configuration has come; the device may take long to be closed.
    worker_.post([unused = std::move(opened)]() mutable -> SlowWorker::Result {
      unused.reset();
      return {};
    });
    return;
  }
  Port& port = **found;
  port.busy = false;
  port.next_open = read_clock(CLOCK_MONOTONIC) + kDeviceRetry;
  port.port = std::move(opened);
  if (port.port) {
    port.complaint.clear();
    port.armed = true;
    watch(port.port->completion_fd(), true);
    watch(port.port->event_fd(), true);
    log_info(name_of(port.config) + ": RDMA probes from queue pair " +
             std::to_string(port.port->terms().qpn) +
             (port.port->stamped() ? ", the device's stamps" : ", software stamps"));
  } else if (port.complaint != why) {
    port.complaint = why;
    log_warning(name_of(port.config) + ": no RDMA probes: " + why + "; retried");
  }
}

void RdmaPorts::close(Port& port, const std::string& why) {
  if (!why.empty()) log_warning(name_of(port.config) + ": " + why + "; opened anew");
  watch(port.port->completion_fd(), false);
  watch(port.port->event_fd(), false);
  port.handles.clear();
  port.old_handles.clear();
  port.life = ++lives_;
  port.busy = false;
  worker_.post([opened = std::move(port.port)]() mutable -> SlowWorker::Result {
    opened.reset();
    return {};
  });
  port.port = nullptr;
}

void RdmaPorts::check(Port& port) {
  worker_.post([this, opened = port.port, life = port.life]() -> SlowWorker::Result {
    if (opened->is_current()) return {};
    return [this, life] {
      for (const auto& item : ports_) {
        if (item->life == life && item->port) close(*item, "its GID or LID is another now");
      }
    };
  });
}

void RdmaPorts::look(Engine& engine, RecordSink& sink, Nanos now) {
  if (ports_.empty()) return;
  worker_.collect();
  for (const auto& item : ports_) {
    Port& port = *item;
    if (!port.port) {
      engine.set_ud_terms(port.config.index, {});
      if (!port.busy && now >= port.next_open) open(port);
      continue;
    }
    for (auto event = port.port->next_event(); event != UdPort::PortEvent::kNone;
         event = port.port->next_event()) {
      if (event == UdPort::PortEvent::kChanged) check(port);
      if (event != UdPort::PortEvent::kActive && event != UdPort::PortEvent::kDown) continue;
      ring::EventRecord record{};
      record.mono_ns = static_cast<std::uint64_t>(now);
      record.kind = static_cast<std::uint16_t>(ring::EventKind::kRdmaPort);
      record.flags = event == UdPort::PortEvent::kActive ? ring::kFlagCarrier : 0;
      record.link = port.config.index;
      record.path = ring::kNone;
      sink.event(record);
    }
    if (port.port->failed()) {
      close(port, port.port->reason());
      port.next_open = now + kDeviceRetry / 10;
      continue;
    }
    engine.set_ud_terms(port.config.index, port.port->terms());
    port.port->read_device_clock(now);
    free_old(port, now);
    rearm(port, now);
  }
}

void RdmaPorts::free_old(Port& port, Nanos now) {
  if (port.old_handles.empty() || port.port->unsent() != 0) return;
  std::erase_if(port.old_handles, [&](const auto& old) {
    if (now - old.second < kOld) return false;
    worker_.post([opened = port.port, handle = old.first]() mutable -> SlowWorker::Result {
      opened->free_handle(handle);
      opened.reset();
      return {};
    });
    return true;
  });
}

void RdmaPorts::rearm(Port& port, Nanos now) {
  const double gained = static_cast<double>(now - port.credited) * kWakes / 1e9;
  port.credit = std::min(kBurst, port.credit + gained);
  port.credited = now;
  if (port.armed || port.credit < 1) return;
  port.armed = true;
  port.port->arm();
}

bool RdmaPorts::handle(int fd) {
  for (const auto& item : ports_) {
    if (!item->port) continue;
    if (fd == item->port->event_fd()) return true;  // look() reads it
    if (fd != item->port->completion_fd()) continue;
    item->port->take_notices();
    item->armed = false;
    item->credit -= 1;
    return true;
  }
  return false;
}

void RdmaPorts::receive(Engine& engine, RecordSink& sink, std::size_t most, Nanos floor) {
  for (const auto& item : ports_) {
    Port& port = *item;
    if (!port.port) continue;
    port.port->drain_sent([&](std::span<const std::uint8_t> bytes, std::int64_t stamp) {
      engine.on_transmit_stamp(bytes, stamp, false, read_clock(CLOCK_MONOTONIC));
    });
    const std::uint64_t before = engine.counters().received;
    port.port->drain(most, [&](const UdPort::Received& packet) {
      const Nanos now = read_clock(CLOCK_MONOTONIC);
      engine.note_running(now, sink);
      Datagram datagram;
      const auto source =
          packet.source ? packet.source : engine.find_peer(port.config.index, packet.from);
      // Of an address that is nobody's, a packet is refused as any other.
      datagram.source = source.value_or(Address{});
      datagram.bytes = packet.bytes;
      datagram.length = packet.length;
      datagram.arrival = {packet.stamp, false, std::max(now, floor)};
      engine.on_datagrams(port.config.index, {&datagram, 1}, sink);
    });
    port.received += engine.counters().received - before;
  }
}

std::uint64_t RdmaPorts::send(std::span<const Outgoing> packets, Engine& engine, Nanos now) {
  Port* port = find(packets.front().link);
  std::uint64_t sent = 0;
  for (const Outgoing& packet : packets) {
    Handle* handle = nullptr;
    if (port != nullptr && port->port) {
      handle = &port->handles[key_of(packet)];
      ask_handle(*port, packet, *handle, engine.hears(packet.link, packet.destination), now);
    }
    if (handle == nullptr || handle->ah == nullptr || !port->port->send(packet, handle->ah)) {
      engine.on_refused(packet, now);
      if (port != nullptr) ++port->send_errors;
      continue;
    }
    ++port->sent;
    ++sent;
  }
  if (sent != 0) {
    port->port->drain_sent([&](std::span<const std::uint8_t> bytes, std::int64_t stamp) {
      engine.on_transmit_stamp(bytes, stamp, false, read_clock(CLOCK_MONOTONIC));
    });
  }
  return sent;
}

void RdmaPorts::ask_handle(Port& port, const Outgoing& packet, Handle& handle, bool heard,
                           Nanos now) {
  if (handle.asked || now < handle.next) return;
  // The peer's NIC, and with it the address below its GID, may be another one now.
  if (handle.ah != nullptr && (heard || now - handle.made < kDoubted)) return;
  handle.asked = true;
  const auto key = key_of(packet);
  worker_.post([this, opened = port.port, life = port.life, key, to = packet.to,
                peer = packet.destination]() -> SlowWorker::Result {
    ibv_ah* made = opened->make_handle(peer, to);
    return [this, life, key, made] {
      for (const auto& item : ports_) {
        if (item->life == life) take_handle(*item, item->handles[key], made);
      }
    };
  });
}

void RdmaPorts::take_handle(Port& port, Handle& handle, ibv_ah* made) {
  const Nanos now = read_clock(CLOCK_MONOTONIC);
  handle.asked = false;
  handle.next = now + kHandleRetry;
  if (made == nullptr) return;  // its address did not resolve: asked again
  if (handle.ah != nullptr) port.old_handles.emplace_back(handle.ah, now);
  handle.ah = made;
  handle.made = now;
}

ring::LinkRow RdmaPorts::row(std::uint16_t link, Nanos last_heard) const {
  ring::LinkRow row{};
  for (const auto& port : ports_) {
    if (port->config.index != link) continue;
    port->config.netdev.copy(row.netdev, sizeof row.netdev - 1);
    std::copy(port->config.address.ip.begin(), port->config.address.ip.end(), row.address);
    row.port = port->config.address.port;
    const bool open = port->port != nullptr;
    row.flags = ring::kLinkRdma | (open ? ring::kLinkPresent | ring::kLinkBound : 0) |
                (open && port->port->active() ? ring::kLinkCarrier : 0) |
                (open && port->port->stamped() ? ring::kLinkHwStamps : 0);
    row.last_heard_ns = static_cast<std::uint64_t>(last_heard);
    row.sent = port->sent;
    row.received = port->received;
    row.send_errors = port->send_errors;
  }
  return row;
}

}  // namespace fabric::prober
