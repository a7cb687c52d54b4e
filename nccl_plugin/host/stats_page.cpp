#include "host/stats_page.h"
#include "host/monotonic.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fabric::host {

namespace {

using namespace fabric::pages;

template <std::size_t N>
void copy_name(char (&out)[N], const std::string& name) {
  std::memset(out, 0, N);
  std::memcpy(out, name.data(), std::min(name.size(), N - 1));
}

template <typename T>
T load(const std::atomic<T>& counter) {
  return counter.load(std::memory_order_relaxed);
}

// Who may read the page is for its directory to say (stats_page.h): fabricd gives itself a default
// ACL there, or its group by setgid. Where neither came with the new file, its group is our own,
// which is none of another job's business.
::mode_t mode_for(int page, const std::string& directory) {
  struct stat made {};
  struct stat above {};
  if (::stat(directory.c_str(), &above) == 0 && (above.st_mode & S_IROTH) != 0) {
    return 0644;  // a fabricd of before: it reads as anybody does
  }
  const bool listed = ::fgetxattr(page, "system.posix_acl_access", nullptr, 0) > 0;
  const bool given = ::fstat(page, &made) == 0 && made.st_gid != ::getegid();
  return listed || given ? 0640 : 0600;
}

}  // namespace

std::string Stats::open(const Params& params, const std::vector<Rail>& rail_list,
                        std::int64_t now_ns) {
  header_ = {};
  header_.magic = kStatsMagic;
  header_.version = kStatsVersion;
  header_.header_size = sizeof(StatsHeader);
  header_.page_size = kStatsPageSize;
  header_.pid = static_cast<std::uint32_t>(::getpid());
  struct stat space {};
  if (::stat("/proc/self/ns/pid", &space) == 0) {
    header_.pid_namespace = static_cast<std::uint32_t>(space.st_ino);
  }
  header_.start_ns = static_cast<std::uint64_t>(now_ns);
  header_.heartbeat_ns = header_.start_ns;
  header_.rail_count = static_cast<std::uint32_t>(rail_list.size());
  header_.failover = params.failover ? 1 : 0;
  copy_name(header_.job, params.job);
  // A new page begins at nothing: whoever adds pages up would count an earlier life twice.
  for (RailCounters& rail : rails) {
    for (auto* counter : {&rail.tx_bytes, &rail.rx_bytes, &rail.tx_chunks, &rail.rx_chunks,
                          &rail.retransmit_bytes, &rail.retransmit_chunks, &rail.duplicate_bytes,
                          &rail.failovers, &rail.rejoins, &rail.stalls, &rail.stall_ns}) {
      counter->store(0, std::memory_order_relaxed);
    }
  }
  for (auto* counter : {&errors, &refused_peers, &refused_fenced, &steer_rejected}) {
    counter->store(0, std::memory_order_relaxed);
  }
  {
    const std::scoped_lock lock(events_mutex_);
    events_ = {};  // the new page has none of them, whatever their number says
    event_count_ = 0;
  }
  groups = {};
  deliveries = {};
  table_.assign(rail_list.size(), StatsRail{});
  for (std::size_t i = 0; i < rail_list.size(); ++i) {
    copy_name(table_[i].netdev, rail_list[i].name);
  }

  const std::string directory = params.run_dir + "/stats";
  if (::mkdir(directory.c_str(), 01733) == 0) {
    ::chmod(directory.c_str(), 01733);  // mkdir's mode is masked
  }
  const std::string name = std::to_string(::getpid()) + "-" + std::to_string(now_ns) + ".page";
  const std::string hidden = directory + "/." + name;
  Fd fd = Fd::opened([&] {
    return ::open(hidden.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
  });
  if (!fd.open()) {
    return hidden + ": " + std::strerror(errno);
  }
  std::vector<std::byte> whole(kStatsPageSize);
  std::memcpy(whole.data(), &header_, sizeof header_);
  if (!table_.empty()) {
    std::memcpy(whole.data() + kStatsRailsAt, table_.data(), table_.size() * sizeof(StatsRail));
  }
  path_ = directory + "/" + name;
  if (::fchmod(fd.get(), mode_for(fd.get(), directory)) != 0 ||
      ::pwrite(fd.get(), whole.data(), whole.size(), 0) != static_cast<ssize_t>(whole.size()) ||
      ::rename(hidden.c_str(), path_.c_str()) != 0) {
    std::string reason = hidden + ": " + std::strerror(errno);
    ::unlink(hidden.c_str());
    path_.clear();
    return reason;
  }
  fd_ = std::move(fd);
  return "";
}

void Stats::add_rail(const std::string& netdev) {
  copy_name(table_.emplace_back().netdev, netdev);
  header_.rail_count = static_cast<std::uint32_t>(table_.size());
}

void Stats::close() {
  if (!path_.empty()) {
    ::unlink(path_.c_str());
    path_.clear();
  }
  fd_.reset();
}

void Stats::publish(std::int64_t now_ns) {
  if (!fd_.open()) {
    return;
  }
  header_.heartbeat_ns = static_cast<std::uint64_t>(now_ns);
  header_.errors = load(errors);
  header_.refused_peers = load(refused_peers);
  header_.refused_fenced = load(refused_fenced);
  header_.steer_rejected = load(steer_rejected);
  header_.send_comms = load(send_comms);
  header_.recv_comms = load(recv_comms);
  header_.steer_present = load(steer_present) ? 1 : 0;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    const RailCounters& from = rails[i];
    StatsRail& to = table_[i];
    to.tx_bytes = load(from.tx_bytes);
    to.rx_bytes = load(from.rx_bytes);
    to.tx_chunks = load(from.tx_chunks);
    to.rx_chunks = load(from.rx_chunks);
    to.retransmit_bytes = load(from.retransmit_bytes);
    to.retransmit_chunks = load(from.retransmit_chunks);
    to.duplicate_bytes = load(from.duplicate_bytes);
    to.failovers = load(from.failovers);
    to.rejoins = load(from.rejoins);
    to.stalls = load(from.stalls);
    to.stall_ns = load(from.stall_ns);
    to.in_flight_bytes = load(from.in_flight_bytes);
    to.live_paths = load(from.live_paths);
    to.dead_paths = load(from.dead_paths);
    to.tx_messages = deliveries.tx_messages[i];
    to.rx_messages = deliveries.rx_messages[i];
  }
  const auto group_rows = groups.rows();
  header_.group_count = static_cast<std::uint32_t>(group_rows.size());
  const std::scoped_lock lock(events_mutex_);  // event() writes the header's count
  header_.event_count = event_count_;
  const auto write = [this](const void* from, std::size_t size, std::size_t at) {
    return ::pwrite(fd_.get(), from, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size);
  };
  const std::size_t seq_at = offsetof(StatsHeader, seq);
  ++header_.seq;  // odd: under way
  write(&header_.seq, sizeof header_.seq, seq_at);
  write(&header_, sizeof header_, 0);
  write(table_.data(), table_.size() * sizeof(StatsRail), kStatsRailsAt);
  write(deliveries.latency.data(), table_.size() * sizeof(StatsLatency), kStatsLatencyAt);
  write(group_rows.data(), group_rows.size_bytes(), kStatsGroupsAt);
  ++header_.seq;
  write(&header_.seq, sizeof header_.seq, seq_at);
}

