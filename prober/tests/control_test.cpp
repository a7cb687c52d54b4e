// The control server against a socket pair of the real kind; driven by hand, no loop, no sleep.
#include "shell/control.h"

#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <random>
#include <stdexcept>

using namespace fabric::prober;
using nlohmann::json;

namespace {

struct Setup {
  std::string directory;
  Fd epoll{::epoll_create1(EPOLL_CLOEXEC)};
  std::unique_ptr<ControlServer> server;

  Setup() {
    std::string name = "/tmp/prober-control-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    directory = name;
    server = std::make_unique<ControlServer>(path(), 0600, epoll.get(), [](const json& r) -> json {
      if (r["op"] == "boom") throw std::runtime_error("boom");
      return {{"echo", r["op"]}};
    });
  }
  ~Setup() {
    server.reset();
    ::rmdir(directory.c_str());
  }
  std::string path() const { return directory + "/ctl.sock"; }

  Fd connect() const {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return fd;
  }
  void turn() {
    std::array<epoll_event, 16> events{};
    for (int round = 0; round < 8; ++round) {
      const int n = ::epoll_wait(epoll.get(), events.data(), 16, 0);
      for (int i = 0; i < n; ++i) {
        const auto& e = events[static_cast<std::size_t>(i)];
        server->handle(e.data.fd, e.events);
      }
    }
  }
  std::string ask(const Fd& fd, const std::string& text) {
    REQUIRE(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
    turn();
    return receive(fd);
  }
  static std::string receive(const Fd& fd) {
    std::array<char, 4096> buffer{};
    const ssize_t n = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    return n > 0 ? std::string(buffer.data(), static_cast<std::size_t>(n)) : std::string();
  }
};

}  // namespace

TEST_CASE("Answers, refusals, counts") {
  Setup s;
  struct stat info {};
  REQUIRE(::stat(s.path().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  const Fd c = s.connect();
  CHECK(json::parse(s.ask(c, R"({"op":"status"})")) == json{{"echo", "status"}, {"ok", true}});
  CHECK(s.server->errors() == 0);
  for (const char* bad : {"{", "[]", "1", R"({"op":1})", "{}", "\xff\xfe", R"({"op":"boom"})"}) {
    const json reply = json::parse(s.ask(c, bad));
    CHECK(reply["ok"] == false);
    CHECK(reply["error"].is_string());
  }
  CHECK(s.server->errors() == 7);
  CHECK(json::parse(s.ask(c, R"({"op":"x"})"))["ok"] == true);
}

TEST_CASE("Subscribers get one byte; the dead are dropped, the deaf harm nobody") {
  Setup s;
  const Fd live = s.connect();
  const Fd deaf = s.connect();
  auto dead = std::make_unique<Fd>(s.connect());
  for (const Fd* fd : {&live, &deaf, static_cast<const Fd*>(dead.get())}) {
    CHECK(json::parse(s.ask(*fd, R"({"op":"subscribe"})"))["ok"] == true);
  }
  CHECK(s.server->subscribers() == 3);
  dead.reset();
  for (int i = 0; i < 5000; ++i) {
    s.server->notify();
    CHECK(Setup::receive(live) == "!");
  }
  s.turn();
  CHECK(s.server->clients() == 2);
  CHECK(json::parse(s.ask(live, R"({"op":"x"})"))["ok"] == true);
}

TEST_CASE("Random bytes and deep nesting are answered with an error") {
  Setup s;
  const Fd c = s.connect();
  std::mt19937 rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::string text(1 + rng() % 60, '\0');
    for (char& x : text) x = static_cast<char>(rng());
    CHECK(json::parse(s.ask(c, text))["ok"] == false);
  }
  CHECK(json::parse(s.ask(c, std::string(60000, '[')))["ok"] == false);
}

TEST_CASE("A second server does not take a live one's socket, but replaces a dead one's") {
  Setup s;
  CHECK_THROWS(ControlServer(s.path(), 0600, s.epoll.get(), [](const json&) { return json(); }));
  const Fd c = s.connect();
  s.turn();
  CHECK(json::parse(s.ask(c, R"({"op":"x"})"))["ok"] == true);
}

TEST_CASE("More clients than allowed are turned away") {
  Setup s;
  std::vector<Fd> clients;
  for (std::size_t i = 0; i < ControlServer::kMaxClients + 5; ++i) {
    clients.push_back(s.connect());
    s.turn();
  }
  CHECK(s.server->clients() == ControlServer::kMaxClients);
  CHECK(s.server->errors() == 5);
}
