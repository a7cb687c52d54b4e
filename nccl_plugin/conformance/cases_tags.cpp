// Which buffer a send lands in. A tag assigns a send to a buffer of the first receive in the queue,
// whether that receive has one slot or several; so the k-th send of a tag lands in the k-th slot
// that was posted for this tag.
#include <algorithm>
#include <numeric>

#include "conformance/traffic.h"

namespace fabric::conformance {
namespace {

enum class Posted { before, after };  // receives, as seen from the first isend

constexpr int kOfferRounds = 40;  // of sends that no receive awaits yet

std::string size_text(std::size_t size) {
  return size % 1000 == 0 ? std::to_string(size / 1000) + "kB" : std::to_string(size) + "B";
}

// Posts the receives, then the sends, or the other way round, and ends the traffic.
template <typename Receives, typename Sends>
void in_order(World& world, Traffic& traffic, Posted posted, Receives receives, Sends sends) {
  if (posted == Posted::before) {
    receives();
    traffic.post_all();
    world.barrier();
    sends();
  } else {
    sends();
    traffic.offer(kOfferRounds);
    world.barrier();
    receives();
  }
  traffic.finish();
}

void close(World& world, perf::Mesh& mesh, const Traffic& traffic) {
  world.barrier();  // nobody closes while another still counts on its polling
  mesh.close();
  traffic.check_again();
}

// With one slot a receive NCCL has one sender on a comm, whose sends come in order: no plugin has
// to look at their tags.
void need_tags(World& world) {
  if (world.level() == Level::nccl && world.max_group() < 2) {
    throw NotOffered("maxRecvs is 1: NCCL needs no tags");
  }
}

// irecv tag 8, irecv tag 9; isend tag 9, isend tag 8.
void single_tags(World& world, std::size_t size, Posted posted) {
  need_tags(world);
  perf::Mesh mesh = world.connect(world.ring());
  Traffic traffic(world, mesh);
  const perf::Link in{world.previous(), world.rank(), 0};
  const perf::Link out{world.rank(), world.next(), 0};
  in_order(
      world, traffic, posted,
      [&] {
        for (const int tag : {8, 9}) traffic.receive(in, {tag, 0, size});
      },
      [&] {
        for (const int tag : {9, 8}) traffic.send(out, {tag, 0, size});
      });
  close(world, mesh, traffic);
}

void need_groups(World& world) {
  if (world.max_group() < 2) throw NotOffered("maxRecvs is 1");
}

// Full groups; sends come in every order.
void grouped_tags(World& world, std::size_t size, Posted posted) {
  need_groups(world);
  constexpr std::uint64_t kGroups = 6;
  perf::Mesh mesh = world.connect(world.ring());
  Traffic traffic(world, mesh);
  const perf::Link in{world.previous(), world.rank(), 0};
  const perf::Link out{world.rank(), world.next(), 0};
  std::vector<int> tags(world.max_group());
  std::iota(tags.begin(), tags.end(), 100);
  for (std::uint64_t group = 0; group < kGroups; ++group) {
    std::shuffle(tags.begin(), tags.end(), world.common_random());
    std::vector<int> order = tags;
    std::shuffle(order.begin(), order.end(), world.common_random());
    in_order(
        world, traffic, posted,
        [&] {
          std::vector<Message> slots;
          slots.reserve(tags.size());
          for (const int tag : tags) {
            slots.push_back({tag, group, size + static_cast<std::size_t>(tag)});
          }
          traffic.receive(in, slots);
        },
        [&] {
          for (const int tag : order) {
            traffic.send(out, {tag, group, size + static_cast<std::size_t>(tag)});
          }
        });
  }
  close(world, mesh, traffic);
}

// What the members of a comm (the ranks of a host share one) want in a row of collectives. In each
// a member has a number of steps of its own; a receive has one slot for each member that still has
// a step, so it shrinks to a single slot, and then meets a fast member's sends of the next
// collective.
class Collectives {
 public:
  Collectives(World& world, std::size_t members, std::size_t rounds, std::size_t most_steps,
              std::size_t most_bytes)
      : room_(most_bytes) {
    auto& random = world.common_random();
    sends_.resize(members);
    for (std::size_t round = 0; round < rounds; ++round) {
      std::vector<std::size_t> steps(members);
      for (std::size_t& of_member : steps) of_member = random() % (most_steps + 1);
      for (std::size_t step = 0; step < most_steps; ++step) {
        std::vector<Message> group;
        for (std::size_t m = 0; m < members; ++m) {
          if (step >= steps[m]) continue;
          group.push_back({static_cast<int>(m) + 1, sends_[m].size(), random() % most_bytes});
          sends_[m].push_back(group.back());
        }
        if (!group.empty()) receives_.push_back(std::move(group));
      }
    }
  }

