// A sender and a receiver of one comm, their cores and links, over fake NICs: what host/Sender and
// host/Receiver do with a path, in as few words as a test needs.
#pragma once

#include <deque>
#include <random>
#include <set>
#include <vector>

#include "verbs/link_in.h"
#include "verbs/link_out.h"
#include "verbs/tests/kit.h"

namespace fabric::verbs::test {

class LinkWorld {
 public:
  static constexpr std::uint32_t kChunk = 256;

  explicit LinkWorld(std::size_t rails, std::uint32_t seed = 1, LinkSettings settings = small())
      : random(seed), settings_(std::move(settings)), send_core(kChunk), receive_core(kChunk) {
    settings_.random = [this] { return static_cast<std::uint32_t>(random()); };
    settings_.now = [this] { return now; };
    for (std::size_t rail = 0; rail < rails; ++rail) {
      const std::string digit = std::to_string(rail);
      network.add_nic("a" + digit, "10.0." + digit + ".1");
      network.add_nic("b" + digit, "10.0." + digit + ".2");
      Side& side = sides_.emplace_back();
      side.sender = open("a" + digit);
      side.receiver = open("b" + digit);
      side.out_port = std::make_unique<RailPort>(side.sender, 1, GidRules{}, PathSettings{});
      side.in_port = std::make_unique<RailPort>(side.receiver, 1, GidRules{}, PathSettings{});
      senders.push_back(side.sender);
      receivers.push_back(side.receiver);
    }
    send_cache = std::make_unique<RegionCache>(senders, false);
    receive_cache = std::make_unique<RegionCache>(receivers, false);
  }

  static LinkSettings small() {
    LinkSettings settings;
    settings.send_depth = 8;
    settings.receive_depth = 6;
    settings.inline_bytes = 64;
    return settings;
  }

  core::PathIndex path(std::size_t rail) const { return core::path_index(rail, rail); }
  fake::Nic& left(std::size_t rail) { return *network.find("a" + std::to_string(rail)); }
  fake::Nic& right(std::size_t rail) { return *network.find("b" + std::to_string(rail)); }

  // True when the path is connected.
  bool dial(std::size_t rail) {
    Side& side = sides_[rail];
    Error error;
    const core::Epoch epoch = send_core.dial(path(rail));
    auto out = LinkOut::make(*side.out_port, settings_, path(rail), epoch, error);
    auto in = LinkIn::make(*side.in_port, settings_, path(rail), epoch, error);
    if (out == nullptr || in == nullptr || !in->connect(out->terms(), error) ||
        !out->connect(in->terms(), send_core, error)) {
      last_error = error.text;
      return false;
    }
    REQUIRE(receive_core.admit(path(rail), epoch, core::PathKind::one_sided,
                               in->terms().receive_entries));
    side.out_number = out->terms().data.number;
    side.in_number = in->terms().data.number;
    side.out = std::move(out);
    side.in = std::move(in);
    side.epoch = epoch;
    return true;
  }

  struct Message {
    std::vector<std::byte> bytes;
    std::shared_ptr<const RegisteredBuffer> region;
    core::Sequence sequence = 0;
    core::GroupId group = 0;
  };
  // Posts a receive of that size and, at once, its message.
  void post(std::size_t size) {
    Error error;
    Message& to = received.emplace_back();
    to.bytes.resize(std::max<std::size_t>(size, 1));
    to.region = receive_cache->acquire(to.bytes.data(), to.bytes.size(), error);
    REQUIRE(to.region != nullptr);
    core::Buffer buffer;
    buffer.data = to.bytes.data();
    buffer.slot.size = size;
    buffer.slot.where = reinterpret_cast<std::uintptr_t>(to.bytes.data());
    for (std::size_t rail = 0; rail < sides_.size(); ++rail) {
      buffer.slot.keys[rail] = to.region->on(rail)->remote_key();
    }
    buffer.region = to.region.get();
    to.group = receive_core.post({&buffer, 1});
    Message& from = sent.emplace_back();
    from.bytes.resize(std::max<std::size_t>(size, 1));
    for (std::size_t i = 0; i < size; ++i) {
      from.bytes[i] = static_cast<std::byte>(random());
    }
    from.region = send_cache->acquire(from.bytes.data(), from.bytes.size(), error);
    from.sequence = *send_core.post(from.bytes.data(), size, 0, 0, core::NoCopy::take,
                                    {from.region.get(), false});
  }

  // What the sender's polling does.
  void poll_sender(std::size_t rail) {
    Side& side = sides_[rail];
    if (side.out == nullptr) {
      return;
    }
    host::SendProgress progress;
    if (!side.ending_out) {
      side.out->poll(send_core, progress);
      std::vector<core::Outgoing> chunks;
      while (chunks.size() < side.out->room() && !progress.dead) {
        auto chunk = send_core.take(path(rail));
        if (!chunk) {
          break;
        }
        chunks.push_back(*chunk);
      }
      side.out->put(chunks, progress);
      for (std::uint32_t i = 0; i < progress.released; ++i) {
        send_core.written(path(rail));
      }
      retransmitted += progress.retransmitted;
      if (progress.dead) {
        fail(rail);
      }
    }
    if (side.ending_out && side.out->quiesce()) {
      over.insert(side.out_number);
      side.out.reset();
      side.ending_out = false;
      send_core.quiesced(path(rail));
    }
  }

