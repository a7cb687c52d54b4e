// The control socket: SEQPACKET, one JSON object a packet. A client that does not read, or sends
// what is no request, harms nobody but itself.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

#include "shell/fd.h"

namespace fabric::prober {

class ControlServer {
 public:
  // Answers a request; an exception's text becomes the error.
  using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;
  static constexpr std::size_t kMaxClients = 64;
  static constexpr std::size_t kMaxRequest = std::size_t{512} * 1024;

  // Replaces a stale socket at `path`. Throws std::system_error; a live server there is an error.
  ControlServer(std::string path, mode_t mode, int epoll, Handler handler);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // True if `fd` was the listener or a client; `events` are epoll's.
  bool handle(int fd, std::uint32_t events);
  // Tells every subscriber that the event ring has something new.
  void notify();

  std::uint64_t errors() const { return errors_; }
  std::size_t clients() const { return clients_.size(); }
  std::size_t subscribers() const;

 private:
  struct Client {
    Fd fd;
    bool subscribed = false;
  };

  void accept_all();
  bool serve(Client& client);  // false: close it
  nlohmann::json answer(Client& client, std::size_t length);

  std::string path_;
  int epoll_;
  Handler handler_;
  Fd listener_;
  std::unordered_map<int, Client> clients_;
  std::string buffer_;
  std::uint64_t errors_ = 0;
};

}  // namespace fabric::prober