  void receive_all(Traffic& traffic, const perf::Link& link) const {
    // Every buffer has room for every message: one that lands in the wrong one is seen there.
    for (const std::vector<Message>& group : receives_) traffic.receive(link, group, room_);
  }
  // All of one member, then all of the next: each runs ahead as far as the plugin lets it.
  void send_all(World& world, Traffic& traffic, const perf::Link& link) const {
    std::vector<std::vector<Message>> order = sends_;
    std::shuffle(order.begin(), order.end(), world.common_random());
    for (const std::vector<Message>& of_member : order) {
      for (const Message& message : of_member) traffic.send(link, message);
      traffic.offer(2);
    }
  }

 private:
  std::size_t room_;
  std::vector<std::vector<Message>> receives_;  // groups, in order
  std::vector<std::vector<Message>> sends_;     // by member, in order
};

void shrinking_groups(World& world, std::size_t most_bytes, Posted posted) {
  need_groups(world);
  perf::Mesh mesh = world.connect(world.ring());
  Traffic traffic(world, mesh);
  const perf::Link in{world.previous(), world.rank(), 0};
  const perf::Link out{world.rank(), world.next(), 0};
  const std::size_t members = std::min<std::size_t>(4, world.max_group());
  const Collectives all(world, members, 6, 5, most_bytes);  // at most 32 receives
  in_order(
      world, traffic, posted, [&] { all.receive_all(traffic, in); },
      [&] { all.send_all(world, traffic, out); });
  close(world, mesh, traffic);
}

// Every two ranks share a comm for all their members, both ways, all at once.
void uneven_all_to_all(World& world, std::size_t most_bytes) {
  std::vector<perf::Link> links;
  for (int source = 0; source < world.size(); ++source) {
    for (int destination = 0; destination < world.size(); ++destination) {
      if (source != destination) links.push_back({source, destination, 0});
    }
  }
  perf::Mesh mesh = world.connect(links);
  Traffic traffic(world, mesh);
  // Without groups there is one member, whose comm it is.
  const std::size_t members =
      world.max_group() < 2 ? 1 : std::min<std::size_t>(6, world.max_group());
  std::vector<Collectives> all;
  for (std::size_t i = 0; i < links.size(); ++i) all.emplace_back(world, members, 4, 5, most_bytes);
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i].destination == world.rank()) all[i].receive_all(traffic, links[i]);
  }
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i].source == world.rank()) all[i].send_all(world, traffic, links[i]);
  }
  traffic.finish();
  close(world, mesh, traffic);
}

// Small and large messages of one tag: none overtakes.
void order_within_tag(World& world) {
  perf::Mesh mesh = world.connect(world.ring());
  Traffic traffic(world, mesh);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::size_t size = world.common_random()() % (i % 3 == 0 ? 60'000 : 600);
    traffic.receive({world.previous(), world.rank(), 0}, {5, i, size});
    traffic.send({world.rank(), world.next(), 0}, {5, i, size});
  }
  traffic.finish();
  close(world, mesh, traffic);
}

// Tags are ints: all of their values, and one tag on two comms.
void any_tag(World& world) {
  need_tags(world);
  perf::Mesh mesh = world.connect(world.ring(2));
  Traffic traffic(world, mesh);
  constexpr int kLargest = 0x7fffffff;
  const std::vector<int> tags{0, 1, kLargest, kLargest - 1, 0x10000, 0x100};
  for (const int channel : {0, 1}) {
    for (const int tag : tags) {
      traffic.receive({world.previous(), world.rank(), channel}, {tag, 0, 3000});
    }
    for (auto tag = tags.rbegin(); tag != tags.rend(); ++tag) {
      traffic.send({world.rank(), world.next(), channel}, {*tag, 0, 3000});
    }
  }
  traffic.finish();
  close(world, mesh, traffic);
}

}  // namespace

std::vector<Case> tag_cases() {
  std::vector<Case> cases;
  for (const std::size_t size : {std::size_t{100}, std::size_t{5000}, std::size_t{100'000}}) {
    for (const Posted posted : {Posted::before, Posted::after}) {
      const std::string suffix =
          size_text(size) + (posted == Posted::before ? "-receives-first" : "-sends-first");
      cases.push_back({"single-tags-" + suffix, "a send lands in the single receive of its tag",
                       [=](World& world) { single_tags(world, size, posted); }});
      cases.push_back({"grouped-tags-" + suffix, "a send lands in the slot of its tag",
                       [=](World& world) { grouped_tags(world, size, posted); }});
      cases.push_back({"shrinking-groups-" + suffix,
                       "so it does where members of a comm have different numbers of steps",
                       [=](World& world) { shrinking_groups(world, size, posted); }});
    }
  }
  cases.push_back({"uneven-all-to-all-small", "several senders a comm, uneven steps, all ranks",
                   [](World& world) { uneven_all_to_all(world, 4000); }});
  cases.push_back({"uneven-all-to-all-large", "several senders a comm, uneven steps, all ranks",
                   [](World& world) { uneven_all_to_all(world, 150'000); }});
  cases.push_back(
      {"order-within-tag", "sends of one tag land in the order of isend", order_within_tag});
  cases.push_back({"any-tag", "a tag is any int that is not negative", any_tag});
  return cases;
}

}  // namespace fabric::conformance
