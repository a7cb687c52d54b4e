#include "perf/rendezvous.h"

#include <charconv>

namespace fabric::perf {

RendezvousAddress parse_rendezvous(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError("--rendezvous '" + text + "': " + why + "; use file:DIR or tcp:HOST:PORT");
  };
  RendezvousAddress address{};
  if (text.starts_with("file:")) {
    address.kind = RendezvousAddress::Kind::file;
    address.place = text.substr(5);
    if (address.place.empty()) refuse("no directory");
    return address;
  }
  if (!text.starts_with("tcp:")) refuse("neither file: nor tcp:");
  address.kind = RendezvousAddress::Kind::tcp;
  const std::string rest = text.substr(4);
  const auto colon = rest.rfind(':');
  if (colon == std::string::npos) refuse("no port");
  address.place = rest.substr(0, colon);
  if (address.place.size() > 2 && address.place.front() == '[' && address.place.back() == ']') {
    address.place = address.place.substr(1, address.place.size() - 2);
  } else if (address.place.find(':') != std::string::npos) {
    refuse("an IPv6 address needs brackets");
  }
  if (address.place.empty()) refuse("no host");
  const std::string port = rest.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc{} || end != port.data() + port.size() || address.port == 0) {
    refuse("the port must be 1 to 65535");
  }
  return address;
}

std::unique_ptr<Rendezvous> make_rendezvous(const RendezvousAddress& address,
                                            const RendezvousConfig& config) {
  if (address.kind == RendezvousAddress::Kind::file) {
    return make_file_rendezvous(address.place, config);
  }
  return make_tcp_rendezvous(address.place, address.port, config);
}

}  // namespace fabric::perf
