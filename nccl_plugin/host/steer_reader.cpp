#include "host/steer_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace fabric::host {

namespace {

using namespace fabric::pages;

constexpr std::int64_t kReopenNs = 100'000'000;
constexpr std::int64_t kCheckNs = 50'000'000;
constexpr std::int64_t kFutureNs = 1'000'000'000;
constexpr int kTornRetries = 8;

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> data) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> built{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value & 1U) != 0 ? 0xedb88320U ^ (value >> 1U) : value >> 1U;
      }
      built[i] = value;
    }
    return built;
  }();
  crc = ~crc;
  for (const std::byte byte : data) {
    crc = table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xffU] ^ (crc >> 8U);
  }
  return ~crc;
}

bool named(const char (&field)[16], const std::string& name) {
  return name.size() < sizeof field && std::strncmp(field, name.c_str(), sizeof field) == 0;
}

bool stale(const SteerView& view, std::int64_t now_ns) {
  return now_ns > static_cast<std::int64_t>(view.heartbeat_ns + kSteerStaleNs);
}

bool terminated(const char (&field)[16]) {
  return std::find(std::begin(field), std::end(field), '\0') != std::end(field);
}

// Only the daemon may steer the job: it owns the run directory, and nobody else can put a file
// there. (Its own name says nothing: the daemon has a user of its own, and in a user namespace all
// that are not mapped look alike.) In a directory where others write, root or the job's own user.
bool trusted(const std::string& path, const struct stat& page) {
  struct stat directory {};
  const std::string above = path.substr(0, path.rfind('/'));
  if (::stat(above.c_str(), &directory) == 0 && (directory.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return true;
  }
  return page.st_uid == 0 || page.st_uid == ::geteuid();
}

}  // namespace

const SteerRail* SteerView::rail(const std::string& netdev) const {
  const auto found = std::find_if(rails.begin(), rails.end(), [&](const SteerRail& entry) {
    return named(entry.netdev, netdev);
  });
  return found == rails.end() ? nullptr : &*found;
}

const SteerPath* SteerView::path(const std::string& netdev, const Address& remote) const {
  const auto found = std::find_if(paths.begin(), paths.end(), [&](const SteerPath& entry) {
    return named(entry.netdev, netdev) &&
           std::memcmp(entry.remote, remote.ip.data(), sizeof entry.remote) == 0;
  });
  return found == paths.end() ? nullptr : &*found;
}

SteerVerdict parse_steer_page(std::span<const std::byte> page, std::int64_t now_ns,
                              SteerView& out) {
  SteerHeader header{};
  if (page.size() != kSteerPageSize) {
    return SteerVerdict::refused;
  }
  std::memcpy(&header, page.data(), sizeof header);
  if (header.magic != kSteerMagic || header.version > kSteerVersion ||
      header.version + 1 < kSteerVersion || header.version == 0 ||
      header.header_size != sizeof(SteerHeader) || header.page_size != kSteerPageSize) {
    return SteerVerdict::refused;
  }
  if ((header.seq & 1U) != 0) {
    return SteerVerdict::torn;
  }
  if (header.rail_count > kSteerMaxRails || header.path_count > kSteerMaxPaths ||
      header.fence_count > kSteerMaxFences ||
      kSteerPathsAt + header.path_count * sizeof(SteerPath) > steer_fences_at(header.fence_count) ||
      header.mode > static_cast<std::uint32_t>(SteerMode::migrate) ||
      header.heartbeat_ns > static_cast<std::uint64_t>(now_ns + kFutureNs)) {
    return SteerVerdict::refused;
  }
  const std::size_t rails_end = kSteerRailsAt + header.rail_count * sizeof(SteerRail);
  std::uint32_t crc = crc32(0, page.subspan(kSteerCrcFrom, rails_end - kSteerCrcFrom));
  crc = crc32(crc, page.subspan(kSteerPathsAt, header.path_count * sizeof(SteerPath)));
  const auto fences = page.subspan(steer_fences_at(header.fence_count));
  if (crc != header.crc || crc32(0, fences) != header.fence_crc) {
    return SteerVerdict::refused;
  }
  SteerView view;
  view.generation = header.generation;
  view.incarnation = header.incarnation;
  view.heartbeat_ns = header.heartbeat_ns;
  view.rails.resize(header.rail_count);
  view.paths.resize(header.path_count);
  if (!view.rails.empty()) {
    std::memcpy(view.rails.data(), page.data() + kSteerRailsAt,
                view.rails.size() * sizeof(SteerRail));
  }
  if (!view.paths.empty()) {
    std::memcpy(view.paths.data(), page.data() + kSteerPathsAt,
                view.paths.size() * sizeof(SteerPath));
  }
  view.fences.resize(header.fence_count);
  if (!view.fences.empty()) {
    std::memcpy(view.fences.data(), fences.data(), fences.size());
  }
  const auto sane = [](const auto& entry) {
    return terminated(entry.netdev) && entry.weight <= kWeightFull &&
           entry.state <= static_cast<std::uint8_t>(LinkState::admin) &&
           (entry.rdma_given == 0 ||
            (entry.rdma_weight <= kWeightFull &&
             entry.rdma_state <= static_cast<std::uint8_t>(LinkState::admin)));
  };
  if (!std::all_of(view.rails.begin(), view.rails.end(), sane) ||
      !std::all_of(view.paths.begin(), view.paths.end(), sane)) {
    return SteerVerdict::refused;
  }
  out = std::move(view);
  return SteerVerdict::good;
}

