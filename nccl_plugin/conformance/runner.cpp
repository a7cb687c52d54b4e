#include "conformance/runner.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "perf/clock.h"

namespace fabric::conformance {
namespace {

constexpr double kStartS = 30;      // beyond the time of the case: load, init, connect, exit
constexpr double kStragglersS = 3;  // for the others, once a rank has failed
constexpr std::size_t kLogTail = 3000;

enum Status : int { kPassed = 0, kFailed = 1, kUsage = 2, kNotOffered = 77 };

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    in = ends[0];
    out = ends[1];
  }
  int in;
  int out;
};

// One rank's process, as seen from outside.
struct Process {
  int rank = 0;
  pid_t pid = -1;
  int words = -1;  // what the rank says of its case
  int log = -1;    // its standard error
  bool ended = false;
  int status = 0;
  std::string said;
};

void say(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += static_cast<std::size_t>(n);
  }
}

perf::RendezvousAddress address_of(const Job& job, const Case& played, int round) {
  perf::RendezvousAddress address = perf::parse_rendezvous(job.rendezvous);
  if (address.kind == perf::RendezvousAddress::Kind::file) {
    address.place += "/v" + std::to_string(job.abi) + "-" + std::to_string(job.world) + "-" +
                     std::to_string(round) + "-" + played.name;
  }
  return address;
}

int play(const Job& job, const Case& played, int rank, int round, int words) {
  try {
    const auto timeout = std::chrono::milliseconds(static_cast<int>(job.timeout_s * 1000));
    NumberedRendezvous rendezvous(
        perf::make_rendezvous(address_of(job, played, round), {rank, job.world, timeout, nullptr}));
    const auto plugin = perf::Plugin::load(job.plugin, job.abi, job.verbose);
    plugin->init();
    {
      World world(*plugin, rendezvous,
                  {rank, job.world, job.device, job.seed + static_cast<std::uint64_t>(round),
                   job.timeout_s, job.level});
      played.run(world);
    }
    plugin->finalize();
    return kPassed;
  } catch (const NotOffered& error) {
    say(words, error.what());
    return kNotOffered;
  } catch (const perf::UsageError& error) {
    say(words, error.what());
    return kUsage;
  } catch (const perf::TransportError& error) {
    say(words, error.where + ": " + error.what());
  } catch (const std::exception& error) {
    say(words, error.what());
  }
  // The plugin may still use memory that is gone by now: no destructor, no exit handler.
  std::cerr.flush();
  ::_exit(kFailed);
}

Process start(const Job& job, const Case& played, int rank, int round) {
  Process process;
  process.rank = rank;
  const Pipe pipe;
  process.words = pipe.in;
  process.log = ::memfd_create("log", MFD_CLOEXEC);
  process.pid = ::fork();
  if (process.pid < 0 || process.log < 0) throw std::runtime_error("cannot start a rank");
  if (process.pid == 0) {
    if (!job.verbose) ::dup2(process.log, STDERR_FILENO);
    std::exit(play(job, played, rank, round, pipe.out));  // NOLINT(concurrency-mt-unsafe)
  }
  ::close(pipe.out);
  return process;
}

