// What a request is: sizes, "not yet", how many there may be, optional completion, iflush.
#include <array>

#include "conformance/traffic.h"

namespace fabric::conformance {
namespace {

constexpr int kIdleRounds = 200;
constexpr std::size_t kLarge = 500'000;  // bytes of a receive
constexpr std::size_t kInFlight = 32;    // requests per comm: NCCL_NET_MAX_REQUESTS

// One link in and one out of this rank.
struct Ring {
  explicit Ring(World& world_)
      : world(world_),
        mesh(world.connect(world.ring())),
        traffic(world, mesh),
        in{world.previous(), world.rank(), 0},
        out{world.rank(), world.next(), 0} {}
  void end() {
    world.barrier();
    mesh.close();
    traffic.check_again();
  }
  World& world;
  perf::Mesh mesh;
  Traffic traffic;
  perf::Link in;
  perf::Link out;
};

void sizes(World& world) {
  Ring ring(world);
  std::uint64_t sequence = 0;
  const std::array<std::size_t, 14> of{0,    1,     7,     8,     8191,    8192,      8193,
                                       4096, 65535, 65536, 65537, 262'145, 1'000'000, 1 << 21};
  for (const std::size_t size : of) {
    for (const std::size_t spare : {std::size_t{0}, std::size_t{5000}}) {
      const Message message{3, sequence++, size};
      ring.traffic.receive(ring.in, message, spare);
      ring.traffic.send(ring.out, message);
      ring.traffic.finish();
    }
  }
  ring.end();
}

// A receive of more room than its message, posted before and after others.
void larger_room(World& world) {
  Ring ring(world);
  for (std::uint64_t i = 0; i < 48; ++i) {
    const Message message{0, i, static_cast<std::size_t>(world.common_random()() % 20'000)};
    ring.traffic.receive(ring.in, message, 30'000);
    ring.traffic.send(ring.out, message);
  }
  ring.traffic.finish();
  ring.end();
}

// Sends have arrived, and been acknowledged, long before their first test.
void size_after_arrival(World& world) {
  constexpr std::uint64_t kEarly = 6;
  Ring ring(world);
  std::uint64_t sequence = 0;
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{100}, std::size_t{8000}, std::size_t{30'000}}) {
    for (std::uint64_t i = 0; i <= kEarly; ++i)
      ring.traffic.receive(ring.in, {4, sequence + i, size});
    ring.traffic.post_all();
    world.barrier();
    for (std::uint64_t i = 0; i < kEarly; ++i) ring.traffic.send(ring.out, {4, sequence + i, size});
    // A plugin may need the test of a send to send it: then there is nothing to see here.
    ring.traffic.try_to_receive(sequence + kEarly, kIdleRounds);
    world.barrier();
    // By this call at the latest the plugin hears of what has arrived.
    ring.traffic.send(ring.out, {4, sequence + kEarly, size});
    ring.traffic.offer(1);
    ring.traffic.finish();
    sequence += kEarly + 1;
  }
  ring.end();
}

// Sends that no receive awaits: taken or "not yet", never an error, and never anywhere.
void not_yet(World& world) {
  Ring ring(world);
  std::uint64_t sequence = 0;
  for (const std::size_t size : {std::size_t{64}, std::size_t{100'000}}) {
    for (std::uint64_t i = 0; i < 4; ++i) ring.traffic.send(ring.out, {6, sequence + i, size});
    for (int round = 0; round < 200; ++round) ring.traffic.progress(Traffic::Tests::none);
    world.barrier();
    for (std::uint64_t i = 0; i < 4; ++i) ring.traffic.receive(ring.in, {6, sequence + i, size});
    sequence += 4;
    ring.traffic.finish();
  }
  ring.end();
}

// More is wanted than may be in flight: isend and irecv say "not yet", and all ends well.
void beyond_limits(World& world, std::size_t size) {
  Ring ring(world);
  for (std::uint64_t i = 0; i < 10 * kInFlight; ++i) {
    ring.traffic.receive(ring.in, {1, i, size});
    ring.traffic.send(ring.out, {1, i, size});
  }
  ring.traffic.finish();
  ring.end();
}

// All receives are posted, then all sends, and only then is anything tested.
void full_flight(World& world, std::size_t size, std::size_t group) {
  if (group > world.max_group()) throw NotOffered("maxRecvs is less than " + std::to_string(group));
  Ring ring(world);
  const std::uint64_t rounds = size * group > kLarge ? 1 : 3;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::uint64_t i = 0; i < kInFlight; ++i) {
      std::vector<Message> slots;
      for (std::size_t slot = 0; slot < group; ++slot) {
        slots.push_back({static_cast<int>(slot), kInFlight * round + i, size});
      }
      ring.traffic.receive(ring.in, slots);
    }
    ring.traffic.post_all();
    world.barrier();
    for (std::uint64_t i = 0; i < kInFlight; ++i) {
      for (std::size_t slot = 0; slot < group; ++slot) {
        ring.traffic.send(ring.out, {static_cast<int>(slot), kInFlight * round + i, size});
      }
    }
    ring.traffic.post_all();
    ring.traffic.finish();
  }
  ring.end();
}

// LL and LL128: *request comes in as 0x1. The plugin may say done before the data is there.
void optional_completion(World& world) {
  Ring ring(world);
  std::uint64_t sequence = 0;
  for (const std::size_t size : {std::size_t{8}, std::size_t{128}, std::size_t{8192},
                                 std::size_t{9000}, std::size_t{120'000}}) {
    for (int i = 0; i < 12; ++i) {
      const Message message{2, sequence++, size};
      ring.traffic.receive(ring.in, std::span(&message, 1), 0, true);
      ring.traffic.send(ring.out, message);
    }
    ring.traffic.finish();
  }
  ring.end();
}

void flush(World& world) {
  if (world.level() == Level::nccl) throw NotOffered("NCCL does not flush host memory");
  Ring ring(world);
  const Message message{0, 0, 50'000};
  ring.traffic.receive(ring.in, message);
  ring.traffic.send(ring.out, message);
  ring.traffic.finish();
  std::vector<std::byte> memory(4096);
  const perf::Registered region = ring.mesh.add(ring.in, memory.data(), memory.size());
  const perf::Slot slot{memory.data(), memory.size(), 0, region.region};
  void* request = world.plugin().iflush(ring.mesh.endpoint(ring.in).comm, std::span(&slot, 1));
  if (request != nullptr) {
    world.until([&] { return world.plugin().test(request, {}); },
                [] { return "the request of an iflush"; });
  }
  ring.end();
}

}  // namespace

std::vector<Case> request_cases() {
  return {
      {"sizes", "test says the size of each message; empty ones, and room to spare", sizes},
      {"larger-room", "a message may be shorter than its receive", larger_room},
      {"size-after-arrival", "a send that arrived before its first test has its size",
       size_after_arrival},
      {"not-yet", "a send without a receive is taken or is \"not yet\"", not_yet},
      {"beyond-limits-5000B", "a full queue is \"not yet\"",
       [](World& world) { beyond_limits(world, 5000); }},
      {"beyond-limits-40kB", "a full queue is \"not yet\"",
       [](World& world) { beyond_limits(world, 40'000); }},
      {"in-flight-8B", "32 sends are taken before any receive is tested",
       [](World& world) { full_flight(world, 8, 1); }},
      {"in-flight-5000B", "32 sends are taken before any receive is tested",
       [](World& world) { full_flight(world, 5000, 1); }},
      {"in-flight-100kB", "32 sends are taken before any receive is tested",
       [](World& world) { full_flight(world, 100'000, 1); }},
      {"in-flight-1MB", "32 sends are taken before any receive is tested",
       [](World& world) { full_flight(world, 1 << 20, 1); }},
      {"in-flight-groups-5000B", "32 x maxRecvs sends are taken before any receive is tested",
       [](World& world) { full_flight(world, 5000, perf::kMaxGroup); }},
      {"in-flight-groups-20kB", "32 x maxRecvs sends are taken before any receive is tested",
       [](World& world) { full_flight(world, 20'000, perf::kMaxGroup); }},
      {"optional-completion", "*request of irecv comes in as 0x1", optional_completion},
      {"iflush", "iflush of host memory is done, or a request", flush},
  };
}

}  // namespace fabric::conformance
