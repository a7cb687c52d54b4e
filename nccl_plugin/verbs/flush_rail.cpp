#include "verbs/flush_rail.h"

#include <utility>

namespace fabric::verbs {

FlushRail::FlushRail(Elsewhere elsewhere, std::function<void()> wake, std::int64_t give_up_ns)
    : elsewhere_(std::move(elsewhere)), wake_(std::move(wake)), give_up_ns_(give_up_ns) {}

FlushRail::~FlushRail() {
  AllEnded ended;
  ended.push_back({std::move(current_), std::move(pair_)});
  release(std::move(ended));
}

void FlushRail::begin(const std::shared_ptr<FlushRead>& read, std::int64_t now) {
  AllEnded ended;
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back(read);
    progress(now, ended);
  }
  release(std::move(ended));
}

FlushRead::State FlushRail::test(const FlushRead& read, std::int64_t now, std::string& why) {
  AllEnded ended;
  FlushRead::State state{};
  {
    const std::scoped_lock lock(mutex_);
    progress(now, ended);
    state = read.state;
    why = read.why;
  }
  release(std::move(ended));
  return state;
}

void FlushRail::poll(std::int64_t now) {
  AllEnded ended;
  {
    const std::scoped_lock lock(mutex_);
    progress(now, ended);
  }
  release(std::move(ended));
}

bool FlushRail::wants_pair(std::int64_t now) {
  const std::scoped_lock lock(mutex_);
  return wanted_ && now >= make_at_;
}

void FlushRail::make_pair(RailPort* port, std::int64_t now) {
  Error error{0, "the rail has no RDMA device"};
  auto made = port == nullptr ? nullptr : FlushPair::make(*port, error);
  AllEnded ended;
  {
    const std::scoped_lock lock(mutex_);
    if (made != nullptr) {
      pair_ = std::move(made);
      wanted_ = false;
      refused_since_ = make_at_ = 0;
    } else {
      refused_since_ = refused_since_ == 0 ? now : refused_since_;
      make_at_ = now + kMakePauseNs;
      if (now - refused_since_ >= give_up_ns_) {
        fail_waiting(error.text, ended);
      }
    }
    progress(now, ended);
  }
  release(std::move(ended));
}

// A device that is gone writes no more: what waits for it is done.
void FlushRail::progress(std::int64_t now, AllEnded& ended) {
  if (pair_ != nullptr && pair_->device().gone()) {
    ended.push_back({current_, std::move(pair_)});
    finish(FlushRead::State::done, ended);
  }
  poll_pair(now, ended);
  while (current_ == nullptr && !waiting_.empty() && start_next(now, ended)) {
  }
  if (waiting_.empty()) {
    wanted_ = false;
    refused_since_ = make_at_ = 0;
  }
}

void FlushRail::poll_pair(std::int64_t now, AllEnded& ended) {
  if (current_ == nullptr || pair_ == nullptr) {
    return;
  }
  const Flush found = pair_->poll();
  if (found == Flush::done) {
    finish(FlushRead::State::done, ended);
  } else if (found == Flush::failed) {
    fail(pair_->why(), ended);
  } else if (found == Flush::pending && now - started_at_ >= give_up_ns_) {
    // Not tried again: who waited that long has waited enough. Its buffer stays registered until
    // the device has let go of the pair.
    current_->why = "READ on " + pair_->device().name() + ": the device never completed it";
    ended.push_back({current_, std::move(pair_)});
    finish(FlushRead::State::failed, ended);
  }
}

// False: there is no pair.
bool FlushRail::start_next(std::int64_t now, AllEnded& ended) {
  auto next = waiting_.front().lock();
  const bool gone = next != nullptr && next->region->device().gone();
  if (next != nullptr && !gone && pair_ == nullptr) {
    ended.push_back({std::move(next), nullptr});
    if (!std::exchange(wanted_, true)) {
      wake_();
    }
    return false;
  }
  waiting_.pop_front();
  if (next == nullptr) {
    return true;
  }
  current_ = std::move(next);
  if (gone) {
    finish(FlushRead::State::done, ended);
  } else if (&current_->region->device() != &pair_->device()) {
    fail("the buffer is registered with another device", ended);
  } else if (pair_->start(current_->address, current_->region->remote_key())) {
    current_->state = FlushRead::State::under_way;
    started_at_ = now;
  } else {
    fail(pair_->why(), ended);
  }
  return true;
}

void FlushRail::finish(FlushRead::State state, AllEnded& ended) {
  if (current_ != nullptr) {
    current_->state = state;
    ended.push_back({std::move(current_), nullptr});
    current_ = nullptr;
  }
}

// Its turn stays the first one.
void FlushRail::fail(const std::string& why, AllEnded& ended) {
  ended.push_back({current_, std::move(pair_)});
  current_->why = why;
  if (++current_->failures >= kTries) {
    finish(FlushRead::State::failed, ended);
    return;
  }
  waiting_.push_front(current_);
  finish(FlushRead::State::waiting, ended);
}

void FlushRail::fail_waiting(const std::string& why, AllEnded& ended) {
  for (const auto& waiting : std::exchange(waiting_, {})) {
    if (auto read = waiting.lock()) {
      read->state = FlushRead::State::failed;
      read->why = why;
      ended.push_back({std::move(read), nullptr});
    }
  }
}

void FlushRail::release(AllEnded ended) const {
  for (Ended& one : ended) {
    if (one.pair == nullptr) {
      continue;
    }
    auto both = std::make_shared<Ended>(std::move(one));
    auto task = [both] {
      both->pair.reset();
      both->read.reset();
    };
    both.reset();
    if (elsewhere_) {
      elsewhere_(std::move(task));
    } else {
      task();
    }
  }
}

}  // namespace fabric::verbs
