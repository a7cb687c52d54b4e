// What the packets alone cost: as many, as long and as stamped as those of a prober that keeps its
// links at 10 ms and 100 trains a second each, by the same sockets; nobody looks at what they say.
//
//   bare-probes PORT NETDEV=OWN=PEER...      until it is ended
//
// The other side of the comparison in `./run bench detect --only cost`.
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "shell/address.h"
#include "shell/probe_socket.h"

namespace {

using namespace fabric::prober;

constexpr Nanos kTick = 2'000'000;  // as often as a prober looks at carriers
constexpr int kTicks = 5;           // a link interval
constexpr std::size_t kTrain = 3;
constexpr std::size_t kMost = 2048;

struct Rail {
  std::unique_ptr<ProbeSocket> socket;
  Outgoing packet;
};

Rail open_rail(const std::string& text, std::uint16_t port,
               const std::shared_ptr<ProbeSocket::Buffers>& buffers) {
  const std::size_t own = text.find('=');
  const std::size_t peer = text.find('=', own + 1);
  if (peer == std::string::npos) throw std::invalid_argument(text);
  const auto from = parse_address(text.substr(own + 1, peer - own - 1), port);
  const auto to = parse_address(text.substr(peer + 1), port);
  if (!from || !to) throw std::invalid_argument(text);
  LinkConfig link;
  link.netdev = text.substr(0, own);
  link.address = *from;
  Rail rail;
  rail.socket = std::make_unique<ProbeSocket>(link, 0, buffers);
  rail.packet.destination = *to;
  return rail;
}

void drain(Rail& rail, Nanos now) {
  rail.socket->drain(now, kMost, [](Nanos, std::span<Datagram>) {});
}

// Singles on all rails in one tick, trains of a quarter of them in each of the others.
void send(std::vector<Rail>& rails, int tick) {
  for (std::size_t i = 0; i < rails.size(); ++i) {
    const auto turn = static_cast<int>(1 + i * (kTicks - 1) / rails.size());
    if (tick != 0 && tick != turn) continue;
    const std::vector<Outgoing> packets(tick == 0 ? 1 : kTrain, rails[i].packet);
    rails[i].socket->send(packets, [](const Outgoing&) {});
    rails[i].socket->drain_stamps([](auto, std::int64_t, bool) {});
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    (void)std::fprintf(stderr, "usage: bare-probes PORT NETDEV=OWN=PEER...\n");
    return 2;
  }
  try {
    const auto buffers = ProbeSocket::make_buffers();
    std::vector<Rail> rails;
    for (int i = 2; i < argc; ++i) {
      rails.push_back(open_rail(argv[i], static_cast<std::uint16_t>(std::stoi(argv[1])), buffers));
    }
    Nanos due = read_clock(CLOCK_MONOTONIC);
    for (int tick = 0;; tick = (tick + 1) % kTicks) {
      due += kTick;
      const timespec at{due / 1'000'000'000, due % 1'000'000'000};
      ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
      for (Rail& rail : rails) drain(rail, due);
      send(rails, tick);
    }
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "bare-probes: %s\n", error.what());
    return 1;
  }
}
