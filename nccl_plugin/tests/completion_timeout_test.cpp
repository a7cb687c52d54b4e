// When a one-sided connection is taken for dead: core/completion_timeout.h.
#include "core/completion_timeout.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace fabric::core;

namespace {

constexpr std::int64_t kMs = 1'000'000;

// A queue pair that is looked at every 5 ms, from 1 ms on.
struct QueuePair {
  CompletionTimeout timeout;
  WorkSample sample;
  Witness witness;
  std::int64_t now = kMs;

  void post(std::uint64_t requests) {
    sample.oldest = sample.posted == sample.completed ? now : sample.oldest;
    sample.posted += requests;
  }
  Liveness look() {
    now += 5 * kMs;
    return timeout.judge(sample, now, witness);
  }
  // The oldest is finished; the others were posted when it was.
  void complete(std::uint64_t requests = 1) { sample.completed += requests; }
  // ms until it is called dead; 0: it is not within `most`.
  std::int64_t dead_after(std::int64_t most, bool witness_answers = false) {
    const std::int64_t began = now;
    while (now - began < most * kMs) {
      const Liveness liveness = look();
      if (liveness == Liveness::dead) {
        return (now - began) / kMs;
      }
      if (liveness == Liveness::suspect && witness_answers) {
        witness.answered = now;
      }
    }
    return 0;
  }
  // It has completed a request every 5 ms for a while.
  void warm_up() {
    for (int i = 0; i < 100; ++i) {
      post(1);
      look();
      complete();
    }
    look();
  }
};

}  // namespace

TEST_CASE("completion timeout: nothing completes on a connection that did a moment ago") {
  QueuePair pair;
  pair.warm_up();
  pair.post(8);
  const std::int64_t found = pair.dead_after(1000);
  CHECK(found >= 60);
  CHECK(found <= 75);
}

TEST_CASE("completion timeout: what is new is given more time") {
  QueuePair pair;
  pair.post(1);
  const std::int64_t found = pair.dead_after(1000);
  CHECK(found >= 180);
  CHECK(found <= 195);
}

TEST_CASE("completion timeout: nothing unfinished, as with a peer that is stopped, is no silence") {
  QueuePair pair;
  pair.warm_up();
  CHECK(pair.dead_after(60'000) == 0);
  CHECK(pair.timeout.moving());
  pair.post(1);  // after a minute: its age counts, not the idle time before it
  CHECK(pair.look() == Liveness::alive);
  CHECK_FALSE(pair.timeout.moving());
  pair.complete();
  CHECK(pair.look() == Liveness::alive);
  CHECK(pair.timeout.moving());
}

TEST_CASE("completion timeout: an old request behind others that complete is no silence") {
  QueuePair pair;
  pair.warm_up();
  pair.post(1000);  // their age is that of the first
  for (int i = 0; i < 999; ++i) {
    CHECK(pair.look() == Liveness::alive);
    pair.complete();
  }
}

TEST_CASE("completion timeout: a witness that answers is believed for 250 ms") {
  QueuePair pair;
  pair.warm_up();
  pair.post(1);
  const std::int64_t found = pair.dead_after(1000, true);
  CHECK(found >= 250);
  CHECK(found <= 265);
}

TEST_CASE("completion timeout: a witness that fails closes what was usually slow") {
  QueuePair pair;
  for (int i = 0; i < 20; ++i) {  // a request in 100 ms
    pair.post(1);
    for (int look = 0; look < 20; ++look) {
      CHECK(pair.look() != Liveness::dead);
    }
    pair.complete();
    pair.look();
  }
  QueuePair broken = pair;
  pair.post(1);
  CHECK(pair.dead_after(1000) >= 180);
  broken.post(1);
  broken.witness.failed = true;
  const std::int64_t found = broken.dead_after(1000);
  CHECK(found >= 60);
  CHECK(found <= 75);
}

TEST_CASE("completion timeout: a port that is told to pause has more time") {
  QueuePair pair;
  pair.warm_up();
  pair.post(1);
  pair.sample.paused = true;
  CHECK(pair.dead_after(1000) >= 180);
}

TEST_CASE("completion timeout: a NIC in software that is slow for all is not dead") {
  QueuePair pair;
  for (int i = 0; i < 10; ++i) {  // a request in 150 ms, and its witness completes meanwhile
    pair.post(1);
    for (int look = 0; look < 30; ++look) {
      const Liveness liveness = pair.look();
      CHECK(liveness != Liveness::dead);
      if (liveness == Liveness::suspect) {
        pair.witness.answered = pair.now;
      }
    }
    pair.complete();
    pair.look();
  }
  pair.post(1);
  const std::int64_t found = pair.dead_after(2000, true);
  CHECK(found >= 300);
  CHECK(found <= 1015);
}

TEST_CASE("completion timeout: a host that was paused looks again before it judges") {
  QueuePair pair;
  pair.warm_up();
  pair.post(1);
  CHECK(pair.look() == Liveness::alive);
  pair.now += 500 * kMs;
  CHECK(pair.look() == Liveness::suspect);
  pair.complete();
  CHECK(pair.look() == Liveness::alive);
}

TEST_CASE("completion timeout: backoff makes all limits longer, but for an error") {
  for (unsigned backoff = 0; backoff <= CompletionTimeout::kMaxBackoff + 1; ++backoff) {
    const std::int64_t scale = 1U << std::min(backoff, CompletionTimeout::kMaxBackoff);
    QueuePair fresh;
    fresh.timeout.set_backoff(backoff);
    fresh.post(1);
    std::int64_t found = fresh.dead_after(5000);
    CHECK(found >= 180 * scale);
    CHECK(found <= 180 * scale + 15);
    QueuePair heard;
    heard.timeout.set_backoff(backoff);
    heard.warm_up();
    heard.post(1);
    found = heard.dead_after(5000, true);
    CHECK(found >= 250 * scale);
    CHECK(found <= 250 * scale + 15);
    QueuePair broken;
    broken.timeout.set_backoff(backoff);
    broken.post(1);
    broken.witness.failed = true;
    found = broken.dead_after(5000);
    CHECK(found >= 60);
    CHECK(found <= 75);
  }
}