bool SteerReader::lose() {
  const bool had = view_.has_value();
  view_.reset();
  fd_.reset();
  last_ = {};
  return had;
}

bool SteerReader::open_page(std::int64_t now_ns) {
  if (now_ns < next_open_) {
    return false;
  }
  next_open_ = now_ns + kReopenNs;
  Fd fd = Fd::opened(
      [&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW); });
  struct stat facts {};
  if (!fd.open() || ::fstat(fd.get(), &facts) != 0) {
    return false;
  }
  if (!S_ISREG(facts.st_mode) || facts.st_size != static_cast<off_t>(kSteerPageSize) ||
      !trusted(path_, facts)) {
    if (facts.st_ino != last_refused_inode_) {
      last_refused_inode_ = facts.st_ino;
      ++rejected_;
    }
    return false;
  }
  fd_ = std::move(fd);
  next_check_ = now_ns + kCheckNs;
  if (opened_) {
    opened_(path_);
  }
  return true;
}

bool SteerReader::poll(std::int64_t now_ns) {
  if (!fd_.open() && !open_page(now_ns)) {
    return false;
  }
  if (now_ns >= next_check_) {
    next_check_ = now_ns + kCheckNs;
    struct stat facts {};
    if (::fstat(fd_.get(), &facts) != 0 || facts.st_nlink == 0) {
      // Replaced or removed. The new page is read now; only without one is the old one absent.
      next_open_ = 0;
      fd_.reset();
      last_ = {};
      if (!open_page(now_ns)) {
        return lose();
      }
    }
  }
  SteerHeader header{};
  if (::pread(fd_.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    ++rejected_;
    return lose();
  }
  bool changed = false;
  if (std::memcmp(&header, &last_, sizeof header) != 0) {
    std::vector<std::byte> page(kSteerPageSize);
    SteerView view;
    SteerVerdict verdict = SteerVerdict::torn;
    for (int i = 0; i < kTornRetries && verdict == SteerVerdict::torn; ++i) {
      if (::pread(fd_.get(), page.data(), page.size(), 0) != static_cast<ssize_t>(page.size())) {
        verdict = SteerVerdict::refused;
        break;
      }
      verdict = parse_steer_page(page, now_ns, view);
      SteerHeader again{};
      if (verdict != SteerVerdict::torn &&
          ::pread(fd_.get(), &again, sizeof again, 0) == static_cast<ssize_t>(sizeof again) &&
          std::memcmp(&again, page.data(), sizeof again) != 0) {
        verdict = SteerVerdict::torn;  // it changed under the reader: whatever it said is moot
      }
    }
    if (verdict == SteerVerdict::good) {
      std::memcpy(&last_, page.data(), sizeof last_);
      if (!stale(view, now_ns)) {
        changed = !view_ || view_->generation != view.generation ||
                  view_->incarnation != view.incarnation;
        view_ = std::move(view);
      }
    } else if (verdict == SteerVerdict::refused) {
      if (std::memcmp(&header, &last_, sizeof header) != 0) {
        ++rejected_;
      }
      last_ = header;
      changed = view_.has_value();
      view_.reset();
    }
    // Torn after all retries: keep what is known, look again at the next poll; staleness ends it.
  }
  if (view_ && stale(*view_, now_ns)) {
    view_.reset();
    changed = true;
  }
  return changed;
}

}  // namespace fabric::host
