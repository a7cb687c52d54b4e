#include "shell/probe_socket.h"

#include <linux/errqueue.h>
#include <linux/ethtool.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "shell/address.h"
#include "shell/log.h"
#include "shell/throw_errno.h"

namespace fabric::prober {
namespace {

constexpr std::size_t kBatch = 64;
constexpr int kSendBuffer = 8 << 20;
constexpr int kReceiveBuffer = 1 << 20;  // a second and more of packets while we are not running

void set_int(int fd, int level, int option, int value, const std::string& what) {
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0) throw_errno(what);
}

// What is never read would take the room that transmit stamps need (sock_queue_err_skb).
void receive_nothing(int fd) {
  sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &none};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) {
    throw_errno("SO_ATTACH_FILTER");
  }
}

// Hardware stamps for every packet, only when asked: they are a setting of the whole NIC. One that
// is set so already (another program's doing) is left as it is. Returns the number of the NIC's
// clock; -1: software stamps.
int enable_hardware(int fd, const LinkConfig& link) {
  if (!link.hw_stamps) return -1;
  ethtool_ts_info info{};
  info.cmd = ETHTOOL_GET_TS_INFO;
  ifreq request{};
  link.netdev.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0) return -1;
  const unsigned need =
      SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
  if ((info.so_timestamping & need) != need || info.phc_index < 0 ||
      (info.rx_filters & (1U << HWTSTAMP_FILTER_ALL)) == 0) {
    return -1;
  }
  hwtstamp_config config{};
  request.ifr_data = reinterpret_cast<char*>(&config);
  if (::ioctl(fd, SIOCGHWTSTAMP, &request) == 0 && config.tx_type == HWTSTAMP_TX_ON &&
      config.rx_filter == HWTSTAMP_FILTER_ALL) {
    return info.phc_index;
  }
  config = {};
  config.tx_type = HWTSTAMP_TX_ON;
  config.rx_filter = HWTSTAMP_FILTER_ALL;
  const bool set = ::ioctl(fd, SIOCSHWTSTAMP, &request) == 0;
  return set && config.rx_filter == HWTSTAMP_FILTER_ALL ? info.phc_index : -1;
}

// Without OPT_TSONLY a transmit stamp comes with the packet, and the packet says which one it is.
// Counting with OPT_ID would go wrong for ever after one failed send (kernels before 6.8).
int stamping(bool hardware) {
  constexpr int kKernel = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE |
                          SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_OPT_CMSG;
  constexpr int kNic =
      SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_TX_HARDWARE;
  return hardware ? kKernel | kNic : kKernel;
}

struct Stamps {
  std::int64_t software = 0;
  std::int64_t hardware = 0;
  bool transmit = false;  // came from the error queue as a transmit stamp
};

std::int64_t nanoseconds(const timespec& ts) {
  return std::int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

Stamps stamps_of(msghdr& message) {
  Stamps out;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING &&
        c->cmsg_len >= CMSG_LEN(sizeof(scm_timestamping))) {
      scm_timestamping ts{};
      std::memcpy(&ts, CMSG_DATA(c), sizeof ts);
      out.software = nanoseconds(ts.ts[0]);
      out.hardware = nanoseconds(ts.ts[2]);
    } else if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
               (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
      sock_extended_err error{};
      std::memcpy(&error, CMSG_DATA(c), sizeof error);
      out.transmit =
          error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING && error.ee_info == SCM_TSTAMP_SND;
    }
  }
  return out;
}

}  // namespace

struct ProbeSocket::Buffers {
  // Longer than the wire, so that a longer datagram is seen as such; room for link and IP headers
  // in front of our own packets coming back.
  static constexpr std::size_t kSize = 512;
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> vectors{};
  std::array<sockaddr_storage, kBatch> names{};
  std::array<std::array<std::uint8_t, kSize>, kBatch> data{};
  struct alignas(cmsghdr) Control {
    std::array<char, 256> bytes;
  };
  std::array<Control, kBatch> control{};
  std::array<Datagram, kBatch> datagrams{};
  std::size_t used = kBatch;

