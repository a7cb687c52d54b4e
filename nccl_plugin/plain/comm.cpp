#include "plain/comm.h"

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

namespace fabric::plain {

namespace {

constexpr int kWarn = 2;

abi::LogFunction logger = nullptr;

bool later(ssize_t n) { return n < 0 && (errno == EAGAIN || errno == EINTR); }

Status lost(Comm* c, ssize_t n) {
  c->failed = fail(kRemote, c->sends ? "send" : "receive", n < 0 ? errno : 0);
  return c->failed;
}

// Sends of the header and payload from byte `moved` on.
ssize_t push(const Comm* c, const Slot& slot) {
  const bool in_header = c->moved < sizeof(Header);
  const std::byte* at = in_header ? reinterpret_cast<const std::byte*>(&c->header) + c->moved
                                  : slot.data + (c->moved - sizeof(Header));
  const std::size_t end = in_header ? sizeof(Header) : sizeof(Header) + slot.room;
  // The header leaves together with what follows it.
  const int more = in_header && slot.room != 0 ? MSG_MORE : 0;
  return ::send(c->fd, at, end - c->moved, MSG_DONTWAIT | MSG_NOSIGNAL | more);
}

Status progress_sends(Comm* c) {
  while (!c->queue.empty()) {
    Request* r = c->queue.front();
    Slot& slot = r->slots[0];
    if (c->moved == 0) c->header = {slot.room, slot.tag};
    const ssize_t n = push(c, slot);
    if (later(n)) return kOk;
    if (n <= 0) return lost(c, n);
    c->moved += static_cast<std::size_t>(n);
    if (c->moved < sizeof(Header) + slot.room) continue;
    c->moved = 0;
    slot.size = slot.room;
    r->done = true;
    c->queue.pop_front();
  }
  return kOk;
}

// The first slot for this tag that has no message yet.
std::pair<Request*, Slot*> slot_for(const Comm* c, std::int64_t tag) {
  for (Request* r : c->queue) {
    for (Slot& slot : std::span(r->slots).first(r->count)) {
      if (!slot.assigned && slot.tag == tag) return {r, &slot};
    }
  }
  return {nullptr, nullptr};
}

Status too_long(Comm* c) {
  c->failed = fail(kRemote, "a message is longer than its receive", EMSGSIZE);
  return c->failed;
}

void fill_slot(Comm* c, Request* r, Slot* slot, std::size_t size) {
  slot->size = size;
  slot->assigned = slot->filled = true;
  const auto slots = std::span(r->slots).first(r->count);
  r->done = std::all_of(slots.begin(), slots.end(), [](const Slot& s) { return s.filled; });
  if (r->done) std::erase(c->queue, r);
}

// Early messages of this tag, in their order, into slots of this tag.
Status deliver_early(Comm* c) {
  for (auto message = c->early.begin(); message != c->early.end();) {
    const auto [request, slot] = slot_for(c, message->tag);
    if (slot == nullptr) {
      ++message;
      continue;
    }
    if (message->data.size() > slot->room) return too_long(c);
    std::copy(message->data.begin(), message->data.end(), slot->data);
    fill_slot(c, request, slot, message->data.size());
    message = c->early.erase(message);
  }
  return kOk;
}

// Decides where the message goes whose header is there; false: it stays in the socket.
bool place(Comm* c) {
  if (c->queue.empty()) return false;
  std::tie(c->owner, c->slot) = slot_for(c, c->header.tag);
  if (c->slot != nullptr) {
    if (c->header.size > c->slot->room) {
      too_long(c);
      return false;
    }
    c->slot->assigned = true;
  } else {
    c->early_data.resize(c->header.size);
  }
  c->placed = true;
  return true;
}

void finish_message(Comm* c) {
  if (c->slot != nullptr) {
    fill_slot(c, c->owner, c->slot, c->header.size);
  } else {
    c->early.push_back({static_cast<int>(c->header.tag), std::move(c->early_data)});
    c->early_data = {};
    deliver_early(c);
  }
  c->placed = false;
  c->slot = nullptr;
  c->owner = nullptr;
  c->moved = 0;
}

Status progress_receives(Comm* c) {
  while (c->failed == kOk && !c->queue.empty()) {
    if (c->moved >= sizeof(Header) && !c->placed && !place(c)) return c->failed;
    if (c->moved == sizeof(Header) + c->header.size && c->placed) {
      finish_message(c);
      continue;
    }
    const bool in_header = c->moved < sizeof(Header);
    std::byte* const payload = c->slot != nullptr ? c->slot->data : c->early_data.data();
    std::byte* at = in_header ? reinterpret_cast<std::byte*>(&c->header) + c->moved
                              : payload + (c->moved - sizeof(Header));
    const std::size_t end = in_header ? sizeof(Header) : sizeof(Header) + c->header.size;
    const ssize_t n = ::recv(c->fd, at, end - c->moved, MSG_DONTWAIT);
    if (later(n)) return kOk;
    if (n <= 0) return lost(c, n);
    c->moved += static_cast<std::size_t>(n);
  }
  return c->failed;
}

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
  if (fd >= 0) ::close(fd);
}

Status progress(Comm* c) {
  if (c->failed != kOk) return c->failed;
  return c->sends ? progress_sends(c) : progress_receives(c);
}

Status post(Comm* c, std::span<const Slot> slots, void** out) {
  if (c == nullptr || out == nullptr || slots.empty() || slots.size() > kMaxGroup) return kInvalid;
  *out = nullptr;
  if (c->failed != kOk) return c->failed;
  if (c->queue.size() >= kMaxRequests * (c->sends ? kMaxGroup : 1)) return progress(c);
  Request& r = c->requests.emplace_back();
  r.comm = c;
  r.count = slots.size();
  std::copy(slots.begin(), slots.end(), r.slots.begin());
  c->queue.push_back(&r);
  *out = &r;
  if (!c->sends) {
    const Status status = deliver_early(c);
    if (status != kOk) return status;
  }
  return progress(c);
}

void release(Request* request) {
  request->comm->requests.remove_if([request](const Request& r) { return &r == request; });
}

}  // namespace fabric::plain