void Stats::event(StatsEventKind kind, std::uint64_t comm, std::uint8_t local_rail,
                  std::uint8_t remote_rail, std::uint32_t detail) {
  const std::scoped_lock lock(events_mutex_);
  const std::uint64_t number = event_count_++;
  StatsEvent& slot = events_[number % kStatsMaxEvents];
  slot = {number + 1, static_cast<std::uint64_t>(monotonic_ns()),
          comm,       static_cast<std::uint16_t>(kind),
          local_rail, remote_rail,
          detail};
  if (fd_.open()) {
    const auto at =
        static_cast<off_t>(kStatsEventsAt + (number % kStatsMaxEvents) * sizeof(StatsEvent));
    // Body first, then the index that declares it whole.
    StatsEvent blank = slot;
    blank.index = 0;
    if (::pwrite(fd_.get(), &blank, sizeof blank, at) == static_cast<ssize_t>(sizeof blank)) {
      [[maybe_unused]] const auto written = ::pwrite(fd_.get(), &slot.index, sizeof slot.index, at);
    }
  }
}

std::vector<StatsEvent> Stats::events() const {
  const std::scoped_lock lock(events_mutex_);
  std::vector<StatsEvent> out;
  const std::uint64_t first = event_count_ > kStatsMaxEvents ? event_count_ - kStatsMaxEvents : 0;
  for (std::uint64_t i = first; i < event_count_; ++i) {
    out.push_back(events_[i % kStatsMaxEvents]);
  }
  return out;
}

}  // namespace fabric::host
