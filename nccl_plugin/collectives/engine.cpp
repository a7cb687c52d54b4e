#include "collectives/engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <ctime>

#include "perf/clock.h"

namespace fabric::collectives {
namespace {

constexpr int kWaitUs = 100'000;      // where a wake() ends it
constexpr int kShortWaitUs = 2'000;   // where nothing does: how late an abort may be seen
constexpr std::int64_t kYields = 16;  // of a plugin without a wait, before the first sleep
constexpr std::int64_t kShortestSleepNs = 20'000;
constexpr std::int64_t kLongestSleepNs = 1'000'000;

}  // namespace

Engine::Engine(std::shared_ptr<perf::Plugin> plugin, const Place& place, int channels,
               const Pipeline& pipeline)
    : plugin_(std::move(plugin)),
      place_(place),
      connections_(*plugin_, place, channels),
      shared_{*plugin_, connections_, place, pipeline, {}, {}} {}

Engine::~Engine() { close(); }

void Engine::connect(std::span<const std::string_view> addresses, double timeout_s) {
  {
    const std::scoped_lock lock(mutex_);
    if (!reason_.empty()) throw AbortedError(reason_);
    if (connecting_) throw perf::UsageError("the group was connected before");
    connecting_ = true;
  }
  const std::int64_t deadline = perf::monotonic_ns() + static_cast<std::int64_t>(timeout_s * 1e9);
  std::string failure;
  try {
    connections_.connect(addresses, [&] {
      if (abort_asked_.load()) throw AbortedError(aborted());
      if (perf::monotonic_ns() > deadline) {
        throw perf::TransportError("connect", 0, "timed out: not all ranks connected");
      }
      rest();
    });
    shared_.scratch.resize(connections_.channels());
  } catch (const std::exception& error) {
    abort(error.what());
    const std::scoped_lock lock(mutex_);
    connecting_ = false;
    throw;
  }
  idle_rounds_ = 0;
  const std::scoped_lock lock(mutex_);
  connected_ = true;
  connecting_ = false;
  thread_ = std::thread([this] { run(); });
}

std::int64_t Engine::start(const Task& task) {
  if (const std::string fault = fault_of(task, place_); !fault.empty()) {
    throw perf::UsageError(fault);
  }
  const std::scoped_lock lock(mutex_);
  if (!reason_.empty()) throw AbortedError(reason_);
  if (!connected_) throw perf::UsageError("the group is not connected");
  std::uint64_t& sequence = task.kind == Kind::send      ? send_sequence_[task.peer]
                            : task.kind == Kind::receive ? receive_sequence_[task.peer]
                                                         : collective_sequence_;
  submitted_.push_back(std::make_unique<Operation>(++last_id_, task, ++sequence));
  changed_.notify_all();
  if (waiting_) plugin_->wake();
  return last_id_;
}

std::optional<Completion> Engine::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !completions_.empty() || ended_; });
  if (completions_.empty()) return std::nullopt;
  Completion one = std::move(completions_.front());
  completions_.pop_front();
  return one;
}

void Engine::abort(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (!reason_.empty()) return;
  reason_ = reason.empty() ? "aborted" : reason;
  abort_asked_.store(true);
  changed_.notify_all();
  if (waiting_) plugin_->wake();
}

void Engine::close() {
  std::unique_lock lock(mutex_);
  gently_ = gently_ || reason_.empty();
  lock.unlock();
  abort("the group was closed");
  lock.lock();
  // connect() sees the abort, and leaves.
  while (connecting_) {
    lock.unlock();
    const timespec sleep{0, kLongestSleepNs};
    nanosleep(&sleep, nullptr);
    lock.lock();
  }
  if (thread_.joinable()) {
    std::thread thread = std::move(thread_);
    lock.unlock();
    thread.join();
  } else if (connected_) {
    changed_.wait(lock, [this] { return ended_; });  // another one joins it
  } else if (!ended_) {
    connections_.close_receiving();
    connections_.close_sending(false);
    ended_ = true;
    changed_.notify_all();
  }
}

void Engine::run() {
  ::pthread_setname_np(::pthread_self(), "fabric-coll");
  std::string reason;
  try {
    while (!abort_asked_.load()) {
      bool moved = take_submitted();
      moved = progress() || moved;
      if (moved) {
        idle_rounds_ = 0;
      } else if (collectives_.empty() && sends_.empty() && receives_.empty()) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !submitted_.empty() || abort_asked_.load(); });
      } else {
        rest();
      }
    }
    reason = aborted();
  } catch (const perf::TransportError& error) {
    reason = error.where + ": " + error.what();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  end(reason);
}

bool Engine::take_submitted() {
  Queue taken;
  {
    const std::scoped_lock lock(mutex_);
    taken.swap(submitted_);
  }
  const bool any = !taken.empty();
  for (auto& operation : taken) {
    const Task& task = operation->task();
    Queue& queue = task.kind == Kind::send      ? sends_[task.peer]
                   : task.kind == Kind::receive ? receives_[task.peer]
                                                : collectives_;
    queue.push_back(std::move(operation));
  }
  return any;
}

bool Engine::progress() {
  bool moved = progress(collectives_);
  for (std::map<int, Queue>* direction : {&sends_, &receives_}) {
    for (auto at = direction->begin(); at != direction->end();) {
      moved = progress(at->second) || moved;
      at = at->second.empty() ? direction->erase(at) : std::next(at);
    }
  }
  return moved;
}

bool Engine::progress(Queue& queue) {
  if (queue.empty()) return false;
  Operation& first = *queue.front();
  const bool moved = first.progress(shared_);
  if (first.done()) {
    const std::scoped_lock lock(mutex_);
    completions_.push_back({first.id(), ""});
    queue.pop_front();
    changed_.notify_all();
  }
  return moved;
}

void Engine::rest() {
  ++idle_rounds_;
  if (plugin_->can_wait()) {
    {
      const std::scoped_lock lock(mutex_);
      if (!submitted_.empty() || abort_asked_.load()) return;
      waiting_ = true;  // from here on a wake ends the wait
    }
    plugin_->wait(plugin_->can_wake() ? kWaitUs : kShortWaitUs);
    const std::scoped_lock lock(mutex_);
    waiting_ = false;
    return;
  }
  if (idle_rounds_ <= kYields) {
    sched_yield();
    return;
  }
  const auto doublings = std::min<std::int64_t>(idle_rounds_ - kYields, 10);
  const timespec sleep{0, std::min(kShortestSleepNs << doublings, kLongestSleepNs)};
  nanosleep(&sleep, nullptr);
}

void Engine::end(const std::string& reason) {
  abort(reason);  // what is started from now on is refused
  take_submitted();
  bool gently = collectives_.empty() && sends_.empty() && receives_.empty();
  {
    const std::scoped_lock lock(mutex_);
    gently = gently && gently_;
  }
  // The sending ends before anybody hears of the end: a caller may change what is being sent.
  connections_.close_receiving();
  connections_.close_sending(gently);
  fail(collectives_, reason);
  for (auto& [peer, queue] : sends_) fail(queue, reason);
  for (auto& [peer, queue] : receives_) fail(queue, reason);
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Engine::fail(Queue& queue, const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  for (auto& operation : queue) {
    completions_.push_back({operation->id(), reason});
  }
  queue.clear();
  changed_.notify_all();
}

std::string Engine::aborted() {
  const std::scoped_lock lock(mutex_);
  return reason_;
}

}  // namespace fabric::collectives
