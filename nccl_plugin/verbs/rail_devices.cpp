#include "verbs/rail_devices.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace fabric::verbs {

namespace {

// An InfiniBand port has no GIDs of its network device: sysfs says which that is.
bool is_ipoib_of(const std::string& netdev, const Device& device, int port) {
  const std::string path = std::string(device.verbs().sysfs) + "/net/" + netdev;
  std::ifstream file(path + "/dev_port");
  int number = 0;
  std::error_code error;
  return static_cast<bool>(file >> number) && number + 1 == port &&
         std::filesystem::exists(path + "/device/infiniband/" + device.present_name(), error);
}

}  // namespace

RailPort* RailDevices::port(std::size_t rail) {
  std::unique_ptr<RailPort>& port = ports_[rail];
  if (port != nullptr && port->device()->gone()) {
    port.reset();
  }
  return port.get();
}

std::vector<std::shared_ptr<Device>> RailDevices::devices() const {
  std::vector<std::shared_ptr<Device>> devices;
  for (const auto& port : ports_) {
    devices.push_back(port == nullptr || port->device()->gone() ? nullptr : port->device());
  }
  return devices;
}

// Does this port belong to the rail?
bool RailDevices::belongs(const Port& port, const RailName& rail, bool by_address) {
  if (by_address) {
    return std::any_of(port.table.begin(), port.table.end(),
                       [&](const GidEntry& entry) { return entry.gid == rail.address; });
  }
  if (!port.ethernet) {
    return is_ipoib_of(rail.name, *port.device, port.number);
  }
  return rail.ifindex != 0 &&
         std::any_of(port.table.begin(), port.table.end(),
                     [&](const GidEntry& entry) { return entry.ifindex == rail.ifindex; });
}

void RailDevices::add_ports(const std::shared_ptr<Device>& device, std::vector<Port>& found) {
  for (std::uint8_t number = 1; number <= device->limits().phys_port_cnt; ++number) {
    Error error;
    if (const auto state = query_port(*device, number, error)) {
      found.push_back({device, number, state->ethernet, read_gids(*device, number, state->gids)});
    }
  }
}

void RailDevices::find(std::span<const RailName> rails, std::string& notes) {
  bool missing = false;
  for (std::size_t rail = 0; rail < rails.size(); ++rail) {
    missing = missing || port(rail) == nullptr;
  }
  if (!missing) {
    return;
  }
  const auto note = [&notes](const std::string& text) {
    notes += (notes.empty() ? "" : ", ") + text;
  };
  std::vector<Error> errors;
  std::vector<Port> found;
  std::set<std::string> held;
  for (const auto& device : devices()) {
    if (device != nullptr && held.insert(device->present_name()).second) {
      add_ports(device, found);
    }
  }
  for (auto& device : open_devices(
           verbs_, [&held](const std::string& name) { return !held.contains(name); }, errors)) {
    add_ports(device, found);
  }
  for (const bool by_address : {true, false}) {
    for (const Port& candidate : found) {
      for (std::size_t rail = 0; rail < rails.size(); ++rail) {
        if (port(rail) == nullptr && belongs(candidate, rails[rail], by_address)) {
          ports_[rail] =
              std::make_unique<RailPort>(candidate.device, candidate.number, rules_, settings_);
          note(rails[rail].name + " " + candidate.device->name() + ":" +
               std::to_string(static_cast<int>(candidate.number)));
        }
      }
    }
  }
  for (const Error& error : errors) {
    note(error.text);
  }
}

}  // namespace fabric::verbs
