// A thread for calls that may wait for a device or for a neighbour's address. Its work is done in
// order; what follows from it runs on the probing thread, at the next collect().
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace fabric::prober {

class SlowWorker {
 public:
  using Result = std::function<void()>;
  // Runs on the worker; may return what is to run on the probing thread.
  using Work = std::function<Result()>;

  SlowWorker() = default;
  // Waits for the work that has begun; what has not is dropped.
  ~SlowWorker();
  SlowWorker(const SlowWorker&) = delete;
  SlowWorker& operator=(const SlowWorker&) = delete;

  // Starts the thread at the first call, as an ordinary one: never real-time.
  void post(Work work);
  // Runs the results that are there. Neither this nor post() waits for the worker.
  void collect();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> todo_;
  std::deque<Result> done_;
  bool stop_ = false;
  std::deque<Work> unposted_;  // of the probing thread alone
  std::thread thread_;
};

}  // namespace fabric::prober
