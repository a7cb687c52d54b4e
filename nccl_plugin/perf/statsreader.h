// Bytes per rail of this very process: from the plugin's stats page where there is one, else (other
// plugins) from the kernel's counters of the devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fabric::perf {

struct RailBytes {
  std::uint64_t tx = 0;
  std::uint64_t rx = 0;
};
using Rails = std::map<std::string, RailBytes>;

// What was added between two readings; a counter that went back (a device that vanished) counts 0.
Rails difference(const Rails& now, const Rails& before);

// The rails of one page image, and when it was written. False when it is not a whole page of a
// version we know, or torn.
bool parse_stats_page(const std::vector<std::byte>& page, Rails* out,
                      std::uint64_t* written_ns = nullptr);

// The named devices in the text of /proc/net/dev.
Rails parse_net_dev(const std::string& text, const std::vector<std::string>& devices);

// Bytes that the sockets of these inodes have not had acknowledged, by the text of /proc/net/tcp or
// tcp6 (proc(5)).
std::uint64_t unacknowledged(const std::string& text, const std::set<std::uint64_t>& inodes);

// Waits (a moment at most) until all that this process has sent over TCP is acknowledged. A plugin
// may call sent what the kernel has taken; the devices count it when it leaves.
void wait_acknowledged();

inline constexpr const char* kFromDevices = "net_dev";

class StatsReader {
 public:
  // `since_ns`: when this process began; pages of earlier processes with its number are passed by.
  StatsReader(std::vector<std::string> devices, std::int64_t since_ns);
  ~StatsReader();
  StatsReader(const StatsReader&) = delete;
  StatsReader& operator=(const StatsReader&) = delete;

  // Totals since the process (or the machine) began.
  Rails read();
  // The same, as of now: the plugin writes its page in intervals, so wait (a moment at most) for it
  // to be written once more.
  Rails read_settled();
  // "stats_page", kFromDevices or "none": where the last reading came from.
  const char* source() const { return source_; }

 private:
  bool open_page();
  bool read_page(Rails* out);

  std::vector<std::string> devices_;
  std::int64_t since_ns_;
  std::filesystem::path directory_;
  int page_ = -1;
  bool had_page_ = false;
  std::uint64_t written_ns_ = 0;
  Rails last_;
  const char* source_ = "none";
};

}  // namespace fabric::perf
