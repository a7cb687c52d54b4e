// One rank of a group: a thread that carries out operations over a plugin.
//
// Collectives run one after the other, in the order of start(). Messages to and from each peer run
// beside them, each way in order. Every operation ends exactly once, and next() says so. When one
// fails, or abort() is called, all end with that error, and the group takes no more.
//
// An operation that ended, in whichever way, neither reads nor writes its memory any more. So what
// the caller writes there next never reaches a peer that still takes part in it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/connections.h"
#include "collectives/operation.h"

namespace fabric::collectives {

// Called with what may be no longer: the group was aborted, or closed.
struct AbortedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Completion {
  std::int64_t id = 0;
  std::string error;  // empty: it is done
};

class Engine {
 public:
  // Throws perf::TransportError where the plugin cannot listen.
  Engine(std::shared_ptr<perf::Plugin> plugin, const Place& place, int channels,
         const Pipeline& pipeline = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int world() const { return place_.world; }
  const std::string& address() const { return connections_.address(); }
  // Once, before anything is started; blocks. `addresses`: of all ranks, in their order. Throws
  // perf::UsageError, perf::TransportError (also after `timeout_s`), AbortedError.
  void connect(std::span<const std::string_view> addresses, double timeout_s);

  // The rest is for any thread.
  // The number of the operation, from 1. Throws perf::UsageError, AbortedError.
  std::int64_t start(const Task& task);
  // Blocks until one has ended. None: the group has ended, and every operation before.
  std::optional<Completion> next();
  // Returns at once. The first reason counts.
  void abort(const std::string& reason);
  // Aborts, and returns when the group has ended. When no operation is left and no abort came
  // before, peers get what was sent: that takes seconds where one is silent.
  void close();

 private:
  using Queue = std::deque<std::unique_ptr<Operation>>;
  void run();
  bool take_submitted();
  bool progress();
  bool progress(Queue& queue);
  void rest();
  void end(const std::string& reason);
  void fail(Queue& queue, const std::string& reason);
  std::string aborted();

  const std::shared_ptr<perf::Plugin> plugin_;
  const Place place_;
  Connections connections_;
  Shared shared_;
  // The thread's own.
  Queue collectives_;
  std::map<int, Queue> sends_;     // by peer
  std::map<int, Queue> receives_;  // by peer
  std::int64_t idle_rounds_ = 0;

  std::atomic<bool> abort_asked_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  // Below: under the mutex.
  Queue submitted_;
  std::deque<Completion> completions_;
  std::int64_t last_id_ = 0;
  std::uint64_t collective_sequence_ = 0;
  std::map<int, std::uint64_t> send_sequence_;
  std::map<int, std::uint64_t> receive_sequence_;
  std::string reason_;    // of the abort
  bool gently_ = false;   // close() was the abort
  bool waiting_ = false;  // the thread, inside the plugin
  bool connecting_ = false;
  bool connected_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace fabric::collectives
