#include "verbs/reaper.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "verbs/connection.h"

namespace fabric::verbs {

Reaper::~Reaper() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  news_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void Reaper::run(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    if (idle_ <= tasks_.size() && threads_.size() < kMostThreads) {
      start_thread();
    }
    if (!threads_.empty()) {
      tasks_.push_back(std::move(task));
      news_.notify_one();
      return;
    }
  }
  task();
}

// At a limit of processes it makes do with those there are.
void Reaper::start_thread() {
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
  }
}

void Reaper::work() {
  ::pthread_setname_np(::pthread_self(), "fabric-reaper");
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    news_.wait(lock, [this] { return over_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) {
      return;
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds may take as long
    lock.lock();
  }
}

void DeleteElsewhere::operator()(Connection* connection) const {
  if (elsewhere) {
    elsewhere([connection] { delete connection; });
  } else {
    delete connection;
  }
}

}  // namespace fabric::verbs