  // Anew what the last call filled in: most calls find nothing, and have changed nothing.
  void prepare() {
    for (std::size_t i = 0; i < used; ++i) {
      vectors[i] = {data[i].data(), data[i].size()};
      msghdr& m = messages[i].msg_hdr;
      m = {};
      m.msg_name = &names[i];
      m.msg_namelen = sizeof names[i];
      m.msg_iov = &vectors[i];
      m.msg_iovlen = 1;
      m.msg_control = control[i].bytes.data();
      m.msg_controllen = control[i].bytes.size();
    }
    used = 1;  // an error may have been written into the first
  }
};

std::shared_ptr<ProbeSocket::Buffers> ProbeSocket::make_buffers() {
  return std::make_shared<Buffers>();
}

ProbeSocket::ProbeSocket(const LinkConfig& link, std::uint8_t dscp,
                         std::shared_ptr<Buffers> buffers, Use use)
    : buffers_(std::move(buffers)) {
  ifindex_ = ::if_nametoindex(link.netdev.c_str());
  if (ifindex_ == 0) throw_errno("device");
  const bool v4 = link.address.is_v4();
  fd_ = Fd(::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd_) throw_errno("socket");
  const int fd = fd_.get();
  if (!v4) set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY");
  if (::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, link.netdev.c_str(),
                   static_cast<socklen_t>(link.netdev.size() + 1)) != 0) {
    throw_errno("SO_BINDTODEVICE");
  }
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBuffer, sizeof kReceiveBuffer) != 0) {
    set_int(fd, SOL_SOCKET, SO_RCVBUF, kReceiveBuffer, "SO_RCVBUF");
  }
  // What waits for the address of a neighbour that is gone (up to 208 KiB each, unres_qlen_bytes)
  // counts against this; were it all used up, nothing would be sent to the living either.
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kSendBuffer, sizeof kSendBuffer) != 0) {
    set_int(fd, SOL_SOCKET, SO_SNDBUF, kSendBuffer, "SO_SNDBUF");
  }
  if (dscp != 0) {
    if (v4) {
      set_int(fd, IPPROTO_IP, IP_TOS, dscp << 2, "IP_TOS");
    } else {
      set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, dscp << 2, "IPV6_TCLASS");
    }
  }
  // Never fragmented: the kernel need not find an identification for each packet, and a large one
  // arrives whole or not at all.
  if (v4) {
    set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER");
  } else {
    set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER");
  }
  if (use == Use::kSends) receive_nothing(fd);
  phc_ = enable_hardware(fd, link);
  hardware_ = phc_ >= 0;
  set_int(fd, SOL_SOCKET, SO_TIMESTAMPING, stamping(hardware_), "SO_TIMESTAMPING");
  sockaddr_storage local{};
  const socklen_t length = to_sockaddr(link.address, ifindex_, local);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&local), length) != 0) throw_errno("bind");
}

ProbeSocket::~ProbeSocket() = default;

void ProbeSocket::drain(Nanos floor, std::size_t most, const OnBatch& on_batch) {
  std::size_t read = 0;
  while (read < most) {
    buffers_->prepare();
    // MSG_TRUNC: of a longer datagram, its real length.
    const int n =
        ::recvmmsg(fd_.get(), buffers_->messages.data(), kBatch, MSG_DONTWAIT | MSG_TRUNC, nullptr);
    if (n <= 0) return;
    const auto count = static_cast<std::size_t>(n);
    buffers_->used = count;
    const Now now;
    for (std::size_t i = 0; i < count; ++i) {
      mmsghdr& m = buffers_->messages[i];
      const Stamps stamps = stamps_of(m.msg_hdr);
      Arrival arrival;
      arrival.hardware = hardware_ && stamps.hardware != 0;
      received_stamps_.add(arrival.hardware);
      arrival.stamp = arrival.hardware ? stamps.hardware : stamps.software;
      arrival.mono = now.mono;
      if (stamps.software != 0) {
        arrival.mono = std::clamp(stamps.software - now.wall_minus_mono(),
                                  std::min(floor, now.mono), now.mono);
      }
      const auto length = std::min<std::size_t>(m.msg_len, Buffers::kSize);
      buffers_->datagrams[i] = {from_sockaddr(buffers_->names[i]),
                                {buffers_->data[i].data(), length},
                                m.msg_len,
                                arrival};
    }
    on_batch(now.mono, {buffers_->datagrams.data(), count});
    read += count;
    if (count < kBatch) return;
  }
}

