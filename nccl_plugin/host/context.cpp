#include "host/context.h"

namespace fabric::host {

namespace {

std::string name_of(pages::PathDownReason reason) {
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

}  // namespace

std::string path_text(const Context& context, std::uint8_t local_rail, std::uint8_t remote_rail) {
  const std::string local = local_rail < context.rails.size()
                                ? context.rails[local_rail].name
                                : "rail " + std::to_string(local_rail);
  return local + " to the peer's rail " + std::to_string(remote_rail);
}

std::string reason_text(pages::PathDownReason reason, const std::string& detail) {
  return name_of(reason) + (detail.empty() ? "" : ": " + detail);
}

void log_path(Context& context, const PathLog::Key& path, const std::string& towards,
              const std::string& what, std::int64_t now) {
  const std::string text =
      "path " + towards + ": " + path_text(context, path.local_rail, path.remote_rail) + " " + what;
  if (const auto line = context.path_log.note(path, text, now)) {
    context.say(LogLevel::info, *line);
  }
}

void log_paths_due(Context& context, std::int64_t now) {
  for (const std::string& line : context.path_log.due(now)) {
    context.say(LogLevel::info, line);
  }
}

}  // namespace fabric::host
