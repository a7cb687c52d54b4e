// The life of one connection slot (a path of a comm, or a control link): one table, and an illegal
// transition throws and changes nothing. Pure.
//
//   idle ──dial──► dialing ──connected──► live ──lost──► down ──dial──► dialing
//                     └─────lost──────────────────────────▲
//   any ──close──► closed
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace fabric::core {

enum class LinkPhase : std::uint8_t { idle, dialing, live, down, closed };
enum class LinkEvent : std::uint8_t { dial, connected, lost, close };

class Lifecycle {
 public:
  [[nodiscard]] LinkPhase phase() const { return phase_; }
  [[nodiscard]] bool live() const { return phase_ == LinkPhase::live; }
  [[nodiscard]] bool may(LinkEvent event) const { return next(event) != kIllegal; }
  void on(LinkEvent event) {
    const int to = next(event);
    if (to == kIllegal) {
      throw std::logic_error("illegal transition of a connection");
    }
    phase_ = static_cast<LinkPhase>(to);
  }

 private:
  static constexpr int kIllegal = -1;
  // Rows: phase. Columns: dial, connected, lost, close.
  static constexpr int kDialing = static_cast<int>(LinkPhase::dialing);
  static constexpr int kLive = static_cast<int>(LinkPhase::live);
  static constexpr int kDown = static_cast<int>(LinkPhase::down);
  static constexpr int kClosed = static_cast<int>(LinkPhase::closed);
  static constexpr std::array<std::array<int, 4>, 5> kTable{{
      {kDialing, kLive, kIllegal, kClosed},     // idle (connected: the peer dialled)
      {kIllegal, kLive, kDown, kClosed},        // dialing
      {kIllegal, kIllegal, kDown, kClosed},     // live
      {kDialing, kLive, kIllegal, kClosed},     // down
      {kIllegal, kIllegal, kIllegal, kClosed},  // closed
  }};
  [[nodiscard]] int next(LinkEvent event) const {
    return kTable[static_cast<std::size_t>(phase_)][static_cast<std::size_t>(event)];
  }

  LinkPhase phase_ = LinkPhase::idle;
};

}  // namespace fabric::core
