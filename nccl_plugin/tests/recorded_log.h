// A logger as NCCL gives one to a plugin, which keeps the lines. One for the whole process, for a
// logger is a bare function: clear() first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "src/net.h"

namespace fabric::host {

class RecordedLog {
 public:
  struct Line {
    LogLevel level = LogLevel::none;
    std::string text;
  };

  static void clear() {
    const std::scoped_lock lock(mutex());
    kept().clear();
  }
  static std::vector<Line> lines() {
    const std::scoped_lock lock(mutex());
    return kept();
  }
  // Lines at INFO level that have all of `parts` in them.
  static std::size_t count(const std::vector<std::string>& parts) {
    const auto all = lines();
    return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [&](const Line& line) {
      return line.level == LogLevel::info &&
             std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
               return line.text.find(part) != std::string::npos;
             });
    }));
  }
  static void log(int level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
                  const char* format, ...) {
    std::array<char, 1024> text{};
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text.data(), text.size(), format, arguments);
    va_end(arguments);
    const std::scoped_lock lock(mutex());
    kept().push_back({static_cast<LogLevel>(level), text.data()});
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::vector<Line>& kept() {
    static std::vector<Line> all;
    return all;
  }
};

}  // namespace fabric::host