std::size_t ProbeSocket::drain_stamps(const OnStamp& on_stamp) {
  std::size_t stamped = 0;
  for (;;) {
    buffers_->prepare();
    const int n = ::recvmmsg(fd_.get(), buffers_->messages.data(), kBatch,
                             MSG_ERRQUEUE | MSG_DONTWAIT, nullptr);
    if (n <= 0) return stamped;
    buffers_->used = static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      mmsghdr& m = buffers_->messages[i];
      const Stamps stamps = stamps_of(m.msg_hdr);
      if (!stamps.transmit) continue;
      ++stamped;
      const bool hardware = hardware_ && stamps.hardware != 0;
      sent_stamps_.add(hardware);
      on_stamp(
          std::span(buffers_->data[i].data(), std::min<std::size_t>(m.msg_len, Buffers::kSize)),
          hardware ? stamps.hardware : stamps.software, hardware);
    }
    if (static_cast<std::size_t>(n) < kBatch) return stamped;
  }
}

bool ProbeSocket::gives_up_hardware() {
  if (!hardware_ || !(sent_stamps_.low() || received_stamps_.low())) return false;
  hardware_ = false;
  set_int(fd_.get(), SOL_SOCKET, SO_TIMESTAMPING, stamping(false), "SO_TIMESTAMPING");
  return true;
}

std::size_t ProbeSocket::send(std::span<const Outgoing> packets, const OnRefused& no_way) {
  std::size_t refused = 0;
  while (!packets.empty()) {
    const std::size_t count = std::min(packets.size(), kBatch);
    buffers_->used = std::max(buffers_->used, count);
    for (std::size_t i = 0; i < count; ++i) {
      // sendmmsg does not write through it; the type is shared with receiving.
      auto* bytes = const_cast<std::uint8_t*>(packets[i].bytes.data());
      buffers_->vectors[i] = {bytes, packets[i].bytes.size()};
      msghdr& m = buffers_->messages[i].msg_hdr;
      m = {};
      m.msg_name = &buffers_->names[i];
      m.msg_namelen = to_sockaddr(packets[i].destination, ifindex_, buffers_->names[i]);
      m.msg_iov = &buffers_->vectors[i];
      m.msg_iovlen = 1;
    }
    const int n = ::sendmmsg(fd_.get(), buffers_->messages.data(), static_cast<unsigned>(count),
                             MSG_DONTWAIT);
    if (n > 0) {
      packets = packets.subspan(static_cast<std::size_t>(n));
    } else {
      ++refused;  // the first one; the others may have other destinations
      if (errno == ENETDOWN || errno == ENETUNREACH || errno == ENODEV || errno == ENXIO) {
        no_way(packets.front());
      }
      packets = packets.subspan(1);
    }
  }
  return refused;
}

bool ProbeSocket::send_padded(const Address& destination, std::span<const std::uint8_t> head,
                              std::size_t size) {
  static const std::array<std::uint8_t, mtu::kMost> kZeros{};
  sockaddr_storage name{};
  // sendmsg does not write through them; the type is shared with receiving.
  std::array<iovec, 2> parts = {{{const_cast<std::uint8_t*>(head.data()), head.size()},
                                 {const_cast<std::uint8_t*>(kZeros.data()), size - head.size()}}};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = to_sockaddr(destination, ifindex_, name);
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::sendmsg(fd_.get(), &message, MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

}  // namespace fabric::prober
