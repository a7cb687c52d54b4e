// Why a call of libibverbs failed.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

namespace fabric::verbs {

struct Error {
  int code = 0;  // an errno
  std::string
      text;  // what failed, where, and why: "ibv_create_qp on mlx5_0: Cannot allocate memory"
};

// The text of an errno, in any thread.
inline std::string errno_text(int code) {
  char text[128] = {};
  return ::strerror_r(code, text, sizeof text);  // GNU's
}

inline Error failed(std::string_view call, std::string_view where, int code) {
  return {code, std::string(call) + " on " + std::string(where) + ": " + errno_text(code)};
}

}  // namespace fabric::verbs
