#include "shell/address.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace fabric::prober {
namespace {

void map_v4(const in_addr& v4, Address& out) {
  out.ip = {};
  out.ip[10] = 0xff;
  out.ip[11] = 0xff;
  std::memcpy(out.ip.data() + 12, &v4, 4);
}

}  // namespace

std::optional<Address> parse_address(const std::string& text, std::uint16_t port,
                                     const std::string& netdev) {
  Address out;
  out.port = port;
  in_addr v4{};
  in6_addr v6{};
  if (text.find('\0') != std::string::npos) return std::nullopt;
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    map_v4(v4, out);
    return out;
  }
  const std::size_t percent = text.find('%');
  const std::string alone = text.substr(0, percent);
  if (::inet_pton(AF_INET6, alone.c_str(), &v6) != 1 || IN6_IS_ADDR_V4MAPPED(&v6) != 0) {
    return std::nullopt;
  }
  const bool zoned = percent != std::string::npos;
  if (zoned && (IN6_IS_ADDR_LINKLOCAL(&v6) == 0 || netdev.empty() ||
                text.compare(percent + 1, std::string::npos, netdev) != 0)) {
    return std::nullopt;
  }
  std::memcpy(out.ip.data(), &v6, 16);
  return out;
}

bool is_one_host(const Address& address) {
  if (address.is_v4()) return address.ip[12] != 0 && address.ip[12] < 224;
  const bool any = std::any_of(address.ip.begin(), address.ip.end(), [](auto b) { return b != 0; });
  return any && address.ip[0] != 0xff;
}

bool is_loopback(const Address& address) {
  Address v6;
  v6.ip[15] = 1;
  return address.is_v4() ? address.ip[12] == 127 : address.ip == v6.ip;
}

bool is_netdev_name(const std::string& name) {
  // What net/core/dev.c calls a space (in Latin-1), and what stands between a device and a label.
  constexpr std::string_view kRefused("/:\0 \t\n\v\f\r\xa0", 10);
  return !name.empty() && name.size() < IFNAMSIZ && name != "." && name != ".." &&
         name.find_first_of(kRefused) == std::string::npos;
}

std::string format_address(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool v4 = address.is_v4();
  ::inet_ntop(v4 ? AF_INET : AF_INET6, address.ip.data() + (v4 ? 12 : 0), text.data(), text.size());
  return text.data();
}

socklen_t to_sockaddr(const Address& address, unsigned scope, sockaddr_storage& out) {
  out = {};
  if (address.is_v4()) {
    sockaddr_in sa{};
    sa.sin_family = AF_INET;
    sa.sin_port = htons(address.port);
    std::memcpy(&sa.sin_addr, address.ip.data() + 12, 4);
    std::memcpy(&out, &sa, sizeof sa);
    return sizeof sa;
  }
  sockaddr_in6 sa{};
  sa.sin6_family = AF_INET6;
  sa.sin6_port = htons(address.port);
  std::memcpy(&sa.sin6_addr, address.ip.data(), 16);
  if (IN6_IS_ADDR_LINKLOCAL(&sa.sin6_addr) != 0) sa.sin6_scope_id = scope;
  std::memcpy(&out, &sa, sizeof sa);
  return sizeof sa;
}

Address from_sockaddr(const sockaddr_storage& in) {
  Address out;
  if (in.ss_family == AF_INET) {
    sockaddr_in sa{};
    std::memcpy(&sa, &in, sizeof sa);
    map_v4(sa.sin_addr, out);
    out.port = ntohs(sa.sin_port);
  } else if (in.ss_family == AF_INET6) {
    sockaddr_in6 sa{};
    std::memcpy(&sa, &in, sizeof sa);
    std::memcpy(out.ip.data(), &sa.sin6_addr, 16);
    out.port = ntohs(sa.sin6_port);
  }
  return out;
}

}  // namespace fabric::prober
