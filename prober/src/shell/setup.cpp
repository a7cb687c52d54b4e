// What the prober does at its start and on request, off the probing path.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "shell/json_config.h"
#include "shell/log.h"
#include "shell/new_file.h"
#include "shell/prober.h"

namespace fabric::prober {
namespace {

using nlohmann::json;

constexpr std::array<const char*, ring::kRefusals> kReasons = {
    "short", "magic", "version", "auth", "replay", "unknown_path", "unproven"};

std::string slurp(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path + ": " + std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

void Prober::load_keys() {
  struct stat info {};
  if (::stat(options_.key_file.c_str(), &info) == 0 && (info.st_mode & 0077) != 0) {
    log_warning(options_.key_file + ": others than its owner may read this key");
  }
  take_keys(slurp(options_.key_file), options_.key_file);
}

void Prober::take_keys(const std::string& text, const std::string& where) {
  std::string error;
  const auto keys = parse_keys(text, error);
  if (!keys) throw std::runtime_error(where + ": " + error);
  engine_.set_keys(Keyring(*keys));
}

void Prober::become_realtime() {
  if (options_.cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(options_.cpu), &set);
    if (::sched_setaffinity(0, sizeof set, &set) != 0) {
      throw std::runtime_error("--cpu " + std::to_string(options_.cpu) + ": " +
                               std::strerror(errno));
    }
  }
  if (options_.rt_priority > 0) {
    sched_param param{};
    param.sched_priority = options_.rt_priority;
    if (::sched_setscheduler(0, SCHED_FIFO, &param) == 0) {
      scheduling_ = "fifo";
      flags_ |= ring::kHeaderRealtime;
    } else {
      log_warning(std::string("not real-time (SCHED_FIFO: ") + std::strerror(errno) +
                  "): under load probes will be late and misses inconclusive");
    }
  }
  if (::mlockall(MCL_CURRENT | MCL_FUTURE) == 0) {
    locked_ = true;
    flags_ |= ring::kHeaderLocked;
  } else {
    log_warning(std::string("memory is not locked (mlockall: ") + std::strerror(errno) + ")");
  }
  ring_.set_flags(flags_);
}

void Prober::read_signal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGHUP) {
      stop_ = true;
      continue;
    }
    try {
      load_keys();
      log_info("keys read again");
    } catch (const std::exception& error) {
      log_error(std::string(error.what()) + "; the old keys stay");
    }
  }
}

void Prober::load_saved() {
  const std::string path = directory_ + "/config.json";
  if (::access(path.c_str(), F_OK) != 0) return;
  try {
    configure(json::parse(slurp(path)));
    log_info("probing with the last configuration until a new one comes");
  } catch (const std::exception& error) {
    log_warning(path + ": " + error.what() + "; waiting for a configuration");
  }
}

std::uint32_t Prober::configure(const json& request) {
  Config config = parse_config(request);
  // Now and, where the link stays, a few times later: its socket may be gone in a moment.
  for (int i = 0; i < 2; ++i) send_byes(&config);
  std::vector<Port> ports;
  const auto links = std::span(config.links);
  for (const LinkConfig& link : links.first(config.udp_links())) {
    const auto same = std::find_if(ports_.begin(), ports_.end(), [&](const Port& p) {
      return p.config.netdev == link.netdev && p.config.address == link.address;
    });
    if (same == ports_.end()) {
      ports.emplace_back(link);
      continue;
    }
    const bool reopen =
        same->config.hw_stamps != link.hw_stamps || engine_.config().dscp != config.dscp;
    ports.push_back(std::move(*same));
    same->config.netdev.clear();
    ports.back().config = link;
    if (!reopen) continue;
    ports.back().socket.reset();
    ports.back().others.clear();
  }
  ports_ = std::move(ports);
  rdma_.configure(links.subspan(config.udp_links()), config.dscp);
  const Now now;
  engine_.configure(std::move(config), now.mono, now.wall_minus_mono());
  ring_.begin_config();
  write_rows();
  const Config& c = engine_.config();
  const auto count = [](std::size_t n) { return static_cast<std::uint32_t>(n); };
  ring_.publish_config(
      {count(c.udp_links()), count(c.udp_paths()), count(c.links.size() - c.udp_links()),
       count(c.paths.size() - c.udp_paths())},
      static_cast<std::uint64_t>(c.link_interval), c.misses, c.clock_train_hz);
  next_tick_ = 0;
  return ring_.config_epoch();
}

