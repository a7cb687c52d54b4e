#include "shell/path_mtu.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "shell/address.h"
#include "shell/fd.h"

namespace fabric::prober {
namespace {

std::uint32_t payload(int mtu, bool v4) {
  const int headers = (v4 ? 20 : 40) + 8;
  return mtu > headers ? static_cast<std::uint32_t>(mtu - headers) : 0;
}

}  // namespace

std::uint32_t device_limit(int query, const LinkConfig& link) {
  ifreq request{};
  link.netdev.copy(request.ifr_name, IFNAMSIZ - 1);
  if (::ioctl(query, SIOCGIFMTU, &request) != 0) return 0;
  return payload(request.ifr_mtu, link.address.is_v4());
}

std::uint32_t route_limit(const LinkConfig& link, const Address& peer) {
  const bool v4 = peer.is_v4();
  const Fd fd(::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const unsigned scope = ::if_nametoindex(link.netdev.c_str());
  Address own = link.address;
  own.port = 0;
  sockaddr_storage from{};
  sockaddr_storage to{};
  const socklen_t from_size = to_sockaddr(own, scope, from);
  const socklen_t to_size = to_sockaddr(peer, scope, to);
  int mtu = 0;
  socklen_t size = sizeof mtu;
  if (!fd ||
      ::setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, link.netdev.c_str(),
                   static_cast<socklen_t>(link.netdev.size() + 1)) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), from_size) != 0 ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), to_size) != 0 ||
      ::getsockopt(fd.get(), v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU, &mtu, &size) !=
          0) {
    return 0;
  }
  return payload(mtu, v4);
}

}  // namespace fabric::prober
