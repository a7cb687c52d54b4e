// Tests of the whole plugin over fake NICs: two of it in one process, with real sockets on the
// loopback interface beside the NICs.
#pragma once

#include <deque>

#include "verbs/transport.h"

#include "tcp/network.h"
#include "tcp/transport.h"
#include "tests/loopback_pair.h"
#include "verbs/fake/network.h"

namespace fabric::verbs::test {

using host::loopback::Pair;

inline std::string address(std::size_t host, std::size_t rail) {
  return "127.0." + std::to_string(10 + host) + "." + std::to_string(1 + rail);
}

// NICs `a0`, `b0`, ... with the addresses of the loopback pair's rails.
struct Wires {
  fake::Network network;
  explicit Wires(std::size_t rails) {
    for (std::size_t rail = 0; rail < rails; ++rail) {
      network.add_nic("a" + std::to_string(rail), address(0, rail));
      network.add_nic("b" + std::to_string(rail), address(1, rail));
    }
    network.carries_at_once = true;
  }
  fake::Nic& nic(const std::string& name) { return *network.find(name); }
  template <typename F>
  auto locked(F&& change) {
    const std::scoped_lock lock(network.mutex);
    return change();
  }
  // Pulled out, and put in again as another device of the same name and address.
  void unplug(const std::string& name) {
    locked([&] { nic(name).unplug(); });
  }
  void plug(const std::string& name) {
    const std::size_t host = name[0] == 'a' ? 0 : 1;
    locked([&] { network.add_nic(name, address(host, static_cast<std::size_t>(name[1] - '0'))); });
  }
  // Bytes of data that came to the newest device of that name.
  std::uint64_t landed_at(const std::string& name) {
    return locked([&] { return nic(name).landed_bytes; });
  }
  std::uint64_t landed() {
    return locked([this] { return network.landed; });
  }
};

inline std::unique_ptr<Net> net_of(const host::Params& params, std::size_t host,
                                   std::size_t rails) {
  std::vector<host::Rail> given;
  for (std::size_t rail = 0; rail < rails; ++rail) {
    given.push_back(host::loopback::rail_of(host, rail));
  }
  host::Parts parts;
  parts.network = [](host::Context& context, host::Poller& poller,
                     host::Network::SecretOf secret_of, host::Network::OnHello on_hello) {
    return std::make_unique<tcp::TcpNetwork>(context, poller, std::move(secret_of),
                                             std::move(on_hello));
  };
  parts.transports = [](host::Context& context) {
    std::vector<std::unique_ptr<host::Transport>> made;
    if (auto transport = VerbsTransport::make(context, &fake::Network::functions(), "")) {
      made.push_back(std::move(transport));
    }
    made.push_back(std::make_unique<tcp::TcpTransport>());
    return made;
  };
  return host::make_host_net(params, given, std::move(parts));
}

inline host::Params with_verbs() {
  host::Params params = Pair::usual();
  params.verbs = true;
  return params;
}

inline Pair pair_of(std::size_t rails, const host::Params& of_a = with_verbs(),
                    const host::Params& of_b = with_verbs()) {
  return Pair(net_of(of_a, 0, rails), net_of(of_b, 1, rails));
}

}  // namespace fabric::verbs::test