std::string tail_of(int log) {
  const off_t size = ::lseek(log, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(kLogTail));
  std::string text(static_cast<std::size_t>(std::max<off_t>(0, size - from)), '\0');
  const ssize_t n = ::pread(log, text.data(), text.size(), from);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

// Waits for all; who has not ended by the deadline, or soon after another has failed, is killed.
void wait_for(std::vector<Process>& processes, std::int64_t deadline_ns) {
  std::size_t left = processes.size();
  while (left != 0) {
    for (Process& process : processes) {
      if (process.ended || ::waitpid(process.pid, &process.status, WNOHANG) != process.pid) {
        continue;
      }
      process.ended = true;
      --left;
      std::array<char, 4096> text{};
      const ssize_t n = ::read(process.words, text.data(), text.size());
      if (n > 0) process.said.assign(text.data(), static_cast<std::size_t>(n));
      if (process.status != 0) {
        deadline_ns = std::min(
            deadline_ns, perf::monotonic_ns() + static_cast<std::int64_t>(kStragglersS * 1e9));
      }
    }
    if (left == 0) return;
    if (perf::monotonic_ns() > deadline_ns) {
      for (Process& process : processes) {
        if (!process.ended) ::kill(process.pid, SIGKILL);
      }
      deadline_ns += static_cast<std::int64_t>(kStartS * 1e9);
    }
    ::usleep(2000);
  }
}

std::string why_of(const Process& process) {
  std::string text = "rank " + std::to_string(process.rank) + ": ";
  if (WIFSIGNALED(process.status)) {
    const int signal = WTERMSIG(process.status);
    text += signal == SIGKILL ? "did not end" : "died of signal " + std::to_string(signal);
  } else if (process.said.empty()) {
    text += "ended with status " + std::to_string(WEXITSTATUS(process.status));
  }
  return text + process.said;
}

Verdict judge(const std::vector<Process>& processes, bool verbose) {
  Verdict verdict{};
  verdict.outcome = Outcome::passed;
  bool killed = false;
  for (const Process& process : processes) {
    if (process.status == 0) continue;
    const bool exited = WIFEXITED(process.status);
    if (exited && WEXITSTATUS(process.status) == kUsage) throw perf::UsageError(process.said);
    if (exited && WEXITSTATUS(process.status) == kNotOffered) {
      if (verdict.outcome == Outcome::passed) verdict.outcome = Outcome::not_offered;
    } else {
      verdict.outcome = Outcome::failed;
    }
    // Those that were killed after another's failure have no reason of their own.
    const bool straggler = WIFSIGNALED(process.status) && WTERMSIG(process.status) == SIGKILL;
    if (straggler && !verdict.why.empty() && !killed) continue;
    killed = killed || straggler;
    verdict.why += (verdict.why.empty() ? "" : " | ") + why_of(process);
    if (!verbose && verdict.outcome == Outcome::failed) std::cerr << tail_of(process.log);
  }
  return verdict;
}

}  // namespace

Verdict run_case(const Job& job, const Case& played, int round) {
  Job own = job;
  std::filesystem::path directory;
  if (own.rendezvous.empty()) {
    std::string name = (std::filesystem::temp_directory_path() / "fabric-conformance-XXXXXX");
    if (::mkdtemp(name.data()) == nullptr)
      throw perf::UsageError("no directory can be made in " + name);
    directory = name;
    own.rendezvous = "file:" + name;
  }
  const std::int64_t began = perf::monotonic_ns();
  std::vector<Process> processes;
  for (int rank = own.rank.value_or(0); rank < (own.rank ? *own.rank + 1 : own.world); ++rank) {
    processes.push_back(start(own, played, rank, round));
  }
  wait_for(processes, began + static_cast<std::int64_t>((own.timeout_s + kStartS) * 1e9));
  const std::int64_t took = perf::monotonic_ns() - began;
  if (!directory.empty()) std::filesystem::remove_all(directory);
  Verdict verdict = judge(processes, own.verbose);
  for (const Process& process : processes) {
    ::close(process.words);
    ::close(process.log);
  }
  verdict.name = played.name;
  verdict.abi = own.abi;
  verdict.world = own.world;
  verdict.round = round;
  verdict.seconds = static_cast<double>(took) * 1e-9;
  return verdict;
}

std::vector<int> exported_versions(const std::string& plugin) {
  // In a process of its own: a library may start threads when it is loaded, and we fork later.
  const Pipe pipe;
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string found;
    try {
      for (int version = 8; version <= 12; ++version) {
        try {
          perf::Plugin::load(plugin, version, false);
          found += static_cast<char>(version);
        } catch (const perf::UsageError&) {
          if (version == 12 && found.empty()) throw;
        }
      }
    } catch (const std::exception& error) {
      found = error.what();
    }
    say(pipe.out, found);
    ::_exit(0);
  }
  ::close(pipe.out);
  std::string text;
  std::array<char, 512> part{};
  for (ssize_t n = 0; (n = ::read(pipe.in, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(n));
  }
  ::close(pipe.in);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (text.empty() || text.front() > 12) {
    throw perf::UsageError(text.empty() ? plugin + " cannot be loaded" : text);
  }
  return {text.begin(), text.end()};
}

}  // namespace fabric::conformance
