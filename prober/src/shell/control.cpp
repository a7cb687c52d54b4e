#include "shell/control.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <vector>

#include "shell/throw_errno.h"

namespace fabric::prober {
namespace {

using nlohmann::json;

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("epoll_ctl");
}

}  // namespace

ControlServer::ControlServer(std::string path, mode_t mode, int epoll, Handler handler)
    : path_(std::move(path)),
      epoll_(epoll),
      handler_(std::move(handler)),
      buffer_(kMaxRequest, '\0') {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    throw_errno(path_);
  }
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* sa = reinterpret_cast<const sockaddr*>(&address);
  {
    const Fd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (probe && (::connect(probe.get(), sa, sizeof address) == 0 || errno == EAGAIN)) {
      errno = EADDRINUSE;
      throw_errno(path_ + ": another prober is running");
    }
  }
  ::unlink(path_.c_str());
  listener_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) throw_errno("socket");
  const mode_t before = ::umask(0177);
  const int bound = ::bind(listener_.get(), sa, sizeof address);
  ::umask(before);
  if (bound != 0) throw_errno(path_);
  if (::chmod(path_.c_str(), mode) != 0) throw_errno(path_);
  if (::listen(listener_.get(), 16) != 0) throw_errno("listen");
  watch(epoll_, listener_.get());
}

ControlServer::~ControlServer() {
  if (listener_) ::unlink(path_.c_str());
}

bool ControlServer::handle(int fd, std::uint32_t events) {
  if (fd == listener_.get()) {
    accept_all();
    return true;
  }
  const auto found = clients_.find(fd);
  if (found == clients_.end()) return false;
  const bool readable = (events & EPOLLIN) != 0;
  if (!readable || !serve(found->second)) clients_.erase(found);
  return true;
}

void ControlServer::accept_all() {
  for (;;) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (clients_.size() >= kMaxClients) {
      ++errors_;
      continue;
    }
    // Answers are small; a client that stops reading must not hold much.
    const int size = 64 * 1024;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    watch(epoll_, fd.get());
    const int key = fd.get();
    clients_.emplace(key, Client{std::move(fd), false});
  }
}

json ControlServer::answer(Client& client, std::size_t length) {
  if (length > buffer_.size()) {
    throw std::runtime_error("a request has at most " + std::to_string(kMaxRequest) + " bytes");
  }
  const json request = json::parse(buffer_.data(), buffer_.data() + length, nullptr, false);
  if (!request.is_object()) throw std::runtime_error("a request is one JSON object a packet");
  const auto op = request.find("op");
  if (op == request.end() || !op->is_string()) throw std::runtime_error("op: a string is needed");
  if (*op == "subscribe") {
    client.subscribed = true;
    return json::object();
  }
  return handler_(request);
}

bool ControlServer::serve(Client& client) {
  // A few requests at a time, so that a busy client cannot hold up the probes.
  for (int i = 0; i < 4; ++i) {
    const ssize_t n =
        ::recv(client.fd.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    json reply;
    try {
      reply = answer(client, static_cast<std::size_t>(n));
      reply["ok"] = true;
    } catch (const std::exception& error) {
      ++errors_;
      reply = {{"ok", false}, {"error", error.what()}};
    }
    const std::string text = reply.dump(-1, ' ', false, json::error_handler_t::replace);
    if (::send(client.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      return false;
    }
  }
  return true;
}

void ControlServer::notify() {
  std::vector<int> dead;
  for (auto& [fd, client] : clients_) {
    if (!client.subscribed) continue;
    // EAGAIN: it has unread notices already, one more would tell it nothing.
    if (::send(fd, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN) dead.push_back(fd);
  }
  for (const int fd : dead) clients_.erase(fd);
}

std::size_t ControlServer::subscribers() const {
  std::size_t n = 0;
  for (const auto& [fd, client] : clients_) n += client.subscribed ? 1 : 0;
  return n;
}

}  // namespace fabric::prober
