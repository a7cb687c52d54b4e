// A daemon beside two plugins on fake NICs, as far as its steer page goes.
#pragma once

#include <cstring>

#include "host/monotonic.h"
#include "tests/steer_page_kit.h"
#include "verbs/tests/transport_kit.h"

namespace fabric::verbs::test {

// What a daemon says of one end's rails; its heartbeat is as of the last word.
class SteerDaemon {
 public:
  using State = pages::LinkState;
  SteerDaemon() {
    std::strcpy(rail_.netdev, "lo");  // all rails of the pair
    say(1000, 1000);
  }
  host::Params params() const {
    host::Params made = with_verbs();
    made.run_dir = directory_.path;
    return made;
  }
  // Weights of all rails; 0 is down.
  void say(std::uint16_t ip, std::uint16_t rdma) {
    const auto state = [](std::uint16_t weight) {
      return static_cast<std::uint8_t>(weight == 0 ? State::down : State::up);
    };
    generation_ += ip != rail_.weight || rdma != rail_.rdma_weight ? 1 : 0;
    rail_.weight = ip;
    rail_.state = state(ip);
    rail_.rdma_given = 1;
    rail_.rdma_weight = rdma;
    rail_.rdma_state = state(rdma);
    again();
  }
  // IP of the paths to one rail of the other end is down, RDMA is not.
  void say_ip_down(std::size_t host, std::size_t rail) {
    pages::SteerPath path{};
    std::strcpy(path.netdev, "lo");
    std::memcpy(path.remote, host::loopback::rail_of(host, rail).address.ip.data(), 16);
    path.state = static_cast<std::uint8_t>(State::down);
    path.rdma_given = 1;
    path.rdma_weight = 1000;
    path.rdma_state = static_cast<std::uint8_t>(State::up);
    paths_ = {path};
    ++generation_;
    again();
  }
  void again() {
    said_at_ = host::monotonic_ns();
    pages::SteerPageKit page(said_at_);
    page.header.generation = generation_;
    page.rails = {rail_};
    page.paths = paths_;
    pages::store(directory_.path + "/steer", page.bytes());
  }
  // What was said last has held until now: on a slow machine it may not have.
  [[nodiscard]] bool held() const {
    return host::monotonic_ns() - said_at_ < static_cast<std::int64_t>(pages::kSteerStaleNs);
  }

 private:
  pages::Directory directory_;
  pages::SteerRail rail_{};
  std::vector<pages::SteerPath> paths_;
  std::uint64_t generation_ = 1;
  std::int64_t said_at_ = 0;  // ns
};

}  // namespace fabric::verbs::test
