// The comms of one rank of a group: rings to its neighbours, opened by connect(), and one comm each
// way to every peer that it sends to or receives from, opened when first used. Used from one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perf/flow.h"
#include "perf/plugin.h"

namespace fabric::collectives {

struct Place {
  int rank = 0;
  int world = 1;
};

class Connections {
 public:
  // Listens. `channels`: rings; 0: one for each device of the plugin, at most kMaxChannels. Throws
  // perf::TransportError.
  Connections(perf::Plugin& plugin, const Place& place, int channels);
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // What the other ranks need to connect to this one.
  const std::string& address() const { return address_; }
  // `addresses`: those of all ranks, in their order. Opens the rings, as many as every rank has.
  // `wait` is called while nothing moves, and ends the attempt by what it throws. Throws
  // perf::UsageError for an address that is none of this group, perf::TransportError.
  void connect(std::span<const std::string_view> addresses, const std::function<void()>& wait);

  std::size_t channels() const { return rings_.size(); }
  const perf::Endpoint& ring_out(std::size_t channel) const { return rings_[channel].out; }
  const perf::Endpoint& ring_in(std::size_t channel) const { return rings_[channel].in; }
  // Null: not connected yet; ask again.
  const perf::Endpoint* to(int peer);
  const perf::Endpoint* from(int peer);

  // Nothing writes into receive buffers afterwards. Takes no time.
  void close_receiving() noexcept;
  // Nothing reads from send buffers afterwards. `gently`: waits until what was sent is
  // acknowledged, or is known to be lost: seconds where a peer does not answer. Else takes no time,
  // where the plugin can cancel sends.
  void close_sending(bool gently) noexcept;

  static constexpr int kMaxChannels = 8;

 private:
  struct Ring {
    void* listener = nullptr;
    perf::Handle next_handle{};
    perf::Endpoint out;
    perf::Endpoint in;
  };
  struct Peer {
    void* listener = nullptr;
    perf::Handle handle{};  // of the peer's listener for this rank
    perf::Endpoint out;
    perf::Endpoint in;
  };
  void listen_all();
  void read_addresses(std::span<const std::string_view> addresses);
  int device(std::size_t number) const;
  bool open(perf::Endpoint& out, int device, perf::Handle& handle);
  bool accept(perf::Endpoint& in, void*& listener);

  perf::Plugin& plugin_;
  Place place_;
  int devices_;
  std::vector<Ring> rings_;
  std::vector<Peer> peers_;  // by rank; the own one is unused
  std::string address_;
};

}  // namespace fabric::collectives
