// Which message lands in which receive: the n-th of a tag in the n-th slot of that tag, whether it
// waits for its CTS or goes before it, and whatever the copy budget has left.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/pair_kit.h"

using namespace fabric::core;
using namespace fabric::core::kit;

namespace {

const std::string kLarge(100'000, 'L');
constexpr std::uint32_t kWide = 16'384;  // bytes of a chunk: all that is copied fits

}  // namespace

TEST_CASE("a single receive takes the message of its tag") {
  for (const bool eager : {true, false}) {
    for (const bool posted_first : {true, false}) {
      for (const std::size_t size : {std::size_t{100}, kLarge.size()}) {
        CAPTURE(eager);
        CAPTURE(posted_first);
        CAPTURE(size);
        Pair pair(eager);
        std::string eight(size, '-');
        std::string nine(size, '-');
        const std::string a(size, 'A');
        const std::string b(size, 'B');
        const auto post = [&] {
          pair.receiver.post(std::array{buffer(eight, 8)});
          pair.receiver.post(std::array{buffer(nine, 9)});
          pair.tell();
        };
        if (posted_first) {
          post();
        }
        pair.send(b, 9);
        pair.send(a, 8);
        pair.carry_all();  // what goes eagerly is on its way before anybody knows better
        if (!posted_first) {
          post();
        }
        pair.carry_all();
        CHECK(pair.receiver.done(0));
        CHECK(pair.receiver.done(1));
        CHECK(eight == a);
        CHECK(nine == b);
        pair.tell();
        CHECK_FALSE(pair.sender.unacknowledged());
      }
    }
  }
}

TEST_CASE("a message whose tag no receive has waits, and nothing lands") {
  Pair pair;
  std::string to(8, '-');
  const Sequence nine = pair.send("nine", 9);
  pair.carry_all();
  CHECK(pair.sender.done(nine));  // copied
  const GroupId group = pair.receiver.post(std::array{buffer(to, 8)});
  CHECK(pair.receiver.urgent());  // its sender has guessed wrong and cannot know
  pair.tell();
  CHECK_FALSE(pair.sender.has_chunk());
  CHECK_FALSE(pair.receiver.done(group));
  CHECK(to == "--------");
  CHECK(pair.sender.has_unacked_copies());
}

TEST_CASE("what went eagerly for the first receive goes again where its tag is") {
  Pair pair;
  std::string eight(4, '-');
  std::string nine(4, '-');
  std::string then(4, '-');
  pair.send("n1n1", 9);
  pair.send("n2n2", 9);
  const Outgoing first = *pair.sender.take(kPrimary);  // to group 0, as it seems
  pair.sender.written(kPrimary);
  const Outgoing second = *pair.sender.take(kOther);  // to group 1
  pair.sender.written(kOther);
  pair.receiver.post(std::array{buffer(eight, 8)});
  const GroupId group = pair.receiver.post(std::array{buffer(nine, 9)});
  const GroupId last = pair.receiver.post(std::array{buffer(then, 9)});
  SUBCASE("it arrives in order") {
    CHECK(pair.carry(kPrimary, first) == Verdict::duplicate);
    CHECK(pair.carry(kOther, second) == Verdict::duplicate);
  }
  SUBCASE("the second arrives first: it is of the right tag, and not of the right era") {
    CHECK(pair.carry(kOther, second) == Verdict::duplicate);
    CHECK(pair.carry(kPrimary, first) == Verdict::duplicate);
  }
  pair.tell();
  pair.carry_all();
  CHECK(pair.receiver.done(group));
  CHECK(pair.receiver.done(last));
  CHECK(nine == "n1n1");
  CHECK(then == "n2n2");
  pair.send("e1e1", 8);
  pair.carry_all();
  CHECK(eight == "e1e1");
}

TEST_CASE("what was kept for another tag makes way before its receive is posted") {
  Pair pair;
  std::string one(4, '-');
  std::string two(4, '-');
  pair.send("aaaa", 1);
  pair.send("bbbb", 1);
  CHECK(pair.carry(kPrimary) == Verdict::place);  // kept for group 0
  CHECK(pair.carry(kPrimary) == Verdict::place);  // kept for group 1
  std::string first(4, '-');
  pair.receiver.post(std::array{buffer(first, 2)});
  pair.tell();
  pair.send("cccc", 2);
  pair.send("dddd", 2);  // eager, for group 1
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(first == "cccc");
  const GroupId group = pair.receiver.post(std::array{buffer(two, 2)});
  CHECK(pair.receiver.done(group));
  CHECK(two == "dddd");
  pair.receiver.post(std::array{buffer(one, 1)});
  pair.tell();
  pair.carry_all();
  CHECK(one == "aaaa");
}

TEST_CASE("messages of another tag do not hold back those that may go eagerly") {
  Pair pair;
  std::string to(4, '-');
  pair.send("one1", 1);
  pair.send("two2", 2);  // waits for its CTS
  pair.send("one3", 1);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK_FALSE(pair.sender.has_chunk());
  for (const char* text : {"one1", "one3"}) {
    const GroupId group = pair.receiver.post(std::array{buffer(to, 1)});
    CHECK(pair.receiver.done(group));
    CHECK(to == text);
  }
  const GroupId group = pair.receiver.post(std::array{buffer(to, 2)});
  CHECK(pair.receiver.urgent());  // nobody could have guessed it
  pair.tell();
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.receiver.done(group));
  CHECK(to == "two2");
}

