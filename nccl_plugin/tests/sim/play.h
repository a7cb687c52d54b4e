// One schedule while it is played; world.h says what is checked.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sim/copies.h"
#include "tests/sim/coverage.h"
#include "tests/sim/job.h"
#include "tests/sim/network.h"
#include "tests/sim/steering.h"

namespace fabric::sim {

class World {
 public:
  explicit World(std::uint64_t seed);
  void run();
  [[nodiscard]] const Finding& finding() const { return finding_; }
  void add_to(Coverage& coverage);

 private:
  enum class Phase : std::uint8_t { storm, few, whole };

  core::PathIndex any() { return indices_[random_.pick(indices_.size())]; }
  void step();
  bool play_on(int steps, const std::function<bool()>& over);

  // Connections.
  void connect(core::PathIndex index);
  bool hello(core::PathIndex index, core::Epoch epoch);
  void late_hello(core::PathIndex index);
  void break_path(core::PathIndex index);
  void further_loss(core::PathIndex index);
  [[nodiscard]] bool carries_again(core::PathIndex index) const;
  void lose(core::PathIndex index);    // the sender gives it up
  void retire(core::PathIndex index);  // the receiver does
  void receiver_gives_up(core::PathIndex index);
  void state_everywhere();

  // Faults of many paths at once, and of those who tell of them.
  void trouble();
  void heal();
  void strand();
  void end_streams();
  void refuse(core::PathIndex index);
  void notice(core::PathIndex index);
  void close_reported();
  [[nodiscard]] core::PathSet live(End end) const;
  [[nodiscard]] core::PathSet live_one_sided() const;
  [[nodiscard]] core::PathSet wanted() const;
  void saw(Seen what, bool it = true) { seen_[static_cast<std::size_t>(what)] |= it; }

  // NICs of one-sided paths (nic.cpp).
  [[nodiscard]] core::PathKind kind_of(core::PathIndex index, core::Epoch epoch) const;
  void connect_one_sided(core::PathIndex index);
  void post_write(core::PathIndex index);
  void run_nic(core::PathIndex index);
  void work_on(core::PathIndex index, Write& write);
  void land(core::PathIndex index, Write& write, std::size_t half);
  void poll(core::PathIndex index, Write& write);
  void complete(core::PathIndex index);
  void flush(core::PathIndex index);
  void confirm(core::PathIndex index);
  void answer_in_lines(core::PathIndex index);
  void take_lines(const Lines& lines);
  void take_progress(const verbs::Line& line);
  void begin_at(core::GroupId group);

  // Chunks.
  void took(core::PathIndex index, const core::Outgoing& chunk);
  void transmit(core::PathIndex index);
  void transmit_by_policy();
  void receive(core::PathIndex index);
  void begin(core::PathIndex index, Packet packet);
  void finish(core::PathIndex index);

  // What the receiver tells.
  void answer(core::PathIndex index);
  void take_answers(core::PathIndex index);
  void announce_fences();
  void run_control();
  void promise(core::PathIndex index, core::Epoch epoch);
  void fence_arrives(const Control& message);
  core::CopyPool* pool();

  Random random_;
  Finding finding_;
  bool one_sided_ = false;   // all paths are
  bool mixed_ = false;       // or each connection is of one kind or the other
  std::uint64_t kinds_ = 0;  // which
  // Up to this epoch; later ones are all one-sided.
  std::array<core::Epoch, core::kMaxPaths> streams_until_{};
  std::optional<Copies> pool_;  // else small messages are copied to the heap
  core::SendCore sender_;
  core::ReceiveCore receiver_{kChunk};
  Job job_;
  bool lazy_ = false;  // the receiver's caller comes late, and so does what may wait
  bool by_policy_ = false;
  bool pings_ = false;  // an idle connection, too, is found dead by its end
  Phase phase_ = Phase::storm;
  std::vector<core::PathIndex> indices_;
  Steering steering_;
  std::int64_t now_ = 1;
  std::uint64_t to_send_again_ = 0;  // bytes, as fences' answers said; the core may know better
  core::PathSet delivered_ = 0;      // paths whose connection brought a chunk while it stood
  std::array<bool, kSeenCount> seen_{};
  std::map<std::pair<core::GroupId, std::uint8_t>, core::PathSet> used_;  // by a message
  // Of one-sided paths: the receiver's rails by group, the chunks of a message that landed, and the
  // notifications that came twice.
  std::map<core::GroupId, std::uint8_t> landed_rails_;
  std::map<std::pair<core::GroupId, std::uint8_t>, std::uint64_t> landed_chunks_;
  std::array<std::uint64_t, core::kMaxPaths> doubled_{};
  struct Replayed {
    int times = 0;
    core::PathKind kind = core::PathKind::stream;  // of the path that took it last
  };
  std::map<std::tuple<core::GroupId, std::uint8_t, std::uint64_t>, Replayed> chunks_;
  std::array<Path, core::kMaxPaths> paths_;
  std::vector<Control> control_;
  std::vector<Control> kept_;  // what was delivered once, to be delivered again
};

}  // namespace fabric::sim
