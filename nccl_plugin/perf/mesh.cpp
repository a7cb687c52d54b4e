#include "perf/mesh.h"

#include <algorithm>
#include <cstring>

#include "perf/clock.h"

namespace fabric::perf {

Mesh::Mesh(Plugin& plugin, Rendezvous& rendezvous, const Options& options,
           const std::vector<Link>& links, std::vector<int> device_of)
    : plugin_(plugin), rank_(options.rank), device_of_(std::move(device_of)) {
  // Every rank publishes the handles of the links that end at it, in the common order of links.
  std::vector<void*> listeners;
  std::string mine;
  for (const Link& link : links) {
    if (link.source != rank_ && link.destination != rank_) continue;
    comms_.push_back({link, link.source == rank_, nullptr, {}});
    void* listener = nullptr;
    if (link.destination == rank_) {
      Handle handle{};
      listener = plugin_.listen(device(link), &handle);
      if (listener == nullptr) throw TransportError("listen", 0, "listen gave no comm");
      mine.append(reinterpret_cast<const char*>(handle.data()), handle.size());
    }
    listeners.push_back(listener);
  }
  const std::vector<std::string> all = rendezvous.all_gather("handles", mine);
  std::vector<std::size_t> next(all.size(), 0);
  std::vector<Handle> handles;
  for (const Link& link : links) {
    const auto owner = static_cast<std::size_t>(link.destination);
    const std::size_t at = next[owner];
    next[owner] += kHandleBytes;
    if (link.source != rank_ && link.destination != rank_) continue;
    Handle handle{};
    if (at + kHandleBytes > all[owner].size()) {
      throw TransportError("rendezvous", 0,
                           "rank " + std::to_string(owner) + " published too few handles");
    }
    std::memcpy(handle.data(), all[owner].data() + at, kHandleBytes);
    handles.push_back(handle);
  }
  Idle idle(plugin_, options.wait);
  connect_all(handles, listeners, options.timeout_s, idle);
}

void Mesh::connect_all(std::vector<Handle>& handles, std::vector<void*>& listeners,
                       double timeout_s, Idle& idle) {
  const std::int64_t deadline = monotonic_ns() + static_cast<std::int64_t>(timeout_s * 1e9);
  while (true) {
    bool moved = false;
    const Comm* waiting = nullptr;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      Comm& c = comms_[i];
      if (c.comm != nullptr) continue;
      try {
        c.comm = c.outgoing ? plugin_.connect(device(c.link), &handles[i])
                            : plugin_.accept(listeners[i]);
      } catch (const TransportError& error) {
        throw TransportError(error.where + " (" + label(c.link) + ")", error.code, error.what());
      }
      if (c.comm == nullptr) {
        waiting = &c;
        continue;
      }
      moved = true;
      if (!c.outgoing) plugin_.close_listen(listeners[i]);
    }
    if (waiting == nullptr) return;
    if (monotonic_ns() > deadline) {
      throw TransportError(waiting->outgoing ? "connect" : "accept", 0,
                           "timed out connecting " + label(waiting->link));
    }
    if (moved) {
      idle.moved();
    } else {
      idle.wait();
    }
  }
}

const Mesh::Comm& Mesh::find(const Link& link) const {
  const auto found =
      std::find_if(comms_.begin(), comms_.end(), [&](const Comm& c) { return c.link == link; });
  if (found == comms_.end()) throw std::logic_error("no such link: " + label(link));
  return *found;
}

int Mesh::device(const Link& link) const {
  return device_of_.at(static_cast<std::size_t>(std::max(link.channel, 0)));
}

std::string Mesh::label(const Link& link) const {
  std::string text =
      "rank " + std::to_string(link.source) + " -> rank " + std::to_string(link.destination);
  return text +
         (link.channel == kTokenChannel ? ", token" : ", channel " + std::to_string(link.channel));
}

Endpoint Mesh::endpoint(const Link& link) const { return {find(link).comm, label(link)}; }

Registered Mesh::add(const Link& link, std::byte* data, std::size_t size) {
  auto& comm = const_cast<Comm&>(find(link));
  void* region = plugin_.register_memory(comm.comm, data, size);
  comm.regions.push_back(region);
  return {data, size, region};
}

void Mesh::remove(const Link& link, const Registered& memory) {
  auto& comm = const_cast<Comm&>(find(link));
  plugin_.deregister_memory(comm.comm, memory.region);
  std::erase(comm.regions, memory.region);
}

void Mesh::deregister(Comm& comm) {
  for (void* region : comm.regions) plugin_.deregister_memory(comm.comm, region);
  comm.regions.clear();
}

void Mesh::close(const Link& link) {
  auto& comm = const_cast<Comm&>(find(link));
  deregister(comm);
  comm.outgoing ? plugin_.close_send(comm.comm) : plugin_.close_receive(comm.comm);
  std::erase_if(comms_, [&](const Comm& c) { return c.link == link; });
}

void Mesh::close() {
  for (Comm& c : comms_) deregister(c);
  // Senders first: closing them drains what the peer has still to hear.
  for (Comm& c : comms_) {
    if (c.outgoing) plugin_.close_send(c.comm);
  }
  for (Comm& c : comms_) {
    if (!c.outgoing) plugin_.close_receive(c.comm);
  }
  comms_.clear();
}

}  // namespace fabric::perf