TEST_CASE("of two messages of one tag the second never goes before the first") {
  Pair pair;
  std::string first(kLarge.size(), '-');
  std::string second(4, '-');
  pair.send(kLarge, 5);
  pair.send("tiny", 5);
  CHECK_FALSE(pair.sender.has_chunk());
  pair.receiver.post(std::array{buffer(first, 5)});
  pair.receiver.post(std::array{buffer(second, 5)});
  pair.tell();
  pair.carry_all();
  CHECK(first == kLarge);
  CHECK(second == "tiny");
}

TEST_CASE("a path dies with what went eagerly under a wrong tag: it goes again, once") {
  Pair pair;
  std::string eight(4, '-');
  std::string nine(4, '-');
  pair.send("nine", 9);
  REQUIRE(pair.sender.take(kPrimary));
  const Epoch fence = pair.sender.fail(kPrimary);
  pair.sender.quiesced(kPrimary);
  pair.receiver.post(std::array{buffer(eight, 8)});
  pair.receiver.post(std::array{buffer(nine, 9)});
  CHECK(pair.receiver.fence(kPrimary, fence));
  pair.receiver.retire(kPrimary);
  pair.receiver.clear_output();
  pair.sender.on_fence_answer(kPrimary, fence, pair.receiver.state());
  pair.carry_all(kOther);
  CHECK(pair.receiver.done(1));
  CHECK(nine == "nine");
  CHECK(eight == "----");
}

TEST_CASE("with the copy budget spent small messages are taken without a copy") {
  for (const bool eager : {true, false}) {
    CAPTURE(eager);
    Pair pair(eager, kWide);
    constexpr std::size_t kSends = 32;
    constexpr std::size_t kSize = 5000;
    constexpr std::size_t kCopies = kCopyBudget / kSize;
    std::vector<std::string> from;
    std::vector<std::string> to(kSends, std::string(kSize, '-'));
    for (std::size_t i = 0; i < kSends; ++i) {
      from.emplace_back(kSize, static_cast<char>('a' + i % 26));
    }
    std::vector<Sequence> sequences;
    for (const std::string& text : from) {
      auto sequence = pair.sender.post(text.data(), text.size(), 0);
      CHECK(sequence.has_value() == (sequences.size() < kCopies));
      if (!sequence) {
        sequence = pair.sender.post(text.data(), text.size(), 0, 0, NoCopy::take);
      }
      REQUIRE(sequence);
      sequences.push_back(*sequence);
    }
    pair.carry_all();
    // Copied ones are done once they are on their way; the others wait for their acknowledgement.
    CHECK(pair.sender.done(sequences[kCopies - 1]) == eager);
    CHECK_FALSE(pair.sender.done(sequences[kCopies]));
    for (std::string& text : to) {
      pair.receiver.post(std::array{buffer(text)});
    }
    CHECK(pair.receiver.urgent());  // what is not copied waits for its CTS
    pair.tell();
    pair.carry_all();
    CHECK(to == from);
    CHECK_FALSE(pair.sender.done(sequences.back()));
    CHECK(pair.receiver.urgent());  // its caller waits
    pair.tell();
    CHECK(pair.sender.done(sequences.back()));
    CHECK(pair.sender.size(sequences.back()) == kSize);
    CHECK_FALSE(pair.sender.unacknowledged());
  }
}

