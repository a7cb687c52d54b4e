// Which network devices there are, chosen by NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace fabric::plain {

struct Device {
  std::string name;
  sockaddr_storage address{};
  int speed_mbps = 10'000;
};

std::vector<Device> find_devices();

socklen_t length_of(const sockaddr_storage& address);

}  // namespace fabric::plain
