// The RDMA links of the prober: a verbs port each, opened, watched and opened anew by a worker
// thread, so that no device and no neighbour holds up the probes of the others.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "shell/slow_worker.h"
#include "shell/ud_port.h"

namespace fabric::prober {

class RdmaPorts {
 public:
  // `verbs`: instead of libibverbs, which is loaded when the first port is opened.
  explicit RdmaPorts(int epoll, const verbs::Functions* verbs = nullptr);
  ~RdmaPorts();
  RdmaPorts(const RdmaPorts&) = delete;
  RdmaPorts& operator=(const RdmaPorts&) = delete;

  // Those that stay keep their queue pair. `links`: the configuration's RDMA links, in order.
  void configure(std::span<const LinkConfig> links, std::uint8_t dscp);
  bool empty() const { return ports_.empty(); }

  // Each pass: opens what is not open, takes what became ready, tells the engine of changes.
  void look(Engine& engine, RecordSink& sink, Nanos now);
  // True if `fd` was of one of the ports.
  bool handle(int fd);
  // All that came; at most `most` packets a port. `floor`: when the ports were last drained.
  void receive(Engine& engine, RecordSink& sink, std::size_t most, Nanos floor);
  // Packets of one link. What has no handle yet is refused, and a handle is asked for.
  std::uint64_t send(std::span<const Outgoing> packets, Engine& engine, Nanos now);
  ring::LinkRow row(std::uint16_t link, Nanos last_heard) const;

 private:
  using HandleKey = std::pair<std::array<std::uint8_t, 16>, std::uint16_t>;  // GID and LID
  static HandleKey key_of(const Outgoing& packet) { return {packet.destination.ip, packet.to.lid}; }
  struct Handle {
    ibv_ah* ah = nullptr;
    bool asked = false;
    Nanos made = 0;
    Nanos next = 0;  // when to ask again
  };
  struct Port {
    LinkConfig config;
    std::shared_ptr<UdPort> port;  // null: not open
    std::map<HandleKey, Handle> handles;
    std::vector<std::pair<ibv_ah*, Nanos>> old_handles;  // a send may still need them
    std::uint64_t life = 0;  // of the work under way: what is of an earlier one is dropped
    bool busy = false;       // it is being opened, or checked
    Nanos next_open = 0;
    std::string complaint;   // said once
    double credit = kBurst;  // wakes for packets
    Nanos credited = 0;
    bool armed = true;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t send_errors = 0;
  };
  // Wakes for received packets, per port and second: what comes faster waits for the next tick.
  static constexpr double kWakes = 1000;
  static constexpr double kBurst = 50;

  Port* find(std::uint16_t link);
  void open(Port& port);
  void take_opened(std::uint64_t life, std::shared_ptr<UdPort> opened, const std::string& why);
  void close(Port& port, const std::string& why);
  void check(Port& port);
  // The handle that a packet is sent by: asked for once, and again while its peer is not heard.
  void ask_handle(Port& port, const Outgoing& packet, Handle& handle, bool heard, Nanos now);
  void take_handle(Port& port, Handle& handle, ibv_ah* made);
  void watch(int fd, bool on) const;
  void rearm(Port& port, Nanos now);
  void free_old(Port& port, Nanos now);

  int epoll_;
  const verbs::Functions* verbs_;
  std::uint8_t dscp_ = 0;
  std::uint64_t lives_ = 0;
  std::vector<std::unique_ptr<Port>> ports_;
  SlowWorker worker_;  // last: its work refers to what is above
};

}  // namespace fabric::prober