TEST_CASE("messages beyond all limits are taken where a known receive has their tag") {
  Pair pair(false);
  const std::string text(kCopyLimit, 'x');
  const auto take = [&](int tag) {
    return pair.sender.post(text.data(), text.size(), tag, 0, NoCopy::take).has_value();
  };
  while (take(1)) {
  }
  std::string to(kCopyLimit, '-');
  pair.receiver.post(std::array{buffer(to, 2)});
  CHECK_FALSE(take(2));  // not known yet
  pair.tell();
  CHECK_FALSE(take(1));
  CHECK(take(2));
  CHECK_FALSE(take(2));  // its slot is taken
  pair.carry_all();
  CHECK(to == text);
}

TEST_CASE("CTS messages are urgent once the sender's budget is low") {
  Pair pair(true, kWide);
  std::string to(kCopyLimit, '-');
  const std::string text(kCopyLimit, 'x');
  for (std::size_t i = 0; i + 1 < kCopyBudget / kCopyLimit; ++i) {
    pair.send(text);
    const auto out = pair.sender.take(kPrimary);
    CHECK_FALSE(out->header.budget_low);
    CHECK(pair.carry(kPrimary, *out) == Verdict::place);
    pair.sender.written(kPrimary);
  }
  pair.send(text);
  const auto last = pair.sender.take(kPrimary);
  CHECK(last->header.budget_low);
  CHECK(pair.carry(kPrimary, *last) == Verdict::place);
  pair.sender.written(kPrimary);
  pair.tell();
  CHECK_FALSE(pair.receiver.urgent());
  const GroupId first = pair.receiver.post(std::array{buffer(to)});
  CHECK(pair.receiver.urgent());
  SUBCASE("until a chunk of any sort says otherwise") {
    pair.receiver.forget(first);
    for (std::size_t i = 1; i < kCopyBudget / kCopyLimit; ++i) {
      pair.receiver.forget(pair.receiver.post(std::array{buffer(to)}));
    }
    pair.tell();
    REQUIRE_FALSE(pair.sender.nearly_full());
    pair.receiver.post(std::array{buffer(to)});
    pair.tell();
    pair.send("granted");
    CHECK(pair.carry(kPrimary) == Verdict::place);
    pair.tell();
    pair.receiver.post(std::array{buffer(to)});
    CHECK_FALSE(pair.receiver.urgent());
  }
}

TEST_CASE("what comes in before its receive and turns out to be another's makes the CTS urgent") {
  Pair pair;
  std::string to(4, '-');
  pair.send("aaaa", 8);
  const auto chunk = pair.sender.take(kPrimary);
  REQUIRE(chunk);
  const Placement kept = pair.receiver.begin(kPrimary, pair.epoch[kPrimary], chunk->header);
  REQUIRE(kept.verdict == Verdict::place);
  pair.sender.written(kPrimary);
  pair.receiver.post(std::array{buffer(to, 9)});
  std::memcpy(kept.data, chunk->data, chunk->header.length);
  pair.receiver.finish(kPrimary);
  CHECK(pair.receiver.urgent());
  CHECK(to == "----");
}
