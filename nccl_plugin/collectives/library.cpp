#include "collectives/library.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/engine.h"

#define FABRIC_EXPORT extern "C" __attribute__((visibility("default")))

namespace fabric::collectives {
namespace {

static_assert(FABRIC_RECEIVE == static_cast<int>(Kind::receive));
static_assert(FABRIC_F64 == static_cast<int>(DataType::f64));
static_assert(FABRIC_PRODUCT == static_cast<int>(ReduceOp::product));

void write(std::string_view text, char* out, std::size_t size) {
  if (out == nullptr || size == 0) return;
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

// What `call` returns, or `failure` with the text of what it threw.
template <typename Result, typename Call>
Result guarded(Result failure, char* error, std::size_t size, Call&& call) noexcept {
  try {
    return call();
  } catch (const AbortedError& e) {
    write(e.what(), error, size);
    return static_cast<Result>(failure - 1);
  } catch (const perf::TransportError& e) {
    write(e.where + ": " + e.what(), error, size);
  } catch (const std::exception& e) {
    write(e.what(), error, size);
  }
  return failure;
}

// Never destroyed: threads may still be inside while the process exits.
struct Registry {
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<perf::Plugin>> plugins;  // initialized, for good
  std::map<std::int64_t, std::shared_ptr<Engine>> groups;
  std::atomic<std::int64_t> last{0};

  std::shared_ptr<perf::Plugin> plugin(const std::string& path) {
    const std::scoped_lock lock(mutex);
    std::shared_ptr<perf::Plugin>& found = plugins[path];
    if (found == nullptr) {
      std::shared_ptr<perf::Plugin> made = perf::Plugin::load(path, std::nullopt, false);
      made->init();
      found = std::move(made);
    }
    return found;
  }
  std::shared_ptr<Engine> find(std::int64_t group) {
    const std::scoped_lock lock(mutex);
    const auto found = groups.find(group);
    return found == groups.end() ? nullptr : found->second;
  }
  std::shared_ptr<Engine> get(std::int64_t group) {
    std::shared_ptr<Engine> found = find(group);
    if (found == nullptr) throw AbortedError("group " + std::to_string(group) + " has ended");
    return found;
  }
};

// A forked child has one of its own, in which no group of its parent is: the threads that serve
// those are not there, and what they had locked stays locked. A group's number is used once.
Registry& registry() {
  static constinit std::atomic<Registry*> current{nullptr};
  Registry* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->process != ::getpid()) {
    auto made = std::make_unique<Registry>();
    made->last = found == nullptr ? 0 : found->last.load();
    if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
      found = made.release();
    }
  }
  return *found;
}

}  // namespace
}  // namespace fabric::collectives

using namespace fabric::collectives;  // NOLINT(google-build-using-namespace)
using fabric::perf::UsageError;

FABRIC_EXPORT int fabric_collectives_version() { return FABRIC_COLLECTIVES_VERSION; }

FABRIC_EXPORT std::int64_t fabric_collectives_open(const char* plugin, int rank, int world,
                                                   int channels, char* error,
                                                   std::size_t error_size) {
  return guarded<std::int64_t>(-1, error, error_size, [&]() -> std::int64_t {
    if (plugin == nullptr || world < 1 || rank < 0 || rank >= world || channels < 0) {
      throw UsageError("open: rank " + std::to_string(rank) + " of " + std::to_string(world) +
                       ", " + std::to_string(channels) + " channels");
    }
    Registry& all = registry();
    auto engine = std::make_shared<Engine>(all.plugin(plugin), Place{rank, world}, channels);
    const std::scoped_lock lock(all.mutex);
    const std::int64_t number = ++all.last;
    all.groups.emplace(number, std::move(engine));
    return number;
  });
}

FABRIC_EXPORT std::int64_t fabric_collectives_address(std::int64_t group, void* address,
                                                      std::size_t size) {
  const std::shared_ptr<Engine> engine = registry().find(group);
  if (engine == nullptr) return -1;
  const std::string& bytes = engine->address();
  if (address != nullptr) std::memcpy(address, bytes.data(), std::min(size, bytes.size()));
  return static_cast<std::int64_t>(bytes.size());
}

FABRIC_EXPORT int fabric_collectives_connect(std::int64_t group, const void* addresses,
                                             const std::size_t* sizes, double timeout_s,
                                             char* error, std::size_t error_size) {
  return guarded(-1, error, error_size, [&] {
    const std::shared_ptr<Engine> engine = registry().get(group);
    if (addresses == nullptr || sizes == nullptr) throw UsageError("connect: no addresses");
    std::vector<std::string_view> all;
    const char* at = static_cast<const char*>(addresses);
    for (int r = 0; r < engine->world(); ++r) {
      all.emplace_back(at, sizes[r]);
      at += sizes[r];
    }
    engine->connect(all, timeout_s);
    return 0;
  });
}

FABRIC_EXPORT std::int64_t fabric_collectives_start(std::int64_t group, const fabric_task* task,
                                                    char* error, std::size_t error_size) {
  return guarded<std::int64_t>(-1, error, error_size, [&] {
    const std::shared_ptr<Engine> engine = registry().get(group);
    if (task == nullptr) throw UsageError("start: no task");
    return engine->start({static_cast<Kind>(task->kind), static_cast<DataType>(task->type),
                          static_cast<ReduceOp>(task->op), task->peer, task->tag, task->count,
                          static_cast<const std::byte*>(task->input),
                          static_cast<std::byte*>(task->output)});
  });
}

FABRIC_EXPORT int fabric_collectives_next(std::int64_t group, fabric_completion* completion) {
  return guarded(0, nullptr, 0, [&] {
    const std::shared_ptr<Engine> engine = registry().find(group);
    if (engine == nullptr || completion == nullptr) return 0;
    const std::optional<Completion> ended = engine->next();
    if (!ended) return 0;
    completion->id = ended->id;
    completion->failed = ended->error.empty() ? 0 : 1;
    write(ended->error, completion->error, sizeof completion->error);
    return 1;
  });
}

FABRIC_EXPORT void fabric_collectives_abort(std::int64_t group, const char* reason) {
  guarded(0, nullptr, 0, [&] {
    const std::shared_ptr<Engine> engine = registry().find(group);
    if (engine != nullptr) engine->abort(reason != nullptr ? reason : "");
    return 0;
  });
}

FABRIC_EXPORT void fabric_collectives_close(std::int64_t group) {
  guarded(0, nullptr, 0, [&] {
    Registry& all = registry();
    const std::shared_ptr<Engine> engine = all.find(group);
    if (engine == nullptr) return 0;
    engine->close();
    const std::scoped_lock lock(all.mutex);
    all.groups.erase(group);
    return 0;
  });
}
