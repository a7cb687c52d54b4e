// Threads that destroy what a device has. The kernel, or a firmware that hangs, takes seconds for
// it: soft-RoCE 3 s for a queue pair whose last packet waits for the MAC address of a dead peer.
// Whoever carries data must not wait for that.
//
// One for each rail, so that a device that hangs holds up no other. Any thread may call run(). What
// it was given runs once, the oldest first, several at once; on the caller's thread where there
// cannot be another.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace fabric::verbs {

class Connection;

// Where to run what may take seconds; null: at once, on the caller's thread.
using Elsewhere = std::function<void(std::function<void()>)>;

class Reaper {
 public:
  static constexpr std::size_t kMostThreads = 8;  // started as they are needed

  Reaper() = default;
  // Waits until all is done.
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  void run(std::function<void()> task);

 private:
  void start_thread();
  void work();

  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;  // threads
  bool over_ = false;
  std::vector<std::thread> threads_;
};

// Deletes a connection elsewhere, with all that the device has of it.
struct DeleteElsewhere {
  Elsewhere elsewhere;
  void operator()(Connection* connection) const;
};
using ConnectionPtr = std::unique_ptr<Connection, DeleteElsewhere>;

}  // namespace fabric::verbs
