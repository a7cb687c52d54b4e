#include "perf/statsreader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "pages/stats_page.h"
#include "perf/clock.h"

namespace fabric::perf {
namespace {

constexpr std::int64_t kLongestSettleNs = 500'000'000;
constexpr std::int64_t kLongestDrainNs = 5'000'000'000;

template <typename T>
T load(const std::vector<std::byte>& page, std::size_t at) {
  T value;
  std::memcpy(&value, page.data() + at, sizeof value);
  return value;
}

std::string whole_file(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::set<std::uint64_t> socket_inodes() {
  std::set<std::uint64_t> inodes;
  const std::string prefix = "socket:[";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(prefix)) {
      inodes.insert(std::strtoull(target.c_str() + prefix.size(), nullptr, 10));
    }
  }
  return inodes;
}

}  // namespace

Rails difference(const Rails& now, const Rails& before) {
  Rails delta;
  for (const auto& [name, bytes] : now) {
    const auto old = before.find(name);
    const RailBytes base = old == before.end() ? RailBytes{} : old->second;
    delta[name] = {bytes.tx >= base.tx ? bytes.tx - base.tx : 0,
                   bytes.rx >= base.rx ? bytes.rx - base.rx : 0};
  }
  return delta;
}

bool parse_stats_page(const std::vector<std::byte>& page, Rails* out, std::uint64_t* written_ns) {
  if (page.size() != pages::kStatsPageSize) return false;
  const auto header = load<pages::StatsHeader>(page, 0);
  if (header.magic != pages::kStatsMagic || header.version < pages::kStatsOldestVersion ||
      header.version > pages::kStatsVersion || header.header_size != sizeof(pages::StatsHeader) ||
      header.seq % 2 != 0 || header.rail_count > pages::kStatsMaxRails) {
    return false;
  }
  out->clear();
  if (written_ns != nullptr) *written_ns = header.heartbeat_ns;
  for (std::size_t i = 0; i < header.rail_count; ++i) {
    const auto rail =
        load<pages::StatsRail>(page, pages::kStatsRailsAt + i * sizeof(pages::StatsRail));
    const std::string name(rail.netdev, strnlen(rail.netdev, sizeof rail.netdev));
    RailBytes& sum = (*out)[name];
    sum.tx += rail.tx_bytes;
    sum.rx += rail.rx_bytes;
  }
  return true;
}

Rails parse_net_dev(const std::string& text, const std::vector<std::string>& devices) {
  Rails rails;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto start = line.find_first_not_of(' ');
    const std::string name = line.substr(start, colon - start);
    if (std::find(devices.begin(), devices.end(), name) == devices.end()) continue;
    std::istringstream numbers(line.substr(colon + 1));
    RailBytes bytes;
    std::uint64_t skipped = 0;
    numbers >> bytes.rx;
    for (int i = 0; i < 7; ++i) numbers >> skipped;
    numbers >> bytes.tx;
    if (numbers) rails[name] = bytes;
  }
  return rails;
}

std::uint64_t unacknowledged(const std::string& text, const std::set<std::uint64_t>& inodes) {
  std::uint64_t total = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string skipped;
    std::string state;
    std::string queues;  // "to send:received", hexadecimal
    std::uint64_t inode = 0;
    fields >> skipped >> skipped >> skipped >> state >> queues >> skipped >> skipped >> skipped >>
        skipped >> inode;
    // Of a socket that listens (0A) the queue is something else.
    if (fields && state != "0A" && inodes.contains(inode)) {
      total += std::strtoull(queues.c_str(), nullptr, 16);
    }
  }
  return total;
}

void wait_acknowledged() {
  const std::int64_t end = monotonic_ns() + kLongestDrainNs;
  const std::set<std::uint64_t> inodes = socket_inodes();
  while (unacknowledged(whole_file("/proc/net/tcp"), inodes) +
                 unacknowledged(whole_file("/proc/net/tcp6"), inodes) >
             0 &&
         monotonic_ns() < end) {
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

StatsReader::StatsReader(std::vector<std::string> devices, std::int64_t since_ns)
    : devices_(std::move(devices)), since_ns_(since_ns) {
  const char* run = std::getenv("FABRIC_RUN_DIR");
  directory_ =
      std::filesystem::path(run != nullptr && *run != '\0' ? run : "/run/fabricd") / "stats";
}

StatsReader::~StatsReader() {
  if (page_ >= 0) ::close(page_);
}

// The page that the plugin in this process writes: the directory may not be ours to list, but the
// plugin's descriptor is ours to find.
bool StatsReader::open_page() {
  if (page_ >= 0) return true;
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::weakly_canonical(directory_, error);
  const std::string prefix = (directory / (std::to_string(::getpid()) + "-")).string();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (gone || !target.starts_with(prefix) || !target.ends_with(".page")) continue;
    if (std::strtoll(target.c_str() + prefix.size(), nullptr, 10) < since_ns_) continue;
    const int fd = ::open(target.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat info {};
    if (fd >= 0 && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        info.st_size == static_cast<off_t>(pages::kStatsPageSize)) {
      if (page_ >= 0) ::close(page_);
      page_ = fd;
    } else if (fd >= 0) {
      ::close(fd);
    }
  }
  return page_ >= 0;
}

bool StatsReader::read_page(Rails* out) {
  if (!open_page()) return false;
  std::vector<std::byte> page(pages::kStatsPageSize);
  constexpr std::size_t kSeqAt = offsetof(pages::StatsHeader, seq);
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (::pread(page_, page.data(), page.size(), 0) != static_cast<ssize_t>(page.size())) break;
    std::uint64_t after = 0;
    if (::pread(page_, &after, sizeof after, kSeqAt) != static_cast<ssize_t>(sizeof after)) break;
    if (after == load<std::uint64_t>(page, kSeqAt) && parse_stats_page(page, out, &written_ns_)) {
      return true;
    }
  }
  return false;
}

Rails StatsReader::read_settled() {
  const std::int64_t begin = monotonic_ns();
  Rails rails = read();
  while (had_page_ && written_ns_ < static_cast<std::uint64_t>(begin) &&
         monotonic_ns() - begin < kLongestSettleNs) {
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
    rails = read();
  }
  return rails;
}

Rails StatsReader::read() {
  Rails rails;
  if (read_page(&rails)) {
    had_page_ = true;
    source_ = "stats_page";
    last_ = rails;
  } else if (!had_page_) {
    last_ = parse_net_dev(whole_file("/proc/net/dev"), devices_);
    source_ = last_.empty() ? "none" : kFromDevices;
  }
  return last_;  // a page torn for long keeps the last reading: the next one has the difference
}

}  // namespace fabric::perf
