#include "collectives/connections.h"

#include <algorithm>
#include <cstring>

namespace fabric::collectives {
namespace {

// Little-endian, as all that runs this is. Behind it: a handle for each ring, one for each rank.
struct Head {
  std::uint32_t magic = kMagic;
  std::uint32_t version = 1;
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
  std::uint32_t rings = 0;
  std::uint32_t reserved = 0;
  static constexpr std::uint32_t kMagic = 0x4c4f4346;  // "FCOL"
};

std::string name_of(int from, int to) {
  return "rank " + std::to_string(from) + " -> rank " + std::to_string(to);
}

void append(std::string& bytes, const perf::Handle& handle) {
  bytes.append(reinterpret_cast<const char*>(handle.data()), handle.size());
}

perf::Handle handle_at(std::string_view address, std::size_t number) {
  perf::Handle handle{};
  std::memcpy(handle.data(), address.data() + sizeof(Head) + number * handle.size(), handle.size());
  return handle;
}

// A comm that has failed may refuse even to be closed; there is nobody to tell.
template <typename Call>
void quietly(Call&& call) noexcept {
  try {
    call();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace

Connections::Connections(perf::Plugin& plugin, const Place& place, int channels)
    : plugin_(plugin),
      place_(place),
      devices_(static_cast<int>(plugin.devices().size())),
      peers_(static_cast<std::size_t>(place.world)) {
  if (devices_ < 1) throw perf::TransportError("devices", 0, "the plugin has no device");
  const int wanted = channels > 0 ? channels : devices_;
  rings_.resize(static_cast<std::size_t>(std::min(wanted, kMaxChannels)));
  try {
    listen_all();
  } catch (...) {
    close_receiving();
    throw;
  }
}

void Connections::listen_all() {
  const auto self = static_cast<std::size_t>(place_.rank);
  const auto world = static_cast<std::size_t>(place_.world);
  const std::size_t previous = (self + world - 1) % world;
  Head head;
  head.rank = static_cast<std::uint32_t>(place_.rank);
  head.world = static_cast<std::uint32_t>(place_.world);
  head.rings = static_cast<std::uint32_t>(rings_.size());
  address_.assign(reinterpret_cast<const char*>(&head), sizeof head);
  for (std::size_t c = 0; c < rings_.size(); ++c) {
    perf::Handle handle{};
    rings_[c].listener = plugin_.listen(device(c), &handle);
    rings_[c].out.label = name_of(place_.rank, (place_.rank + 1) % place_.world) + ", ring";
    rings_[c].in.label = name_of(static_cast<int>(previous), place_.rank) + ", ring";
    append(address_, handle);
  }
  for (std::size_t peer = 0; peer < world; ++peer) {
    perf::Handle handle{};
    if (peer != self) peers_[peer].listener = plugin_.listen(device(self + peer), &handle);
    peers_[peer].out.label = name_of(place_.rank, static_cast<int>(peer));
    peers_[peer].in.label = name_of(static_cast<int>(peer), place_.rank);
    append(address_, handle);
  }
}

void Connections::read_addresses(std::span<const std::string_view> addresses) {
  const auto self = static_cast<std::size_t>(place_.rank);
  const auto world = static_cast<std::size_t>(place_.world);
  if (addresses.size() != world) {
    throw perf::UsageError(std::to_string(addresses.size()) + " addresses for " +
                           std::to_string(world) + " ranks");
  }
  std::vector<std::size_t> rings;
  for (std::size_t r = 0; r < world; ++r) {
    Head head;
    const std::string_view bytes = addresses[r];
    const std::string who = "the address of rank " + std::to_string(r);
    if (bytes.size() < sizeof head) throw perf::UsageError(who + " is too short");
    std::memcpy(&head, bytes.data(), sizeof head);
    if (head.magic != Head::kMagic || head.version != 1) {
      throw perf::UsageError(who + " is of another version, or none");
    }
    if (head.rank != r || head.world != world || head.rings < 1 || head.rings > kMaxChannels ||
        bytes.size() != sizeof head + (head.rings + world) * perf::kHandleBytes) {
      throw perf::UsageError(who + " belongs to another rank or group");
    }
    rings.push_back(head.rings);
  }
  std::size_t common = rings_.size();
  for (const std::size_t theirs : rings) common = std::min(common, theirs);
  const std::size_t next = (self + 1) % world;
  for (std::size_t c = common; c < rings_.size(); ++c) plugin_.close_listen(rings_[c].listener);
  rings_.resize(common);
  for (std::size_t c = 0; c < common; ++c) rings_[c].next_handle = handle_at(addresses[next], c);
  for (std::size_t peer = 0; peer < world; ++peer) {
    peers_[peer].handle = handle_at(addresses[peer], rings[peer] + self);
  }
}

void Connections::connect(std::span<const std::string_view> addresses,
                          const std::function<void()>& wait) {
  read_addresses(addresses);
  while (true) {
    bool complete = true;
    bool moved = false;
    for (std::size_t c = 0; c < rings_.size(); ++c) {
      Ring& ring = rings_[c];
      const bool had = ring.out.comm != nullptr && ring.in.comm != nullptr;
      const bool out = open(ring.out, device(c), ring.next_handle);
      const bool in = accept(ring.in, ring.listener);
      complete = complete && out && in;
      moved = moved || (!had && out && in);
    }
    if (complete) return;
    if (!moved) wait();
  }
}

const perf::Endpoint* Connections::to(int peer) {
  const auto number = static_cast<std::size_t>(peer);
  Peer& with = peers_[number];
  const int on = device(static_cast<std::size_t>(place_.rank) + number);
  return open(with.out, on, with.handle) ? &with.out : nullptr;
}

const perf::Endpoint* Connections::from(int peer) {
  Peer& with = peers_[static_cast<std::size_t>(peer)];
  return accept(with.in, with.listener) ? &with.in : nullptr;
}

int Connections::device(std::size_t number) const {
  return static_cast<int>(number % static_cast<std::size_t>(devices_));
}

bool Connections::open(perf::Endpoint& out, int device, perf::Handle& handle) {
  if (out.comm != nullptr) return true;
  out.comm = perf::on_link(out.label, [&] { return plugin_.connect(device, &handle); });
  return out.comm != nullptr;
}

bool Connections::accept(perf::Endpoint& in, void*& listener) {
  if (in.comm != nullptr) return true;
  in.comm = perf::on_link(in.label, [&] { return plugin_.accept(listener); });
  if (in.comm == nullptr) return false;
  plugin_.close_listen(listener);
  listener = nullptr;
  return true;
}

void Connections::close_receiving() noexcept {
  const auto close = [this](auto& one) {
    if (one.in.comm != nullptr) quietly([&] { plugin_.close_receive(one.in.comm); });
    if (one.listener != nullptr) quietly([&] { plugin_.close_listen(one.listener); });
    one.in.comm = one.listener = nullptr;
  };
  std::for_each(rings_.begin(), rings_.end(), close);
  std::for_each(peers_.begin(), peers_.end(), close);
}

void Connections::close_sending(bool gently) noexcept {
  const auto close = [this, gently](auto& one) {
    if (one.out.comm != nullptr) {
      quietly(
          [&] { gently ? plugin_.close_send(one.out.comm) : plugin_.cancel_send(one.out.comm); });
    }
    one.out.comm = nullptr;
  };
  std::for_each(rings_.begin(), rings_.end(), close);
  std::for_each(peers_.begin(), peers_.end(), close);
}

}  // namespace fabric::collectives
