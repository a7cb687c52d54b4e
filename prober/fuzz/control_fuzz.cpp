// libFuzzer target for the prober's control socket: a packet of it, as ControlServer reads one, up
// to the configuration that the engine takes.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/engine.h"
#include "shell/json_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fabric::prober;
  const auto* text = reinterpret_cast<const char*>(data);
  const nlohmann::json request = nlohmann::json::parse(text, text + size, nullptr, false);
  if (!request.is_object()) return 0;
  Config config;
  try {
    config = parse_config(request);
  } catch (const std::exception& error) {
    // The refusal is sent back: it must be something that can be sent.
    nlohmann::json reply = {{"ok", false}, {"error", error.what()}};
    reply.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return 0;
  }
  static const Keyring keys = [] {
    Key key{};
    key.fill(3);
    return Keyring(std::span(&key, 1));
  }();
  Engine engine(1, [] { return std::uint64_t{5}; });
  engine.set_keys(keys);  // the process does not start without
  engine.configure(config, 1, 0);
  std::vector<Outgoing> out;
  engine.take_due(1'000'000'000, 0, out);
  return 0;
}
