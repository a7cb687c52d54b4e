// Lines to stderr with the journal's priority prefix (sd-daemon(3)).
#pragma once

#include <cstdio>
#include <string>

namespace fabric::prober {

inline void log_line(char priority, const std::string& text) {
  (void)std::fprintf(stderr, "<%c>fabric-prober: %s\n", priority, text.c_str());
}
inline void log_info(const std::string& text) { log_line('6', text); }
inline void log_warning(const std::string& text) { log_line('4', text); }
inline void log_error(const std::string& text) { log_line('3', text); }

}  // namespace fabric::prober
