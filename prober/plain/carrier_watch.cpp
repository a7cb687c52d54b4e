// When did the kernel lose a carrier?
//
//   carrier-watch NETDEV...      until it is ended
//
// The ground truth of a pulled cable says when it was asked for; while other links flap, the kernel
// takes its time (RTNL is one lock for all). This reads carrier_down_count of devices of its own
// network namespace every 500 us, under SCHED_FIFO, and prints [ns, "netdev"] for each change. A
// loss is dated by the last reading without it: up to 500 us early, so that what is measured from
// it is that much too long at most. In C++ and no more often because in Python, at 10 kHz, two of
// these took two thirds of a core from the daemons that are measured.
//
// A part of `./run bench detect --only carrier`.
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

constexpr long kPollNs = 500'000;
constexpr int kPriority = 46;  // below the prober, above what is measured

struct Device {
  std::string name;
  int fd = -1;
  std::string count{};
  long long read_ns = 0;  // when that was read
};

long long now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

std::string read_count(int fd) {
  std::array<char, 32> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  return {text.data(), static_cast<std::size_t>(n > 0 ? n : 0)};
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_TIMERSLACK, 1);
  std::vector<Device> devices;
  for (int i = 1; i < argc; ++i) {
    const std::string file = "/sys/class/net/" + std::string(argv[i]) + "/carrier_down_count";
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      (void)std::fprintf(stderr, "carrier-watch: %s: %s\n", file.c_str(), std::strerror(errno));
      return 1;
    }
    devices.push_back({argv[i], fd, read_count(fd), now_ns()});
  }
  sched_param priority{};
  priority.sched_priority = kPriority;
  if (::sched_setscheduler(0, SCHED_FIFO, &priority) != 0) {
    std::perror("carrier-watch: SCHED_FIFO");
    return 1;
  }
  for (;;) {
    for (Device& device : devices) {
      const long long before = device.read_ns;
      device.read_ns = now_ns();
      std::string count = read_count(device.fd);
      if (count == device.count) continue;
      device.count = std::move(count);
      (void)std::printf("[%lld, \"%s\"]\n", before, device.name.c_str());
      (void)std::fflush(stdout);
    }
    const timespec pause{0, kPollNs};
    ::nanosleep(&pause, nullptr);
  }
}
