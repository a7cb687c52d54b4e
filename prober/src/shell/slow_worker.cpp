#include "shell/slow_worker.h"

#include <sched.h>

#include <utility>

namespace fabric::prober {

SlowWorker::~SlowWorker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void SlowWorker::post(Work work) {
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  unposted_.push_back(std::move(work));
  collect();
}

void SlowWorker::collect() {
  std::deque<Result> results;
  {
    // The worker is an ordinary thread: while it holds the lock and does not run, we go on.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    std::swap(results, done_);
    for (Work& work : unposted_) todo_.push_back(std::move(work));
    if (!unposted_.empty()) wake_.notify_one();
    unposted_.clear();
  }
  for (const Result& result : results) result();
}

void SlowWorker::run() {
  sched_param ordinary{};
  ::sched_setscheduler(0, SCHED_OTHER, &ordinary);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !todo_.empty(); });
    if (stop_) return;
    Work work = std::move(todo_.front());
    todo_.pop_front();
    lock.unlock();
    Result result = work();
    work = nullptr;  // what it holds is destroyed here, not on the probing thread
    lock.lock();
    if (result) done_.push_back(std::move(result));
  }
}

}  // namespace fabric::prober
