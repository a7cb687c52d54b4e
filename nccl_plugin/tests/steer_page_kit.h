// What the tests of pages share: a steer page written without the reader's own code, a directory
// for it, and how a daemon puts it there.
#pragma once

#include <stdlib.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "pages/steer_page.h"

namespace fabric::pages {

// Written here anew, bit by bit, so that the reader's own table is not its judge.
inline std::uint32_t slow_crc(const std::vector<std::byte>& data) {
  std::uint32_t crc = 0xffffffffU;
  for (const std::byte byte : data) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int i = 0; i < 8; ++i) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xedb88320U : 0U);
    }
  }
  return ~crc;
}

// A steer page as a daemon would write it; tests bend its parts first.
struct SteerPageKit {
  SteerHeader header{};
  std::vector<SteerRail> rails;
  std::vector<SteerPath> paths;
  std::vector<SteerFence> fences;

  explicit SteerPageKit(std::int64_t heartbeat_ns) {
    header.magic = kSteerMagic;
    header.version = kSteerVersion;
    header.header_size = sizeof header;
    header.page_size = kSteerPageSize;
    header.heartbeat_ns = static_cast<std::uint64_t>(heartbeat_ns);
    header.generation = 1;
    header.mode = 1;
  }
  std::vector<std::byte> bytes() {
    header.rail_count = static_cast<std::uint32_t>(rails.size());
    header.path_count = static_cast<std::uint32_t>(paths.size());
    header.fence_count = static_cast<std::uint32_t>(fences.size());
    std::vector<std::byte> out(kSteerPageSize);
    const auto write = [&out](std::size_t at, const void* from, std::size_t size) {
      if (size != 0) {
        std::memcpy(out.data() + at, from, size);
      }
    };
    write(0, &header, sizeof header);
    write(kSteerRailsAt, rails.data(), rails.size() * sizeof(SteerRail));
    write(kSteerPathsAt, paths.data(), paths.size() * sizeof(SteerPath));
    write(kSteerPageSize - fences.size() * sizeof(SteerFence), fences.data(),
          fences.size() * sizeof(SteerFence));
    const auto at = [&out](std::size_t offset) {
      return out.begin() + static_cast<std::ptrdiff_t>(offset);
    };
    header.fence_crc =
        slow_crc({at(kSteerPageSize - fences.size() * sizeof(SteerFence)), at(kSteerPageSize)});
    write(0, &header, sizeof header);
    std::vector<std::byte> covered(at(kSteerCrcFrom),
                                   at(kSteerRailsAt + rails.size() * sizeof(SteerRail)));
    covered.insert(covered.end(), at(kSteerPathsAt),
                   at(kSteerPathsAt + paths.size() * sizeof(SteerPath)));
    header.crc = slow_crc(covered);
    write(0, &header, sizeof header);
    return out;
  }
};

class Directory {
 public:
  Directory() {
    std::array<char, 64> name{"/tmp/fabric-pages-XXXXXX"};
    path = ::mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string path;
};

inline void store(const std::string& path, const std::vector<std::byte>& bytes) {
  const std::string hidden = path + ".new";
  std::ofstream(hidden, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  std::filesystem::rename(hidden, path);
}

}  // namespace fabric::pages
