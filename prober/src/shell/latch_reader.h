// Reads a page that the clock service writes (clocksync/page/latch.py): one record of two holds.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "core/stalls.h"
#include "shell/fd.h"

namespace fabric::prober {

// `Page` is a struct of fabric/clock_outbox.h's kind.
template <typename Page>
class LatchReader {
 public:
  using Record = std::remove_reference_t<decltype(std::declval<Page>().record[0])>;

  LatchReader(std::string path, std::uint32_t magic, std::uint16_t version, std::size_t file_size,
              std::uint64_t salt)
      : path_(std::move(path)),
        magic_(magic),
        version_(version),
        file_size_(file_size),
        salt_(salt) {}
  ~LatchReader() { unmap(); }
  LatchReader(const LatchReader&) = delete;
  LatchReader& operator=(const LatchReader&) = delete;

  // The record that holds, if it is another than at the last call. No system call but once in a
  // second (is it still that file?), and every 100 ms while there is none.
  std::optional<Record> look(Nanos now) {
    if (now >= next_open_) {
      open();
      next_open_ = now + (map_ != nullptr ? kSame : kMissing);
    }
    if (map_ == nullptr) return std::nullopt;
    const auto* shared = static_cast<const Page*>(map_);
    const std::uint64_t seq = load(&shared->seq);
    if (read_ && seq == seq_) return std::nullopt;
    std::array<std::uint64_t, kParts> parts{};
    const auto* from = reinterpret_cast<const std::uint64_t*>(&shared->record[seq & 1]);
    std::uint64_t check = salt_;
    for (std::size_t i = 0; i < kParts; ++i) {
      parts[i] = load(from + i);
      if (i != 0) check ^= parts[i];
    }
    // Being written, or damaged: what was there before is good for another round.
    if (check != parts[0] || load(&shared->seq) != seq) return std::nullopt;
    seq_ = seq;
    read_ = true;
    return std::bit_cast<Record>(parts);
  }
  bool missing() const { return map_ == nullptr; }

 private:
  static constexpr std::size_t kParts = sizeof(Record) / 8;
  static constexpr Nanos kSame = 1'000'000'000;
  static constexpr Nanos kMissing = 100'000'000;

  // The writer is another process: each word is read once, and whole.
  static std::uint64_t load(const std::uint64_t* at) {
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(at))
        .load(std::memory_order_acquire);
  }

  void unmap() {
    if (map_ != nullptr) ::munmap(const_cast<void*>(map_), file_size_);
    map_ = nullptr;
    read_ = false;
  }

  void open() {
    const Fd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info {};
    if (!fd || ::fstat(fd.get(), &info) != 0) return unmap();
    if (map_ != nullptr && info.st_ino == inode_) return;
    unmap();
    if (!S_ISREG(info.st_mode) || info.st_size != static_cast<off_t>(file_size_)) return;
    void* map = ::mmap(nullptr, file_size_, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (map == MAP_FAILED) return;
    map_ = map;
    inode_ = info.st_ino;
    Page head{};
    std::memcpy(&head, map, offsetof(Page, seq));
    if (head.magic != magic_ || head.version != version_ || head.used != sizeof(Page)) unmap();
  }

  std::string path_;
  std::uint32_t magic_;
  std::uint16_t version_;
  std::size_t file_size_;
  std::uint64_t salt_;
  const void* map_ = nullptr;
  std::uint64_t inode_ = 0;
  std::uint64_t seq_ = 0;
  bool read_ = false;  // the record of seq_ was
  Nanos next_open_ = 0;
};

}  // namespace fabric::prober
