// How comms come and go: many of them, several of one listen comm, closed early and again.
#include <algorithm>
#include <cstring>

#include "conformance/traffic.h"

namespace fabric::conformance {
namespace {

// Sends a message of `size` bytes to the next rank on each of these comms, and receives as much.
void exchange(World& world, Traffic& traffic, int first, int channels, std::uint64_t sequence,
              std::size_t size) {
  for (int channel = first; channel < first + channels; ++channel) {
    traffic.receive({world.previous(), world.rank(), channel}, {1, sequence, size});
    traffic.send({world.rank(), world.next(), channel}, {1, sequence, size});
  }
  traffic.finish();
}

void many_comms(World& world) {
  constexpr int kComms = 48;
  perf::Mesh mesh = world.connect(world.ring(kComms));
  Traffic traffic(world, mesh);
  for (std::uint64_t i = 0; i < 4; ++i) exchange(world, traffic, 0, kComms, i, 3000 + 20'000 * i);
  world.barrier();
  mesh.close();
  traffic.check_again();
}

void again_and_again(World& world) {
  for (std::uint64_t i = 0; i < 12; ++i) {
    perf::Mesh mesh = world.connect(world.ring(2));
    Traffic traffic(world, mesh);
    exchange(world, traffic, 0, 2, i, i % 2 == 0 ? 500 : 70'000);
    world.barrier();
    mesh.close();
    traffic.check_again();
  }
}

// Comm 0 is closed with all kinds of requests open; comm 1 must not notice, nor its memory change.
void close_in_flight(World& world, bool receiver_first) {
  perf::Mesh mesh = world.connect(world.ring(2));
  Traffic traffic(world, mesh);
  const perf::Link in{world.previous(), world.rank(), 0};
  const perf::Link out{world.rank(), world.next(), 0};
  exchange(world, traffic, 0, 2, 0, 1000);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    // Half of the receives have no send, half of the sends no receive.
    traffic.receive(in, {i % 2 == 0 ? 1 : 2, i, 400'000});
    traffic.send(out, {i % 2 == 0 ? 1 : 3, i, 400'000});
  }
  traffic.offer(20);
  world.barrier();
  for (const bool sends : {!receiver_first, receiver_first}) {
    const perf::Link& link = sends ? out : in;
    mesh.close(link);
    traffic.abandon(link);
  }
  for (std::uint64_t i = 1; i <= 6; ++i) exchange(world, traffic, 1, 1, i, 50'000);
  world.barrier();
  mesh.close();
  traffic.check_again();
}

// What was said to be sent arrives, though its sender closes at once.
void close_after_send(World& world, std::size_t size) {
  perf::Mesh mesh = world.connect(world.ring());
  Traffic traffic(world, mesh);
  const perf::Link in{world.previous(), world.rank(), 0};
  const perf::Link out{world.rank(), world.next(), 0};
  for (std::uint64_t i = 0; i < 8; ++i) {
    traffic.receive(in, {1, i, size});
    traffic.send(out, {1, i, size});
  }
  traffic.finish_sends();
  mesh.close(out);
  traffic.finish();
  world.barrier();
  mesh.close();
  traffic.check_again();
}

// Every other rank connects several comms to the one listen comm of rank 0.
void shared_listen(World& world) {
  constexpr int kEach = 2;
  perf::Plugin& plugin = world.plugin();
  perf::Handle handle{};
  void* listener = world.rank() == 0 ? plugin.listen(world.device(), &handle) : nullptr;
  const std::vector<std::string> handles = world.gather(
      world.rank() == 0 ? std::string(reinterpret_cast<const char*>(handle.data()), handle.size())
                        : std::string());
  const std::size_t wanted =
      world.rank() == 0 ? static_cast<std::size_t>((world.size() - 1) * kEach) : kEach;
  std::vector<perf::Handle> copies(wanted);
  for (perf::Handle& copy : copies) std::memcpy(copy.data(), handles[0].data(), copy.size());
  std::vector<void*> comms;
  world.until(
      [&] {
        void* comm = world.rank() == 0 ? plugin.accept(listener)
                                       : plugin.connect(world.device(), &copies[comms.size()]);
        if (comm != nullptr) comms.push_back(comm);
        return comms.size() == wanted;
      },
      [&] { return std::to_string(comms.size()) + " comms of one listen comm"; });
  // Each comm carries a name, by which rank 0 knows that no two are the same.
  std::vector<std::uint64_t> names(wanted, ~std::uint64_t{0});
  std::vector<void*> regions;
  std::vector<void*> requests(wanted, nullptr);
  std::size_t done = 0;
  for (std::size_t i = 0; i < wanted; ++i) {
    if (world.rank() != 0) names[i] = static_cast<std::uint64_t>(world.rank()) * 100 + i;
    regions.push_back(plugin.register_memory(comms[i], &names[i], sizeof names[i]));
  }
  std::vector<bool> ended(wanted, false);
  world.until(
      [&] {
        for (std::size_t i = 0; i < wanted; ++i) {
          if (ended[i]) continue;
          if (requests[i] == nullptr) {
            const perf::Slot slot{&names[i], sizeof names[i], 7, regions[i]};
            requests[i] = world.rank() == 0
                              ? plugin.irecv(comms[i], std::span(&slot, 1), false)
                              : plugin.isend(comms[i], &names[i], sizeof names[i], 7, regions[i]);
          } else if (std::size_t size = 0; plugin.test(requests[i], std::span(&size, 1))) {
            ended[i] = true;
            ++done;
          }
        }
        return done == wanted;
      },
      [&] { return std::to_string(done) + " of " + std::to_string(wanted) + " comms carried"; });
  world.barrier();
  for (std::size_t i = 0; i < wanted; ++i) plugin.deregister_memory(comms[i], regions[i]);
  for (void* comm : comms) {
    world.rank() == 0 ? plugin.close_receive(comm) : plugin.close_send(comm);
  }
  if (world.rank() != 0) return;
  plugin.close_listen(listener);
  std::vector<std::uint64_t> expected;
  for (int rank = 1; rank < world.size(); ++rank) {
    for (std::uint64_t i = 0; i < kEach; ++i) {
      expected.push_back(static_cast<std::uint64_t>(rank) * 100 + i);
    }
  }
  std::sort(names.begin(), names.end());
  if (names != expected) throw Violation("comms of one listen comm carried each other's messages");
}

}  // namespace

std::vector<Case> comm_cases() {
  return {
      {"many-comms", "48 comms each way between two ranks", many_comms},
      {"again-and-again", "comms are closed and new ones made", again_and_again},
      {"close-in-flight-send-first", "a close ends open requests, and their use of memory",
       [](World& world) { close_in_flight(world, false); }},
      {"close-in-flight-receive-first", "a close ends open requests, and their use of memory",
       [](World& world) { close_in_flight(world, true); }},
      {"close-after-send-500B", "what test said was sent arrives after a close",
       [](World& world) { close_after_send(world, 500); }},
      {"close-after-send-90kB", "what test said was sent arrives after a close",
       [](World& world) { close_after_send(world, 90'000); }},
      {"shared-listen", "a listen comm is accepted from several times", shared_listen},
  };
}

}  // namespace fabric::conformance
