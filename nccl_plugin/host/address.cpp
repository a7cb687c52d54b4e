#include "host/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace fabric::host {

bool Address::present() const {
  return std::any_of(ip.begin(), ip.end(), [](std::uint8_t byte) { return byte != 0; });
}

bool Address::v4() const {
  return std::all_of(ip.begin(), ip.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) &&
         ip[10] == 0xff && ip[11] == 0xff;
}

bool Address::loopback() const {
  Address v6;
  v6.ip[15] = 1;
  return v4() ? ip[12] == 127 : ip == v6.ip;
}

bool Address::reachable() const {
  // 0.0.0.0/8 names nobody; 224.0.0.0 and above many, or none.
  const bool one = v4() ? ip[12] != 0 && ip[12] < 224 : ip[0] != 0xff;
  return present() && port != 0 && one;
}

bool Address::link_local() const {
  return v4() ? ip[12] == 169 && ip[13] == 254 : ip[0] == 0xfe && (ip[1] & 0xc0U) == 0x80;
}

std::string Address::host_text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  ::inet_ntop(v4() ? AF_INET : AF_INET6, ip.data() + (v4() ? 12 : 0), buffer.data(), buffer.size());
  return buffer.data();
}

std::string Address::text() const {
  const std::string host = host_text();
  return (v4() ? host : "[" + host + "]") + ":" + std::to_string(port);
}

socklen_t Address::to(sockaddr_storage& out, int scope) const {
  out = {};
  if (v4()) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, ip.data() + 12, 4);
    std::memcpy(&out, &v4, sizeof v4);
    return sizeof v4;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  std::memcpy(&v6.sin6_addr, ip.data(), 16);
  v6.sin6_scope_id = link_local() ? static_cast<std::uint32_t>(scope) : 0;
  std::memcpy(&out, &v6, sizeof v6);
  return sizeof v6;
}

Address Address::from(const sockaddr* address) {
  Address out;
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof v4);
    out.ip[10] = 0xff;
    out.ip[11] = 0xff;
    std::memcpy(out.ip.data() + 12, &v4.sin_addr, 4);
    out.port = ntohs(v4.sin_port);
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address, sizeof v6);
    std::memcpy(out.ip.data(), &v6.sin6_addr, 16);
    out.port = ntohs(v6.sin6_port);
  }
  return out;
}

}  // namespace fabric::host
