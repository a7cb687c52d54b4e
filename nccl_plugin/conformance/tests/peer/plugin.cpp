// libnccl-net-peer.so: NCCL's own socket transport as a net plugin, with the table of its version.
// What NCCL would give it is here: its log, its parameters, and no CUDA.
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <type_traits>

#include "nccl_net.h"
#include "param.h"

extern ncclNet_t ncclNetSocket;

int ncclDebugLevel = NCCL_LOG_WARN;
std::uint64_t ncclDebugMask = NCCL_ALL;
FILE* ncclDebugFile = stderr;
thread_local int ncclDebugNoWarn = 0;
char ncclLastError[1024];

namespace {

ncclDebugLogger_t the_log = nullptr;

__attribute__((format(printf, 4, 0))) void log_line(ncclDebugLogLevel level, const char* file,
                                                    int line, const char* format,
                                                    va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  if (the_log != nullptr) the_log(level, NCCL_NET, file, line, "%s", text);
}

template <typename T>
void find_log(const T& argument) {
  if constexpr (std::is_same_v<T, ncclDebugLogger_t>) the_log = argument;
}

template <typename... Arguments>
auto with_log(ncclResult_t (* /*unused*/)(Arguments...)) {
  return [](Arguments... arguments) {
    (find_log(arguments), ...);
    return ncclNetSocket.init(arguments...);
  };
}

ncclNet_t table() {
  ncclNet_t copy = ncclNetSocket;
  copy.init = with_log(ncclNetSocket.init);
  return copy;
}

}  // namespace

// Both of NCCL's ways to log, and both of its ways to read a parameter: 2.27 to 2.30.
void ncclDebugLog(ncclDebugLogLevel level, unsigned long, const char* where, int line,
                  const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  log_line(level, where, line, format, arguments);
  va_end(arguments);
}
void ncclDebugLogInternal(ncclDebugLogLevel level, unsigned long, const char* file, const char*,
                          int line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  log_line(level, file, line, format, arguments);
  va_end(arguments);
}

const char* ncclGetEnv(const char* name) { return std::getenv(name); }

std::int64_t ncclLoadParam(const char* name, std::int64_t otherwise, std::int64_t /*unset*/,
                           std::int64_t* cache, std::int8_t* /*unused*/) {
  const char* text = std::getenv(name);
  *cache = text == nullptr || *text == '\0' ? otherwise : std::strtoll(text, nullptr, 0);
  return *cache;
}
void ncclLoadParam(const char* name, std::int64_t otherwise, std::int64_t unset,
                   std::int64_t* cache) {
  ncclLoadParam(name, otherwise, unset, cache, nullptr);
}

void ncclSetThreadName(std::thread&, const char*, ...) {}
void ncclSetThreadName(pthread_t, const char*, ...) {}

extern "C" __attribute__((visibility("default"))) ncclNet_t NCCL_NET_PLUGIN_SYMBOL;
ncclNet_t NCCL_NET_PLUGIN_SYMBOL = table();
