// The sockets of one link beside its own: one for each other source port that a path of it is
// probed from. They send, and receive nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "shell/probe_socket.h"

namespace fabric::prober {

class SourceSockets {
 public:
  // Null: there is none (yet).
  ProbeSocket* at(std::uint16_t port);
  // Opens one; whether there is one now. What cannot be opened is tried again ten times a second.
  bool open(const LinkConfig& link, std::uint16_t port, std::uint8_t dscp,
            const std::shared_ptr<ProbeSocket::Buffers>& buffers, Nanos now);
  void close_unless(const std::function<bool(std::uint16_t port)>& used);
  void clear() { sockets_.clear(); }
  void drain_stamps(const ProbeSocket::OnStamp& on_stamp);

 private:
  struct Slot {
    std::unique_ptr<ProbeSocket> socket;
    std::string complaint;  // why it is not open, said once
    Nanos next_open = 0;
  };
  std::map<std::uint16_t, Slot> sockets_;
};

}  // namespace fabric::prober
