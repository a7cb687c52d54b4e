// Reads the daemon's steer page, which may change in any way at any moment. A page that is missing,
// stale, corrupt or truncated counts as absent, and nothing else happens. A torn read is repeated;
// until one succeeds, the last good copy counts while its heartbeat is fresh. A page that replaces
// another one is read in its place.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/address.h"
#include "host/fd.h"
#include "pages/steer_page.h"

namespace fabric::host {

struct SteerView {
  std::uint64_t generation = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t heartbeat_ns = 0;
  std::vector<pages::SteerRail> rails;
  std::vector<pages::SteerPath> paths;
  std::vector<pages::SteerFence> fences;

  [[nodiscard]] const pages::SteerRail* rail(const std::string& netdev) const;
  [[nodiscard]] const pages::SteerPath* path(const std::string& netdev,
                                             const Address& remote) const;
};

enum class SteerVerdict { good, torn, refused };

// Checks a whole page (pure). `torn`: a write was under way, read again.
SteerVerdict parse_steer_page(std::span<const std::byte> page, std::int64_t now_ns, SteerView& out);

class SteerReader {
 public:
  explicit SteerReader(std::string path) : path_(std::move(path)) {}
  // Called with the path whenever a page was opened.
  void on_open(std::function<void(const std::string& path)> call) { opened_ = std::move(call); }

  // Looks at the page; call every few milliseconds. True when view() may have changed.
  bool poll(std::int64_t now_ns);
  // Nothing: absent.
  [[nodiscard]] const SteerView* view() const { return view_ ? &*view_ : nullptr; }
  [[nodiscard]] std::uint64_t rejected() const { return rejected_; }

 private:
  bool open_page(std::int64_t now_ns);
  bool lose();

  std::string path_;
  std::function<void(const std::string& path)> opened_;
  Fd fd_;
  std::optional<SteerView> view_;
  pages::SteerHeader last_{};
  std::int64_t next_open_ = 0;
  std::int64_t next_check_ = 0;
  std::uint64_t rejected_ = 0;
  std::uint64_t last_refused_inode_ = 0;
};

}  // namespace fabric::host