json Prober::handle(const json& request) {
  const std::string op = request.at("op");
  if (op == "configure") {
    const std::uint32_t epoch = configure(request);
    // Kept, so that a restarted prober need not wait for the daemon.
    const std::string path = directory_ + "/config.json";
    const std::string text = request.dump() + '\n';
    const Fd fd = create_file(path + ".new", 0644);
    if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::rename((path + ".new").c_str(), path.c_str()) != 0) {
      log_warning(path + ": " + std::strerror(errno));
    }
    return {{"config", epoch}};
  }
  if (op == "status") return status();
  if (op == "views") return peer_reports(request);
  if (op == "mtu") return mtu(request);
  if (op == "rekey") {
    // A credential (systemd's LoadCredential) stays what it was at the start: root, who may read
    // the new file, hands its text over.
    if (request.contains("keys")) {
      take_keys(request.at("keys").get<std::string>(), "keys");
      log_info("keys taken over the control socket");
    } else {
      load_keys();
    }
    return json::object();
  }
  throw std::runtime_error("op: '" + op +
                           "' is none of configure, mtu, subscribe, status, views, rekey");
}

json Prober::peer_reports(const json& request) {
  constexpr std::size_t kMost = 1000;  // an answer is one packet of at most 64 KiB
  const auto skip = request.contains("skip") ? request.at("skip").get<std::size_t>() : 0;
  const Nanos now = read_clock(CLOCK_MONOTONIC);
  bool more = false;
  json list = json::array();
  for (const PeerReports::Entry& entry : engine_.peer_reports(now, skip, kMost, more)) {
    list.push_back({entry.reporter, entry.packed, entry.at});
  }
  return {{"views", std::move(list)}, {"more", more}};
}

json Prober::mtu(const json& request) {
  constexpr std::size_t kMost = 400;  // an answer is one packet of at most 64 KiB
  const auto skip = request.contains("skip") ? request.at("skip").get<std::size_t>() : 0;
  json list = json::array();
  const std::size_t count = engine_.path_count();
  const std::size_t end = skip < count ? std::min(count, skip + kMost) : count;
  for (std::size_t i = std::min(skip, count); i < end; ++i) {
    const mtu::Path& path = engine_.mtu_of(i);
    list.push_back({path.tx().size, path.tx().missing, path.tx().passed, path.rx().size,
                    path.rx().missing, path.rx().passed});
  }
  return {{"paths", std::move(list)}, {"config", ring_.config_epoch()}, {"more", end < count}};
}

json Prober::status() const {
  const Engine::Counters& c = engine_.counters();
  json refused = json::object();
  for (std::size_t i = 0; i < kReasons.size(); ++i) refused[kReasons[i]] = c.refused[i];
  return {{"version", ring::kRingVersion},
          {"wire_version", kWireVersion},
          {"pid", ::getpid()},
          {"incarnation", incarnation_},
          {"uptime_ns", read_clock(CLOCK_MONOTONIC) - start_},
          {"config", ring_.config_epoch()},
          {"links", ports_.size()},
          {"paths", engine_.path_count()},
          {"scheduling", scheduling_},
          {"rt_priority", scheduling_ == "fifo" ? options_.rt_priority : 0},
          {"memory_locked", locked_},
          {"synchronized", engine_.synchronized()},
          {"due_times_refused", c.due_times_refused},
          {"promises_refused", c.due_times_refused},  // its former name, for one release
          {"sent", sent_},
          {"received", c.received},
          {"refused", refused},
          {"stalls", c.stalls},
          {"stall_ns", c.stall_ns},
          {"stall_max_ns", c.stall_max_ns},
          {"events", ring_.events()},
          {"samples", ring_.samples()},
          {"clients", control_->clients()},
          {"subscribers", control_->subscribers()},
          {"control_errors", control_->errors()}};
}

}  // namespace fabric::prober
