#include <getopt.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "shell/log.h"
#include "shell/prober.h"

namespace {

constexpr const char* kUsage =
    "usage: fabric-prober --run-dir DIR [--key-file FILE] [--rt-priority N] [--cpu N]\n"
    "                     [--socket-mode 0600|0660]\n"
    "\n"
    "Probes links and paths as told on DIR/prober/ctl.sock and writes what it finds to\n"
    "DIR/prober/ring. --rt-priority 0 asks for no real-time scheduling (default 50).\n"
    "SIGHUP reads the key file again. Without --key-file: $CREDENTIALS_DIRECTORY/probe.key.\n"
    "\n"
    "example: fabric-prober --run-dir /run/fabricd --key-file /etc/fabricd/probe.key\n";

bool parse_int(const char* text, int least, int most, int& out) {
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, out);
  return result.ec == std::errc{} && result.ptr == end && out >= least && out <= most;
}

}  // namespace

int main(int argc, char** argv) {
  static const option kOptions[] = {{"run-dir", required_argument, nullptr, 'r'},
                                    {"key-file", required_argument, nullptr, 'k'},
                                    {"rt-priority", required_argument, nullptr, 'p'},
                                    {"cpu", required_argument, nullptr, 'c'},
                                    {"socket-mode", required_argument, nullptr, 'm'},
                                    {"help", no_argument, nullptr, 'h'},
                                    {nullptr, 0, nullptr, 0}};
  fabric::prober::Options options;
  const auto usage = [] {
    (void)std::fputs(kUsage, stderr);
    return 2;
  };
  for (int c = 0; (c = ::getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (c) {
      case 'r':
        options.run_dir = optarg;
        break;
      case 'k':
        options.key_file = optarg;
        break;
      case 'p':
        if (!parse_int(optarg, 0, 99, options.rt_priority)) return usage();
        break;
      case 'c':
        if (!parse_int(optarg, 0, 1023, options.cpu)) return usage();
        break;
      case 'm':
        if (std::strcmp(optarg, "0600") != 0 && std::strcmp(optarg, "0660") != 0) return usage();
        options.socket_mode = std::strcmp(optarg, "0660") == 0 ? 0660 : 0600;
        break;
      case 'h':
        (void)std::fputs(kUsage, stdout);
        return 0;
      default:
        return usage();
    }
  }
  if (const char* given = std::getenv("CREDENTIALS_DIRECTORY"); given && options.key_file.empty()) {
    options.key_file = std::string(given) + "/probe.key";
  }
  if (optind != argc || options.run_dir.empty() || options.key_file.empty()) return usage();
  try {
    const std::string directory = options.run_dir + "/prober";
    if (::mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
      throw std::runtime_error(directory + ": " + std::strerror(errno));
    }
    fabric::prober::Prober prober(options);
    prober.run();
  } catch (const std::exception& error) {
    fabric::prober::log_error(error.what());
    return 1;
  }
  return 0;
}
