// A fence is an answer that nothing of the old queue pair can land any more. NICs here write on
// until ERR is confirmed, packets are on their way for as long as the schedule wants, and whatever
// lands after an answer is found.
//
// Each schedule has a seed: FABRIC_FENCE_SEED=N replays one alone, FABRIC_FENCE_SCHEDULES=N sets
// how many, and has them begin anywhere.
#include <random>
#include <set>
#include <string>

#include "tests/from_environment.h"
#include "verbs/tests/link_world.h"

using namespace fabric;
using namespace fabric::verbs;
using fabric::testing::from_environment;
using fake::Call;
using verbs::test::LinkWorld;

namespace {

constexpr std::uint64_t kSchedules = 1'000;
constexpr std::size_t kMessages = 4;
constexpr std::size_t kMostSize = 900;  // bytes: four chunks
constexpr std::size_t kSteps = 240;
constexpr std::size_t kRounds = 2'000;  // in which all comes to its end once nothing fails any more

// What the schedules had, so that one without any of it is no proof.
struct Coverage {
  std::uint64_t answers = 0;        // to fences
  std::uint64_t in_error = 0;       // writes that landed in a queue pair that was in ERR
  std::uint64_t unanswered = 0;     // writes that landed while a fence waited for its answer
  std::uint64_t destroyed = 0;      // queue pairs that were destroyed before they had flushed
  std::uint64_t retransmitted = 0;  // chunks
  std::uint64_t late = 0;           // writes after the answer, or after a link said that it is over
};

class Schedule {
 public:
  Schedule(std::uint64_t seed, bool impatient, Coverage& coverage)
      : coverage_(coverage),
        world_(1 + seed % 3, static_cast<std::uint32_t>(seed ^ (seed >> 32U))) {
    world_.impatient = impatient;
    world_.network.on_write = [this](const fake::LandingWrite& write) { landing(write); };
    for (std::size_t rail = 0; rail < world_.rails(); ++rail) {
      world_.left(rail).slow_error = world_.right(rail).slow_error = true;
      REQUIRE(world_.dial(rail));
    }
  }

  // False: it did not come to its end.
  bool play() {
    for (std::size_t step = 0; step < kSteps; ++step) {
      world_.now += 100'000;
      act(pick(world_.rails()));
    }
    for (std::size_t rail = 0; rail < world_.rails(); ++rail) {
      for (fake::Nic* nic : {&world_.left(rail), &world_.right(rail)}) {
        nic->cut = nic->stopped = nic->lose_acknowledgements = false;
        nic->fail(Call::to_error, 0, 0);
      }
    }
    bool complete = false;
    for (std::size_t round = 0; round < kRounds && !complete; ++round) {
      world_.now += 20'000'000;
      for (std::size_t rail = 0; rail < world_.rails(); ++rail) {
        look(rail);
      }
      complete = posted_ == kMessages && settled() && world_.complete();
      if (posted_ < kMessages) {
        post();
      }
    }
    world_.network.run();  // what is on its way still
    coverage_.retransmitted += world_.retransmitted;
    return complete;
  }

 private:
  std::size_t pick(std::size_t n) { return static_cast<std::size_t>(world_.random() % n); }
  bool one_in(std::size_t n) { return pick(n) == 0; }

  void post() {
    world_.post(pick(kMostSize));
    ++posted_;
  }

  void answer(std::size_t rail) {
    if (world_.fence(rail)) {
      answered_.insert(world_.out_number(rail));
      ++coverage_.answers;
    }
  }

  void poll_receiver(std::size_t rail) {
    const fake::QueuePairModel* pair = world_.network.pair(world_.in_number(rail));
    const bool unflushed = pair != nullptr && (pair->flush_due || !pair->receives.empty());
    world_.poll_receiver(rail);
    const bool gone = world_.network.pair(world_.in_number(rail)) == nullptr;
    coverage_.destroyed += unflushed && gone ? 1U : 0U;
  }

  // Whatever there is to do on a rail.
  void look(std::size_t rail) {
    world_.poll_sender(rail);
    world_.network.step([this](std::size_t n) { return pick(n); });
    poll_receiver(rail);
    world_.network.step([this](std::size_t n) { return pick(n); });
    answer(rail);
    if (world_.down(rail)) {
      static_cast<void>(world_.dial(rail));
    }
  }

