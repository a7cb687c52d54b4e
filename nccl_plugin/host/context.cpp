#include "host/context.h"

namespace fabric::host {

std::string path_text(const Context& context, std::uint8_t local_rail, std::uint8_t remote_rail) {
  const std::string local = local_rail < context.rails.size()
                                ? context.rails[local_rail].name
                                : "rail " + std::to_string(local_rail);
  return local + " to the peer's rail " + std::to_string(remote_rail);
}

std::string reason_text(pages::PathDownReason reason) {
  switch (reason) {
    case pages::PathDownReason::steer_page:
      return "steer page";
    case pages::PathDownReason::socket_error:
      return "socket error";
    case pages::PathDownReason::no_ack:
      return "no ACK";
    case pages::PathDownReason::peer_told:
      return "peer told so";
    case pages::PathDownReason::carrier:
      return "no carrier";
    case pages::PathDownReason::connect_failed:
      return "connect failed";
    case pages::PathDownReason::path_validation:
      return "its path validation was not answered";
    case pages::PathDownReason::moved:
      return "its address is gone";
    case pages::PathDownReason::rehash:
      return "slow, opened again";
  }
  return "unknown";
}

std::string failure_text(const Context& context, std::uint8_t local_rail, std::uint8_t remote_rail,
                         pages::PathDownReason reason, const std::string& detail) {
  return path_text(context, local_rail, remote_rail) + " (" + reason_text(reason) +
         (detail.empty() ? "" : ": " + detail) + ")";
}

}  // namespace fabric::host
