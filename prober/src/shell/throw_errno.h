// A failed system call as an exception.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace fabric::prober {

// Throws std::system_error with errno; `what`: the call, or the file that it was about.
[[noreturn]] inline void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace fabric::prober
