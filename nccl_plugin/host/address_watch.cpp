#include "host/address_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <utility>

namespace fabric::host {

AddressWatch::AddressWatch(Poller& poller)
    : fd_(Fd::opened([] {
        return ::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
      })) {
  sockaddr_nl local{};
  local.nl_family = AF_NETLINK;
  local.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (!fd_.open() ||
      ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0) {
    fd_.reset();
    return;
  }
  poller.add(fd_.get(), EPOLLIN, [this](std::uint32_t) {
    // What it says does not matter (an overrun says it as well): the addresses are read anew.
    std::array<std::byte, 8192> away{};
    while (::recv(fd_.get(), away.data(), away.size(), MSG_DONTWAIT) > 0) {
    }
    changed_ = true;
  });
}

bool AddressWatch::changed() { return std::exchange(changed_, false); }

}  // namespace fabric::host
