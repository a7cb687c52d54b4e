// The two ways in which fabric-perf gives up before its time.
#pragma once

#include <stdexcept>
#include <string>

namespace fabric::perf {

// The user asked for something that cannot be: exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call into the transport, or the rendezvous, failed: exit status 1.
struct TransportError : std::runtime_error {
  TransportError(std::string where_, int code_, const std::string& text)
      : std::runtime_error(text), where(std::move(where_)), code(code_) {}
  std::string where;  // the call and the link, for people
  int code;           // the plugin's result; 0 for our own (a timeout, a short message)
};

}  // namespace fabric::perf
