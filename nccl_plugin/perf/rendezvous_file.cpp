// Rendezvous in a directory. Files appear whole (written under a dot-name, then renamed).
//
// A directory may hold what an earlier run left, so the ranks first agree on a session: each writes
// `hello.<rank>` with a nonce of its own; rank 0 lists all nonces in `session`; a rank takes a
// session only when its own nonce is in it and says so in `ready.<session>.<rank>`; rank 0 ends
// with `go.<session>`. A stale hello only delays rank 0 until its owner has written a fresh one.
// All other files carry the session in their names.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "perf/rendezvous.h"

namespace fabric::perf {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

class FileRendezvous final : public Rendezvous {
 public:
  FileRendezvous(fs::path directory, const RendezvousConfig& config)
      : directory_(std::move(directory)), config_(config) {
    std::error_code error;
    fs::create_directories(directory_, error);
    if (!fs::is_directory(directory_)) {
      throw TransportError("rendezvous", 0,
                           "cannot make directory " + directory_.string() + ": " + error.message());
    }
    agree();
  }

  void forget() override {
    std::error_code ignored;
    for (const fs::path& file : mine_) fs::remove(file, ignored);
    mine_.clear();
  }

  std::vector<std::string> all_gather(const std::string& name, const std::string& mine) override {
    write(session_ + "." + name + "." + std::to_string(config_.rank), mine);
    std::vector<std::string> all(static_cast<std::size_t>(config_.world));
    const auto deadline = Clock::now() + config_.timeout;
    for (int rank = 0; rank < config_.world; ++rank) {
      const std::string file = session_ + "." + name + "." + std::to_string(rank);
      all[static_cast<std::size_t>(rank)] =
          wait_for(deadline, "rank " + std::to_string(rank) + " in '" + name + "'",
                   [&] { return read(file); });
    }
    return all;
  }

 private:
  static std::string nonce() {
    std::random_device source;
    std::ostringstream text;
    for (int i = 0; i < 4; ++i) text << std::hex << source() << (i < 3 ? "-" : "");
    return text.str();
  }

  std::optional<std::string> read(const std::string& name) const {
    std::ifstream in(directory_ / name, std::ios::binary);
    if (!in) return std::nullopt;
    std::ostringstream content;
    content << in.rdbuf();
    return std::move(content).str();
  }

  void write(const std::string& name, const std::string& content) {
    const fs::path hidden = directory_ / ("." + name + "." + nonce());
    {
      std::ofstream out(hidden, std::ios::binary);
      out << content;
      if (!out.flush()) {
        throw TransportError("rendezvous", 0, "cannot write " + hidden.string());
      }
    }
    const fs::path whole = directory_ / name;
    std::error_code error;
    fs::rename(hidden, whole, error);
    if (error) {
      throw TransportError("rendezvous", 0,
                           "cannot rename to " + whole.string() + ": " + error.message());
    }
    mine_.push_back(whole);
  }

  template <typename Probe>
  auto wait_for(Clock::time_point deadline, const std::string& what, Probe probe) ->
      typename decltype(probe())::value_type {
    while (true) {
      if (auto found = probe()) return *std::move(found);
      if (config_.cancelled != nullptr && config_.cancelled()) {
        throw TransportError("rendezvous", 0, "interrupted while waiting for " + what);
      }
      if (Clock::now() > deadline) {
        throw TransportError("rendezvous", 0, "timed out waiting for " + what);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  void agree() {
    const std::string own = nonce();
    write("hello." + std::to_string(config_.rank), own);
    const auto deadline = Clock::now() + config_.timeout;
    if (config_.rank == 0) {
      lead(deadline);
    } else {
      follow(own, deadline);
    }
  }

  void lead(Clock::time_point deadline) {
    std::vector<std::string> listed;
    std::string missing;
    wait_for(deadline, "the other ranks", [&]() -> std::optional<bool> {
      std::vector<std::string> hellos;
      for (int rank = 0; rank < config_.world; ++rank) {
        auto hello = read("hello." + std::to_string(rank));
        if (!hello) return std::nullopt;
        hellos.push_back(*std::move(hello));
      }
      if (hellos != listed) {
        listed = hellos;
        session_ = nonce();
        std::ostringstream text;
        text << session_ << '\n';
        for (const std::string& hello : listed) text << hello << '\n';
        write("session", text.str());
      }
      for (int rank = 1; rank < config_.world; ++rank) {
        if (!read("ready." + session_ + "." + std::to_string(rank))) return std::nullopt;
      }
      return true;
    });
    write("go." + session_, "");
  }

  void follow(const std::string& own, Clock::time_point deadline) {
    wait_for(deadline, "rank 0", [&]() -> std::optional<bool> {
      const auto text = read("session");
      if (!text) return std::nullopt;
      std::istringstream lines(*text);
      std::string session;
      std::getline(lines, session);
      std::string line;
      for (int rank = 0; rank <= config_.rank; ++rank) std::getline(lines, line);
      if (line != own) return std::nullopt;
      if (session != session_) {
        session_ = session;
        write("ready." + session_ + "." + std::to_string(config_.rank), "");
      }
      if (read("go." + session_)) return true;
      return std::nullopt;
    });
  }

  fs::path directory_;
  RendezvousConfig config_;
  std::string session_;
  std::vector<fs::path> mine_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_file_rendezvous(const std::string& directory,
                                                 const RendezvousConfig& config) {
  return std::make_unique<FileRendezvous>(directory, config);
}

}  // namespace fabric::perf
