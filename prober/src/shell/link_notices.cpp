#include "shell/link_notices.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "shell/log.h"

namespace fabric::prober {

LinkNotices::LinkNotices(int epoll)
    : socket_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = socket_.get();
  const auto* sa = reinterpret_cast<const sockaddr*>(&address);
  if (!socket_ || ::bind(socket_.get(), sa, sizeof address) != 0 ||
      ::epoll_ctl(epoll, EPOLL_CTL_ADD, socket_.get(), &event) != 0) {
    log_warning(std::string("no link events (") + std::strerror(errno) +
                "): carrier counters are read all the more often");
    socket_.reset();
  }
}

bool LinkNotices::drain(Nanos now) {
  std::array<char, 256> head;  // what it says is not looked into
  bool told = false;
  for (;;) {
    const ssize_t n = ::recv(socket_.get(), head.data(), head.size(), MSG_DONTWAIT);
    if (n < 0 && errno != ENOBUFS) break;  // ENOBUFS: some were lost
    told = true;
  }
  if (told) told_ = now;
  return told;
}

}  // namespace fabric::prober
