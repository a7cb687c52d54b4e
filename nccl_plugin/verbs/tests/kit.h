// What tests of verbs share: a network of fake NICs, and pairs of connected queue pairs on it.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <vector>

#include "verbs/fake/network.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"

namespace fabric::verbs::test {

inline std::shared_ptr<Device> open(const std::string& name,
                                    const Functions& verbs = fake::Network::functions()) {
  std::vector<Error> errors;
  auto devices = open_devices(
      verbs, [&](const std::string& found) { return found == name; }, errors);
  REQUIRE(devices.size() == 1);
  return devices.front();
}

// One end: a queue pair with its own completion queue.
struct End {
  std::shared_ptr<Device> device;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<QueuePair> pair;
  PathSettings settings;
  PathTerms terms;

  explicit End(const std::string& name, QueueDepths depths = {8, 8, 64}) : device(open(name)) {
    Error error;
    queue =
        CompletionQueue::make(device, static_cast<int>(depths.send + depths.receive), false, error);
    REQUIRE(queue != nullptr);
    pair = QueuePair::make(device, *queue, depths, error);
    INFO(error.text);
    REQUIRE(pair != nullptr);
    settings.gid_index = 1;
    terms.ethernet = true;
    terms.mtu = IBV_MTU_1024;
    const auto table = read_gids(*device, 1, 2);
    terms.gid = table.back().gid;
    terms.data = {pair->number(), 7};
  }

  // Completions that are there now, each noted as its queue pair's.
  std::vector<Completion> completions() {
    std::vector<Completion> all;
    std::array<Completion, 4> found{};
    for (int count = 0; (count = queue->poll(found)) > 0;) {
      for (int i = 0; i < count; ++i) {
        CHECK(pair->completed(found[static_cast<std::size_t>(i)].id));
        all.push_back(found[static_cast<std::size_t>(i)]);
      }
    }
    return all;
  }
};

// Two ends in RTS, the second with all its receives posted.
struct Pair {
  End a;
  End b;
  explicit Pair(const std::string& first = "a0", const std::string& second = "b0",
                QueueDepths depths = {8, 8, 64})
      : a(first, depths), b(second, depths) {
    connect(a, b);
    connect(b, a);
    CHECK(b.pair->post_receives(depths.receive) == depths.receive);
  }
  static void connect(End& end, const End& peer) {
    Error error;
    REQUIRE(end.pair->to_init(end.settings, error));
    REQUIRE(end.pair->to_rtr(end.settings, end.terms, peer.terms, peer.terms.data, error));
    REQUIRE(end.pair->to_rts(end.settings, end.terms.data.psn, error));
  }
};

// Bytes that both local writes and the peer's may use.
struct Memory {
  std::vector<std::byte> bytes;
  std::unique_ptr<Region> region;
  Memory(std::shared_ptr<Device> device, std::size_t size) : bytes(size) {
    Error error;
    region = Region::make(std::move(device), bytes.data(), size, false, error);
    REQUIRE(region != nullptr);
  }
};

}  // namespace fabric::verbs::test
