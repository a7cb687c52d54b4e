// Many messages in flight one way, over fake NICs to which things happen meanwhile.
#pragma once

#include "verbs/tests/transport_kit.h"

namespace fabric::verbs::test {

using namespace host::loopback;

inline constexpr std::size_t kInFlight = 8;
inline constexpr milliseconds kLimit{
    20'000};  // of a machine that is slow; without faults: milliseconds

// Messages of one size, as a collective posts them: nobody waits for one before the next is posted.
// Declared before the pair, whose requests may use the buffers until its comms are closed.
class Stream {
 public:
  explicit Stream(std::size_t size) : size_(size) {
    for (std::size_t i = 0; i < kInFlight; ++i) {
      sent_.push_back(contents(size, i));
      received_.emplace_back(size);
    }
  }
  // At least `least` messages, and until `enough()`. False: not all came, or not intact.
  template <typename F>
  bool run(Pair& pair, std::size_t least, F&& enough) {
    const auto until = Clock::now() + kLimit;
    announced_ = least;
    failed_ = over_ = false;
    std::thread sender([&] {
      turns(
          until,
          [&](std::size_t next, Request*& made) {
            if (next + kInFlight > announced_ && !over_) {
              const bool last = next >= least && enough();
              announced_ += last ? 0 : kInFlight;
              over_ = last;
            }
            return next == announced_ || pair.a->isend(pair.send, sent_[next % kInFlight].data(),
                                                       size_, 0, &made) == Result::success;
          },
          [&](Request* request, std::size_t, bool& done) {
            return pair.a->test(request, &done, nullptr) == Result::success;
          },
          *pair.a);
    });
    turns(
        until,
        [&](std::size_t next, Request*& made) {
          auto& buffer = received_[next % kInFlight];
          const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
          return next == announced_ ||
                 pair.b->irecv(pair.receive, {&slot, 1}, false, &made) == Result::success;
        },
        [&](Request* request, std::size_t index, bool& done) {
          int size = 0;
          if (pair.b->test(request, &done, &size) != Result::success) {
            return false;
          }
          auto& buffer = received_[index % kInFlight];
          const bool intact = !done || (static_cast<std::size_t>(size) == size_ &&
                                        buffer == sent_[index % kInFlight]);
          if (done) {
            std::fill(buffer.begin(), buffer.end(), std::byte{0});
          }
          return intact;
        },
        *pair.b);
    sender.join();
    return !failed_;
  }

 private:
  // One end: posts while it may, and tests the oldest, until all that was announced is done.
  template <typename Post, typename Test>
  void turns(Clock::time_point until, Post&& post, Test&& test, Net& net) {
    std::deque<Request*> requests;
    std::size_t posted = 0;
    std::size_t finished = 0;
    while (!failed_ && (!over_ || finished < announced_)) {
      Request* made = nullptr;
      bool good = requests.size() == kInFlight || post(posted, made);
      if (made != nullptr) {
        requests.push_back(made);
        ++posted;
      }
      bool done = false;
      good = good && (requests.empty() || test(requests.front(), finished, done));
      if (done) {
        requests.pop_front();
        ++finished;
      } else if (made == nullptr) {
        net.wait(1000);
      }
      if (!good || Clock::now() > until) {
        failed_ = true;
      }
    }
  }

  std::atomic<std::size_t> announced_{0};  // the receiver posts no more than is sent
  std::atomic<bool> over_{false};          // nothing more is announced
  std::atomic<bool> failed_{false};
  const std::size_t size_;
  std::vector<std::vector<std::byte>> sent_;
  std::vector<std::vector<std::byte>> received_;
};

// Does something to the NICs while a stream runs, so many times.
class Faults {
 public:
  Faults(Wires& wires, int times, milliseconds on, milliseconds off,
         std::function<void(bool)> change)
      : thread_([&wires, times, on, off, change = std::move(change), this] {
          for (int i = 0; i < times; ++i) {
            wires.locked([&] { change(true); });
            std::this_thread::sleep_for(on);
            wires.locked([&] { change(false); });
            std::this_thread::sleep_for(off);
          }
          over_ = true;
        }) {}
  ~Faults() { thread_.join(); }
  [[nodiscard]] bool over() const { return over_; }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace fabric::verbs::test
