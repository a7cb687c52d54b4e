// Whatever a peer writes into our lines and immediates, both cores stand: no chunk leaves its
// message, no receive is done by it that is not whole as told, no credit is made up.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "core/receive_core.h"
#include "core/send_core.h"
#include "verbs/cts_line.h"
#include "verbs/immediate.h"
#include "verbs/progress_line.h"

using namespace fabric;
using namespace fabric::verbs;

namespace {

constexpr std::uint32_t kChunk = 4096;
constexpr std::array kPaths{core::path_index(0, 0), core::path_index(1, 1)};
constexpr std::array<std::size_t, 5> kSizes{0, 1, 8192, 10'000, std::size_t{5} * kChunk};
constexpr std::uint32_t kCredits = 6;
constexpr int kRounds = 300;
constexpr int kSchedules = 400;

class Ends {
 public:
  explicit Ends(std::uint64_t seed) : random_(seed) {
    for (const core::PathIndex path : kPaths) {
      const core::Epoch epoch = sender_.dial(path);
      sender_.one_sided(path, kCredits);
      REQUIRE(receiver_.admit(path, epoch, core::PathKind::one_sided, kCredits));
    }
    for (const std::size_t size : kSizes) {
      auto bytes = std::make_unique<std::byte[]>(size);  // of exactly the size, for ASan
      std::fill_n(bytes.get(), size, std::byte{1});
      sender_.post(bytes.get(), size, 0, 0, core::NoCopy::refuse, {nullptr, false});
      sent_.push_back(std::move(bytes));
      receive(size);
    }
  }

  void run() {
    for (int round = 0; round < kRounds; ++round) {
      switch (pick(5)) {
        case 0:
          send_cts();
          break;
        case 1:
          progress();
          break;
        case 2:
          take();
          break;
        case 3:
          receive(kSizes[pick(kSizes.size())]);
          break;
        default:
          land();
          break;
      }
    }
    for (core::GroupId group = 0; group < sizes_.size(); ++group) {
      CHECK(receiver_.received(group, 0) <= sizes_[group]);
    }
  }

 private:
  std::size_t pick(std::size_t below) { return random_() % below; }
  // Often near what makes sense.
  std::uint64_t number(std::uint64_t near) { return pick(4) == 0 ? random_() : near + pick(5) - 2; }

  void receive(std::size_t size) {
    if (receiver_.posted() == core::kLandingGroups) {
      return;
    }
    core::Buffer buffer;
    buffer.slot.size = size;
    receiver_.post({&buffer, 1});
    sizes_.push_back(size);
    while (receiver_.next_cts()) {
    }
  }

  void send_cts() {
    core::Cts cts;
    cts.group = number(sent_cts_);
    cts.count = static_cast<std::uint8_t>(1 + pick(core::kMaxSlots));
    for (std::uint8_t index = 0; index < cts.count; ++index) {
      CtsLine said{cts.group, cts.count, index, {}};
      said.slot.size = number(kChunk) & kCtsSizeMax;
      said.slot.where = random_();
      said.slot.tag = static_cast<std::int32_t>(pick(2));
      Line line = encode_cts(said);
      if (pick(8) == 0) {
        line[pick(kLineSize)] ^= static_cast<std::byte>(1U << pick(8));
      }
      const auto part = decode_cts(line);
      if (!part) {
        return;
      }
      cts.slots[index] = part->slot;
    }
    sender_.on_cts(cts);
    sent_cts_ += cts.group == sent_cts_ ? 1U : 0U;
  }

  void progress() {
    ProgressLine said;
    said.progress.done_below = number(pick(sent_cts_ + 1));
    for (std::uint8_t& whole : said.progress.whole) {
      whole = static_cast<std::uint8_t>(pick(4) == 0 ? random_() : 0);
    }
    said.path = static_cast<core::PathIndex>(pick(core::kMaxPaths));
    said.epoch = static_cast<core::Epoch>(number(1));
    said.landed = number(taken_);
    const auto read = decode_progress(encode_progress(said));
    REQUIRE(read);
    sender_.on_progress(read->progress);
    sender_.on_landed(read->path, read->epoch, read->landed);
    for (const core::PathIndex path : kPaths) {
      CHECK(sender_.credits(path) <= kCredits);
    }
  }

  void take() {
    const core::PathIndex path = kPaths[pick(kPaths.size())];
    const std::uint64_t credits = sender_.credits(path);
    const auto out = sender_.take(path);
    if (!out) {
      return;
    }
    ++taken_;
    CHECK(credits > 0);
    CHECK(out->header.offset + out->header.length <= out->header.message_size);
    CHECK(std::all_of(out->data, out->data + out->header.length,
                      [](std::byte byte) { return byte == std::byte{1}; }));
    sender_.written(path);
  }

  void land() {
    const core::PathIndex path = kPaths[pick(kPaths.size())];
    const auto chunk = static_cast<std::uint32_t>(number(pick(6)) % core::kLandedChunks);
    const std::uint32_t immediate =
        pick(4) == 0 ? static_cast<std::uint32_t>(random_())
                     : encode_immediate(pick(sizes_.size() + 1), 0, chunk, pick(3) == 0);
    const auto length = static_cast<std::uint32_t>(pick(3) == 0 ? kChunk : number(kChunk));
    const core::Landed landed = decode_immediate(immediate, length);
    const std::uint64_t before = receiver_.landed(path);
    const core::Landing landing = receiver_.land(path, static_cast<core::Epoch>(number(1)), landed);
    if (landing.verdict == core::Verdict::place) {
      CHECK(receiver_.landed_rails(landed.group) != 0);
    }
    const bool counted =
        landing.verdict == core::Verdict::place || landing.verdict == core::Verdict::duplicate;
    CHECK(receiver_.landed(path) == before + (counted ? 1U : 0U));
    if (landing.whole) {
      CHECK(landing.verdict == core::Verdict::place);
      CHECK(receiver_.done(landed.group));
    }
  }

  std::mt19937_64 random_;
  core::SendCore sender_{kChunk};
  core::ReceiveCore receiver_{kChunk};
  std::vector<std::unique_ptr<std::byte[]>> sent_;
  std::vector<std::size_t> sizes_;  // of receives
  core::GroupId sent_cts_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace

TEST_CASE("lines and immediates of a hostile peer") {
  for (std::uint64_t seed = 1; seed <= kSchedules; ++seed) {
    CAPTURE(seed);
    Ends(seed).run();
  }
}
