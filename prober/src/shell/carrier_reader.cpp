#include "shell/carrier_reader.h"

#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <span>

#include "shell/log.h"

namespace fabric::prober {
namespace {

// The kernel's sum of both counters is read each time; these and the flags when it moved, and every
// so many readings: an administrator's word does not count.
constexpr unsigned kFlagsEvery = 50;
constexpr int kWholeTries = 4;

bool read_number(int fd, std::uint64_t& out) {
  std::array<char, 32> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  if (n <= 0) return false;
  return std::from_chars(text.data(), text.data() + n, out).ec == std::errc{};
}

std::string read_text(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t n = fd ? ::pread(fd.get(), text.data(), text.size(), 0) : 0;
  if (n <= 0) return {};
  std::string out(text.data(), static_cast<std::size_t>(n));
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// Whether the device is administratively up; nothing when there is none. Takes no lock of the
// kernel's (SIOCGIFFLAGS, net/core/dev_ioctl.c).
std::optional<bool> admin_up(int query, const std::string& netdev) {
  ifreq request{};
  netdev.copy(request.ifr_name, IFNAMSIZ - 1);
  if (::ioctl(query, SIOCGIFFLAGS, &request) != 0) return std::nullopt;
  return (request.ifr_flags & IFF_UP) != 0;
}

// The number of the device of this name now; 0: there is none. With a socket that is there: what
// if_nametoindex does but for opening and closing one.
unsigned index_of(int query, const std::string& netdev) {
  ifreq request{};
  netdev.copy(request.ifr_name, IFNAMSIZ - 1);
  return ::ioctl(query, SIOCGIFINDEX, &request) == 0 ? static_cast<unsigned>(request.ifr_ifindex)
                                                     : 0;
}

// The device's hardware address as sysfs prints it.
std::string hardware_address(const std::string& netdev) {
  const Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  netdev.copy(request.ifr_name, IFNAMSIZ - 1);
  if (!fd || ::ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) return {};
  std::array<char, 20> text{};
  const auto* b = reinterpret_cast<const unsigned char*>(request.ifr_hwaddr.sa_data);
  (void)std::snprintf(text.data(), text.size(), "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2],
                      b[3], b[4], b[5]);
  return text.data();
}

}  // namespace

void CarrierReader::close() {
  changes_.reset();
  down_.reset();
  up_.reset();
  carrier_.reset();
  query_.reset();
  lit_.reset();
  source_ = Source::kNone;
  ifindex_ = 0;
}

bool CarrierReader::open_sysfs(unsigned ifindex) {
  const std::string base = "/sys/class/net/" + netdev_ + "/";
  // The same name and number may exist in another namespace, whose sysfs this could be.
  if (read_text(base + "ifindex") != std::to_string(ifindex)) return false;
  const std::string own = hardware_address(netdev_);
  const std::string shown = read_text(base + "address");
  if (own.size() == shown.size() && own != shown) return false;
  changes_ = Fd(::open((base + "carrier_changes").c_str(), O_RDONLY | O_CLOEXEC));
  down_ = Fd(::open((base + "carrier_down_count").c_str(), O_RDONLY | O_CLOEXEC));
  up_ = Fd(::open((base + "carrier_up_count").c_str(), O_RDONLY | O_CLOEXEC));
  carrier_ = Fd(::open((base + "carrier").c_str(), O_RDONLY | O_CLOEXEC));
  query_ = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  lit_.reset();
  return changes_ && down_ && up_ && carrier_ && query_;
}

void CarrierReader::follow(std::uint64_t down, std::uint64_t up) {
  if (lit_) {
    // They take turns: each loss was of a carrier, each return of none.
    const auto now = (*lit_ ? 1 : 0) + static_cast<std::int64_t>(up - lit_up_) -
                     static_cast<std::int64_t>(down - lit_down_);
    lit_ = now == 0 || now == 1 ? std::optional(now == 1) : std::nullopt;
  }
  lit_down_ = down;
  lit_up_ = up;
}

bool CarrierReader::read_sysfs(CarrierReading& out) {
  // Before what it sums: what changes in between is seen the next time.
  std::uint64_t changes = 0;
  if (!read_number(changes_.get(), changes)) return false;
  const bool same = last_.present && last_.ifindex == ifindex_ && changes == changed_;
  if (same && calls_ % kFlagsEvery != 0) {
    out = last_;
    return true;
  }
  for (int i = 0; i < kWholeTries; ++i) {
    if (!read_number(down_.get(), out.down_count) || !read_number(up_.get(), out.up_count)) {
      return false;
    }
    if (out.down_count + out.up_count == changes) break;
    if (!read_number(changes_.get(), changes)) return false;
  }
  // Those of a link that flaps faster than it is read are not of one moment, and read again.
  changed_ = out.down_count + out.up_count;
  const auto up = admin_up(query_.get(), netdev_);
  if (!up) return false;
  follow(out.down_count, out.up_count);
  if (!lit_ && *up) {
    std::uint64_t carrier = 0;
    if (read_number(carrier_.get(), carrier)) lit_ = carrier == 1;  // EINVAL: it is down just now
  }
  out.present = true;
  out.ifindex = ifindex_;
  out.carrier = *up && lit_.value_or(false);
  return true;
}

bool CarrierReader::read_netlink(CarrierReading& out) {
  if (!netlink_) {
    netlink_ = Fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    const timeval limit{0, 100'000};
    if (!netlink_ ||
        ::setsockopt(netlink_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) {
      return false;
    }
  }
  struct {
    nlmsghdr head;
    ifinfomsg info;
    rtattr name;
    char text[IFNAMSIZ];
  } request{};
  request.head.nlmsg_len = static_cast<std::uint32_t>(NLMSG_LENGTH(sizeof request.info) +
                                                      RTA_LENGTH(netdev_.size() + 1));
  request.head.nlmsg_type = RTM_GETLINK;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.head.nlmsg_seq = ++netlink_seq_;
  request.info.ifi_family = AF_UNSPEC;
  request.name.rta_type = IFLA_IFNAME;
  request.name.rta_len = static_cast<unsigned short>(RTA_LENGTH(netdev_.size() + 1));
  netdev_.copy(request.text, IFNAMSIZ - 1);
  if (::send(netlink_.get(), &request, request.head.nlmsg_len, 0) < 0) return false;
  std::array<char, 16384> reply;
  std::size_t length = 0;
  for (;;) {
    const ssize_t n = ::recv(netlink_.get(), reply.data(), reply.size(), 0);
    if (n < static_cast<ssize_t>(NLMSG_HDRLEN)) {
      netlink_.reset();
      return false;
    }
    nlmsghdr head{};
    std::memcpy(&head, reply.data(), sizeof head);
    if (head.nlmsg_seq != netlink_seq_) continue;  // an answer that came too late for its question
    length = head.nlmsg_len;
    if (head.nlmsg_type != RTM_NEWLINK || head.nlmsg_len > static_cast<std::size_t>(n))
      return false;
    break;
  }
  const std::span<const char> message(reply.data(), length);
  std::size_t at = NLMSG_HDRLEN;
  ifinfomsg info{};
  if (message.size() < at + NLMSG_ALIGN(sizeof info)) return false;
  std::memcpy(&info, message.data() + at, sizeof info);
  out.present = true;
  out.ifindex = static_cast<std::uint32_t>(info.ifi_index);
  at += NLMSG_ALIGN(sizeof info);
  while (at + sizeof(rtattr) <= message.size()) {
    rtattr attribute{};
    std::memcpy(&attribute, message.data() + at, sizeof attribute);
    if (attribute.rta_len < sizeof attribute || at + attribute.rta_len > message.size()) break;
    const auto value = message.subspan(at + sizeof attribute, attribute.rta_len - sizeof attribute);
    std::uint32_t word = 0;
    std::memcpy(&word, value.data(), std::min(value.size(), sizeof word));
    if (attribute.rta_type == IFLA_CARRIER_DOWN_COUNT) out.down_count = word;
    if (attribute.rta_type == IFLA_CARRIER_UP_COUNT) out.up_count = word;
    if (attribute.rta_type == IFLA_CARRIER) out.carrier = (word & 0xff) != 0;
    at += (attribute.rta_len + 3U) & ~std::size_t{3};
  }
  // Some drivers keep the carrier of a device that is administratively down; sysfs shows none.
  out.carrier = out.carrier && (info.ifi_flags & IFF_UP) != 0;
  return true;
}

CarrierReading CarrierReader::read() {
  CarrierReading out;
  ++calls_;
  // A device that was renamed or moved away keeps its sysfs files readable.
  if (source_ == Source::kSysfs && calls_ % kFlagsEvery == 0 &&
      index_of(query_.get(), netdev_) != ifindex_) {
    close();
  }
  if (source_ == Source::kSysfs) {
    if (read_sysfs(out)) return last_ = out;
    close();  // ENODEV: the device is gone, maybe another has its name already
    out = {};
  }
  if (source_ == Source::kNetlink) {
    if (read_netlink(out)) return last_ = out;
    close();
    out = {};
  }
  ifindex_ = ::if_nametoindex(netdev_.c_str());
  if (ifindex_ == 0) return last_ = out;
  if (open_sysfs(ifindex_)) {
    source_ = Source::kSysfs;
    if (read_sysfs(out)) return last_ = out;
  }
  const unsigned ifindex = ifindex_;
  close();
  out = {};
  if (read_netlink(out)) {
    source_ = Source::kNetlink;
    log_warning(netdev_ + " (ifindex " + std::to_string(ifindex) +
                "): /sys does not show this network namespace; carrier counters by rtnetlink");
    return last_ = out;
  }
  return last_ = {};
}

}  // namespace fabric::prober
