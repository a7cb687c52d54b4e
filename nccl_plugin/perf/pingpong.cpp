#include "perf/pingpong.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "perf/clock.h"
#include "perf/job.h"
#include "perf/pattern.h"

namespace fabric::perf {
namespace {

using Sends = std::vector<std::unique_ptr<SendFlow>>;
using Receives = std::vector<std::unique_ptr<ReceiveFlow>>;

void begin(Sends& flows) {
  for (auto& flow : flows) {
    flow->begin(0);
    flow->progress();
  }
}

// Until they are posted: two rounds share a comm, and what is posted first is filled first.
void begin(Receives& flows) {
  for (auto& flow : flows) {
    flow->begin(0);
    do {
      flow->progress();
    } while (!flow->posted());
  }
}

template <typename Flow>
void finish(std::vector<std::unique_ptr<Flow>>& flows, Idle& idle) {
  while (true) {
    bool moved = false;
    bool done = true;
    for (auto& flow : flows) {
      if (!flow->done()) moved |= flow->progress();
      done &= flow->done();
    }
    if (done) return;
    if (moved) {
      idle.moved();
    } else {
      idle.wait();
    }
  }
}

}  // namespace

Latency summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto percentile = [&](double p) {
    const double position = p * static_cast<double>(samples.size() - 1) + 0.5;
    return samples[std::min(static_cast<std::size_t>(position), samples.size() - 1)];
  };
  return {samples.front(), percentile(0.50), percentile(0.99), samples.size()};
}

int default_round_trips(std::size_t size) {
  constexpr std::size_t kTotal = std::size_t{64} << 20U;
  return size == 0 ? 1000 : static_cast<int>(std::clamp<std::size_t>(kTotal / size, 3, 1000));
}

PingPongResult ping_pong(Plugin& plugin, Mesh& mesh, const Options& options, int channels,
                         int round_trips) {
  const bool first = options.rank % 2 == 0;
  const int peer = first ? options.rank + 1 : options.rank - 1;
  Buffer out(options.size);
  std::array<Buffer, kSets> in{Buffer(options.size), Buffer(options.size)};
  Sends sends;
  std::array<Receives, kSets> receives;
  std::vector<std::pair<Link, Registered>> registered;
  const auto add = [&](const Link& link, Buffer& buffer) {
    registered.emplace_back(link, mesh.add(link, buffer.data(), buffer.size()));
    return std::vector{registered.back().second};
  };
  for (int c = 0; c < channels; ++c) {
    const Link send_link{options.rank, peer, c};
    const Link receive_link{peer, options.rank, c};
    const Extent part = part_of({0, options.size}, static_cast<std::size_t>(c),
                                static_cast<std::size_t>(channels), 64);
    const std::vector<Extent> messages = slices_of(part, std::size_t{1} << 30U);
    const auto in_flight = static_cast<std::size_t>(options.in_flight);
    sends.push_back(std::make_unique<SendFlow>(plugin, mesh.endpoint(send_link),
                                               add(send_link, out), messages, in_flight));
    for (std::size_t set = 0; set < kSets; ++set) {
      receives[set].push_back(std::make_unique<ReceiveFlow>(
          plugin, mesh.endpoint(receive_link), add(receive_link, in[set]), messages, in_flight));
    }
  }
  // Counted from the far end of the iterations, so that no stream message looks like one of ours.
  const std::uint64_t base = std::uint64_t{1} << 62U;
  Idle idle(plugin, options.wait);
  PingPongResult result;
  std::vector<double> samples;
  std::int64_t sent_ns = 0;
  // A receive is posted a round ahead, as NCCL does, and while a message of ours is under way: what
  // the plugin tells the peer of it is on no critical path.
  int posted = 0;
  const auto post_receive = [&] {
    if (posted < round_trips) begin(receives[static_cast<std::size_t>(posted) % kSets]);
    ++posted;
  };
  post_receive();
  if (!first) post_receive();
  for (int i = 0; i < round_trips; ++i) {
    const std::uint64_t iteration = base + static_cast<std::uint64_t>(i);
    if (options.verify || i == 0) {
      fill(std::span(out.data(), options.size), 0, {options.rank, peer, iteration});
    }
    const auto receive = [&] {
      const std::size_t set = static_cast<std::size_t>(i) % kSets;
      finish(receives[set], idle);
      if (sent_ns != 0) samples.push_back(static_cast<double>(monotonic_ns() - sent_ns) / 2000.0);
      if (options.verify) {
        result.corrupt_bytes +=
            count_corrupt(std::span<const std::byte>(in[set].data(), options.size), 0,
                          {peer, options.rank, iteration});
      }
    };
    if (!first) receive();
    sent_ns = monotonic_ns();
    begin(sends);
    post_receive();
    finish(sends, idle);
    if (first) receive();
  }
  for (const auto& [link, memory] : registered) {
    mesh.remove(link, memory);
  }
  result.latency = summarize(std::move(samples));
  return result;
}

}  // namespace fabric::perf