  void fail(std::size_t rail) {
    Side& side = sides_[rail];
    ++failures;
    side.fence = send_core.fail(path(rail));
    side.fencing = true;
    side.ending_out = true;
  }

  void poll_receiver(std::size_t rail) {
    Side& side = sides_[rail];
    if (side.in == nullptr) {
      return;
    }
    host::ReceiveProgress progress;
    side.in->poll(receive_core, {}, progress);
    duplicates += progress.duplicate_bytes;
    if (!side.retiring) {
      side.in->answer(receive_core, progress);
    }
    if (progress.dead) {
      fail_receiver(rail);
    }
    if (side.retiring && (side.in->quiesce() || impatient)) {
      over.insert(side.in_number);
      if (impatient) {
        abandoned_.push_back(std::move(side.in));
      }
      side.in.reset();
      side.retiring = false;
      receive_core.retired(path(rail), side.epoch);
    }
  }

  // The receiver gives the path up; the sender hears of it over a control link.
  void fail_receiver(std::size_t rail) {
    Side& side = sides_[rail];
    if (side.in == nullptr || side.retiring) {
      return;
    }
    receive_core.begin_retire(path(rail));
    side.retiring = true;
    if (live(rail)) {
      fail(rail);
    }
  }

  // A fence request that arrives, and its answer if there is one yet. True: it was answered.
  bool fence(std::size_t rail) {
    Side& side = sides_[rail];
    if (!side.fencing) {
      return false;
    }
    if (receive_core.fence(path(rail), side.fence)) {
      receive_core.begin_retire(path(rail));
      side.retiring = true;
    }
    if (!receive_core.fence_done(path(rail), side.fence)) {
      return false;
    }
    CHECK(send_core.on_fence_answer(path(rail), side.fence, receive_core.state()));
    side.fencing = false;
    return true;
  }
  [[nodiscard]] bool fencing(std::size_t rail) const { return sides_[rail].fencing; }
  // The queue pairs of the last dial.
  [[nodiscard]] std::uint32_t out_number(std::size_t rail) const { return sides_[rail].out_number; }
  [[nodiscard]] std::uint32_t in_number(std::size_t rail) const { return sides_[rail].in_number; }
  [[nodiscard]] bool down(std::size_t rail) const {
    return sides_[rail].out == nullptr && sides_[rail].in == nullptr && !sides_[rail].fencing;
  }
  [[nodiscard]] bool live(std::size_t rail) const {
    return sides_[rail].out != nullptr && !sides_[rail].ending_out;
  }
  [[nodiscard]] std::size_t rails() const { return sides_.size(); }
  LinkOut& out(std::size_t rail) { return *sides_[rail].out; }
  LinkIn& in(std::size_t rail) { return *sides_[rail].in; }

  // Everything that can happen, until nothing does.
  void settle(std::size_t rounds = 200) {
    for (std::size_t i = 0; i < rounds; ++i) {
      for (std::size_t rail = 0; rail < rails(); ++rail) {
        poll_sender(rail);
        network.run();
        poll_receiver(rail);
        network.run();
        fence(rail);
      }
      now += 1'000'000;
    }
  }
  // All messages are there, whole and right.
  [[nodiscard]] bool complete() {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (!receive_core.done(received[i].group) || !send_core.done(sent[i].sequence)) {
        return false;
      }
      CHECK(received[i].bytes == sent[i].bytes);
    }
    return true;
  }

  fake::Network network;  // the last to go
  std::mt19937_64 random;
  std::int64_t now = 1'000'000'000;  // ns
  std::string last_error;
  std::vector<std::shared_ptr<Device>> senders;
  std::vector<std::shared_ptr<Device>> receivers;
  std::unique_ptr<RegionCache> send_cache;
  std::unique_ptr<RegionCache> receive_cache;
  std::deque<Message> sent;
  std::deque<Message> received;
  // Queue pairs of which their link has said that nothing reads or writes for them any more.
  std::set<std::uint32_t> over;
  // A planted fault: the receiver takes the order to enter ERR for its confirmation.
  bool impatient = false;

 private:
  LinkSettings settings_;
  struct Side {
    std::shared_ptr<Device> sender;
    std::shared_ptr<Device> receiver;
    std::unique_ptr<RailPort> out_port;
    std::unique_ptr<RailPort> in_port;
    std::unique_ptr<LinkOut> out;
    std::unique_ptr<LinkIn> in;
    std::uint32_t out_number = 0;  // of queue pairs
    std::uint32_t in_number = 0;
    core::Epoch epoch = 0;
    core::Epoch fence = 0;
    bool ending_out = false;
    bool fencing = false;
    bool retiring = false;
  };
  std::deque<Side> sides_;
  std::vector<std::unique_ptr<LinkIn>> abandoned_;

 public:
  core::SendCore send_core;
  core::ReceiveCore receive_core;
  std::uint64_t failures = 0;
  std::uint64_t duplicates = 0;  // bytes
  std::uint64_t retransmitted = 0;
};

}  // namespace fabric::verbs::test