  [[nodiscard]] bool settled() const {
    for (std::size_t rail = 0; rail < world_.rails(); ++rail) {
      if (!world_.down(rail) && !world_.live(rail)) {
        return false;
      }
    }
    return true;
  }

  // One thing that may happen at any time.
  void act(std::size_t rail) {
    switch (pick(20)) {
      case 0:
      case 1:
        if (posted_ < kMessages) {
          post();
        }
        return;
      case 2:
      case 3:
      case 4:
        world_.poll_sender(rail);
        return;
      case 5:
      case 6:
      case 7:
        poll_receiver(rail);
        return;
      case 8:
        answer(rail);
        return;
      case 9:
        if (world_.live(rail) && one_in(2)) {
          world_.fail(rail);  // the detector, the steer page
        }
        return;
      case 10:
        if (one_in(4)) {
          world_.fail_receiver(rail);
        }
        return;
      case 11:
        if (world_.down(rail)) {
          static_cast<void>(world_.dial(rail));
        }
        return;
      case 12:
        disturb(one_in(2) ? world_.left(rail) : world_.right(rail));
        return;
      default:
        world_.network.step([this](std::size_t n) { return pick(n); });
    }
  }

  void disturb(fake::Nic& nic) {
    switch (pick(8)) {
      case 0:
        nic.cut = !nic.cut;
        return;
      case 1:
        nic.lose_acknowledgements = !nic.lose_acknowledgements;
        return;
      case 2:
        nic.stopped = !nic.stopped;
        return;
      case 3:
        nic.fail(Call::to_error, EINVAL);  // no ERR: the queue pair is to be destroyed instead
        return;
      case 4:
        world_.now += Connection::kFlushNs / 2;
        return;
      default:
        return;
    }
  }

  void landing(const fake::LandingWrite& write) {
    const bool late =
        answered_.contains(write.from.base.qp_num) || world_.over.contains(write.to.base.qp_num);
    coverage_.late += late ? 1U : 0U;
    coverage_.in_error += write.to.state == IBV_QPS_ERR ? 1U : 0U;
    for (std::size_t rail = 0; rail < world_.rails(); ++rail) {
      const bool fenced = world_.fencing(rail) && world_.out_number(rail) == write.from.base.qp_num;
      coverage_.unanswered += fenced ? 1U : 0U;
    }
  }

  Coverage& coverage_;
  std::set<std::uint32_t> answered_;  // queue pairs of senders whose fence was answered
  std::size_t posted_ = 0;
  LinkWorld world_;
};

Coverage play(std::uint64_t first, std::uint64_t count) {
  Coverage coverage;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Schedule schedule(seed, false, coverage);
    const bool ended = schedule.play();
    if (!ended || coverage.late != 0) {
      FAIL("FABRIC_FENCE_SEED=" << seed << (ended ? ": a late write" : ": not all arrived"));
    }
  }
  return coverage;
}

}  // namespace

TEST_CASE("fence: nothing lands after its answer, in any schedule") {
  const std::uint64_t only = from_environment("FABRIC_FENCE_SEED", 0);
  const std::uint64_t wanted = from_environment("FABRIC_FENCE_SCHEDULES", 0);
  const std::uint64_t first = only != 0 ? only : wanted != 0 ? std::random_device{}() | 1U : 1;
  const std::uint64_t count = only != 0 ? 1 : wanted != 0 ? wanted : kSchedules;
  const Coverage coverage = play(first, count);
  MESSAGE("seeds " << first << " to " << first + count - 1 << ": " << coverage.answers
                   << " fences answered; writes that landed: " << coverage.unanswered
                   << " before their fence's answer, " << coverage.in_error
                   << " in ERR; queue pairs destroyed before they had flushed: "
                   << coverage.destroyed << "; chunks sent again: " << coverage.retransmitted);
  if (count >= kSchedules) {  // are the schedules blind?
    CHECK(coverage.answers > count);
    CHECK(coverage.unanswered > count / 10);
    CHECK(coverage.in_error > count / 10);
    CHECK(coverage.destroyed != 0);
    CHECK(coverage.retransmitted > count / 10);
  }
}

TEST_CASE("fence: a receiver that answers before ERR is confirmed is found") {
  Coverage coverage;
  for (std::uint64_t seed = 1; seed <= 200 && coverage.late == 0; ++seed) {
    Schedule(seed, true, coverage).play();
  }
  CHECK(coverage.late != 0);
}
