#include "plain/comm.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fabric::plain {

namespace {

constexpr std::size_t kMaxRequests = 32;
constexpr int kWarn = 2;

abi::LogFunction logger = nullptr;

}  // namespace

void log_to(abi::LogFunction log) { logger = log; }

Status fail(Status status, const char* what, int error) {
  if (logger != nullptr) {
    logger(kWarn, 0x10, __FILE__, __LINE__, "NET/Plain: %s: %s", what,
           error == 0 ? "connection closed by the peer" : std::strerror(error));
  }
  return status;
}

Comm::~Comm() {
  for (Request* r : queue) delete r;
  if (fd >= 0) ::close(fd);
}

Status progress(Comm* c) {
  while (c->failed == kOk && !c->queue.empty()) {
    Request* r = c->queue.front();
    constexpr std::size_t kHeader = sizeof r->header;
    const bool in_header = r->moved < kHeader;
    auto* at = in_header ? reinterpret_cast<std::byte*>(&r->header) + r->moved
                         : r->data + (r->moved - kHeader);
    const std::size_t end = in_header ? kHeader : kHeader + r->header;
    if (r->moved < end) {
      // The header leaves together with what follows it.
      const int more = in_header && r->header != 0 ? MSG_MORE : 0;
      const ssize_t n = c->sends
                            ? ::send(c->fd, at, end - r->moved, MSG_DONTWAIT | MSG_NOSIGNAL | more)
                            : ::recv(c->fd, at, end - r->moved, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return kOk;
      if (n <= 0) {
        c->failed = fail(kRemote, c->sends ? "send" : "receive", n < 0 ? errno : 0);
        return c->failed;
      }
      r->moved += static_cast<std::size_t>(n);
    }
    if (r->moved < kHeader) continue;
    if (r->header > r->size) {
      c->failed = fail(kRemote, "a message is longer than its receive", EMSGSIZE);
      return c->failed;
    }
    if (r->moved == kHeader + r->header) {
      r->size = r->header;
      r->done = true;
      c->queue.pop_front();
    }
  }
  return c->failed;
}

Status post(Comm* c, void* data, std::size_t size, void** out) {
  if (c == nullptr || out == nullptr) return kInvalid;
  *out = nullptr;
  if (c->failed != kOk) return c->failed;
  if (c->queue.size() >= kMaxRequests) return kOk;
  auto* r = new Request{c, static_cast<std::byte*>(data), size, c->sends ? size : 0, 0, false};
  c->queue.push_back(r);
  *out = r;
  return progress(c);
}

}  // namespace fabric::plain
