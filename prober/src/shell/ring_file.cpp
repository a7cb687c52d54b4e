#include "shell/ring_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "shell/new_file.h"
#include "shell/throw_errno.h"

namespace fabric::prober {
namespace {

template <typename T>
void publish(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

// Writes `record` into its slot: index 0, then the rest, then the index.
template <typename Record>
void commit(std::byte* slots, std::size_t count, std::uint64_t number, Record record) {
  auto* slot = reinterpret_cast<Record*>(slots + (number % count) * sizeof(Record));
  record.index = 0;
  std::atomic_ref<std::uint64_t>(slot->index).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(slot, &record, sizeof record);
  publish(slot->index, number + 1);
}

template <typename Row>
void write_row(std::byte* rows, std::size_t index, Row row) {
  auto* slot = reinterpret_cast<Row*>(rows + index * sizeof(Row));
  const std::uint64_t seq = slot->seq;
  std::atomic_ref<std::uint64_t>(slot->seq).store(seq + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  row.seq = seq + 1;
  std::memcpy(slot, &row, sizeof row);
  publish(slot->seq, seq + 2);
}

}  // namespace

RingFile::RingFile(const std::string& path, std::uint64_t incarnation, std::uint64_t start_ns) {
  const auto slash = path.find_last_of('/');
  const std::string hidden =
      path.substr(0, slash + 1) + "." + path.substr(slash + 1) + "." + std::to_string(::getpid());
  const Fd fd = create_file(hidden, 0644);
  if (!fd) throw_errno(hidden);
  // Allocated now: a full disk must not become a SIGBUS later.
  if (const int rc = ::posix_fallocate(fd.get(), 0, ring::kRingFileSize); rc != 0) {
    ::unlink(hidden.c_str());
    errno = rc;
    throw_errno(hidden);
  }
  map_ = ::mmap(nullptr, ring::kRingFileSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                fd.get(), 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    ::unlink(hidden.c_str());
    throw_errno(hidden);
  }
  ring::RingHeader& h = *header();
  h.magic = ring::kRingMagic;
  h.version = ring::kRingVersion;
  h.header_size = ring::kHeaderSize;
  h.file_size = ring::kRingFileSize;
  h.link_row_size = sizeof(ring::LinkRow);
  h.path_row_size = sizeof(ring::PathRow);
  h.max_links = ring::kMaxLinks;
  h.max_paths = ring::kMaxPaths;
  h.event_slots = ring::kEventSlots;
  h.sample_slots = ring::kSampleSlots;
  h.path_offset = ring::kPathOffset;
  h.event_offset = ring::kEventOffset;
  h.sample_offset = ring::kSampleOffset;
  h.pid = static_cast<std::uint32_t>(::getpid());
  h.flags = ring::kHeaderRunning;
  h.incarnation = incarnation;
  h.start_ns = start_ns;
  h.heartbeat_ns = start_ns;
  if (::rename(hidden.c_str(), path.c_str()) != 0) {
    ::munmap(map_, ring::kRingFileSize);
    map_ = nullptr;
    throw_errno(path);
  }
}

RingFile::~RingFile() {
  if (map_ == nullptr) return;
  const std::uint32_t flags = header()->flags & ~ring::kHeaderRunning;
  publish(header()->flags, flags);
  ::munmap(map_, ring::kRingFileSize);
}

std::uint64_t RingFile::previous_incarnation(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  ring::RingHeader h{};
  if (!fd || ::pread(fd.get(), &h, sizeof h, 0) != static_cast<ssize_t>(sizeof h)) return 0;
  return h.magic == ring::kRingMagic ? h.incarnation : 0;
}

void RingFile::event(const ring::EventRecord& record) {
  ring::EventRecord copy = record;
  copy.config = config_epoch_;
  commit(static_cast<std::byte*>(map_) + ring::kEventOffset, ring::kEventSlots, events_, copy);
  publish(header()->event_head, ++events_);
}

void RingFile::sample(const ring::SampleRecord& record) {
  ring::SampleRecord copy = record;
  copy.config = config_epoch_;
  commit(static_cast<std::byte*>(map_) + ring::kSampleOffset, ring::kSampleSlots, samples_, copy);
  publish(header()->sample_head, ++samples_);
}

void RingFile::begin_config() {
  publish(header()->link_count, std::uint32_t{0});
  publish(header()->path_count, std::uint32_t{0});
  publish(header()->rdma_link_count, std::uint32_t{0});
  publish(header()->rdma_path_count, std::uint32_t{0});
  publish(header()->config_epoch, ++config_epoch_);
}

void RingFile::publish_config(const Counts& counts, std::uint64_t link_interval_ns,
                              std::uint32_t misses, std::uint32_t clock_train_hz) {
  ring::RingHeader& h = *header();
  publish(h.link_interval_ns, link_interval_ns);
  publish(h.misses, misses);
  publish(h.clock_train_hz, clock_train_hz);
  publish(h.rdma_link_count, counts.rdma_links);
  publish(h.rdma_path_count, counts.rdma_paths);
  publish(h.link_count, counts.links);
  publish(h.path_count, counts.paths);
}

void RingFile::write_link(std::size_t index, const ring::LinkRow& row) {
  write_row(static_cast<std::byte*>(map_) + ring::kLinkOffset, index, row);
}

void RingFile::write_path(std::size_t index, const ring::PathRow& row) {
  write_row(static_cast<std::byte*>(map_) + ring::kPathOffset, index, row);
}

void RingFile::set_flags(std::uint32_t flags) {
  publish(header()->flags, flags | ring::kHeaderRunning);
}

void RingFile::publish_totals(const Totals& totals, const std::uint64_t* refused,
                              std::size_t count) {
  ring::RingHeader& h = *header();
  publish(h.sent, totals.sent);
  publish(h.received, totals.received);
  publish(h.stalls, totals.stalls);
  publish(h.stall_ns, totals.stall_ns);
  publish(h.stall_max_ns, totals.stall_max_ns);
  publish(h.control_errors, totals.control_errors);
  publish(h.due_times_refused, totals.due_times_refused);
  publish(h.clock_read_ns, totals.clock_read_ns);
  for (std::size_t i = 0; i < count; ++i) publish(h.refused[i], refused[i]);
  publish(h.heartbeat_ns, totals.heartbeat_ns);
}

}  // namespace fabric::prober
