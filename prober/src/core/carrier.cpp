#include "core/carrier.h"

namespace fabric::prober {

void CarrierTracker::update(std::uint16_t link, const CarrierReading& next, Nanos now,
                            RecordSink& sink) {
  const Nanos since = read_at_;
  read_at_ = now;
  const CarrierReading before = reading_;
  const bool first = !known_;
  const bool gone = known_ && before.present && !next.present;
  const bool returned =
      known_ && next.present && (!before.present || before.ifindex != next.ifindex);
  const bool changed = next.present && before.present &&
                       (next.carrier != before.carrier || next.down_count != before.down_count ||
                        next.up_count != before.up_count);
  reading_ = next;
  known_ = true;
  if (!first && !gone && !returned && !changed) return;

  std::uint64_t downs = 0;
  if (!first) {
    if (gone) {
      downs = before.carrier ? 1 : 0;
      reading_.down_count = before.down_count;
      reading_.up_count = before.up_count;
    } else if (returned) {
      // A new device counts from zero; its birth without carrier is not a flap. If the old one was
      // never seen to go, its end was.
      downs = before.present && before.carrier ? 1 : 0;
    } else if (next.down_count >= before.down_count) {
      downs = next.down_count - before.down_count;
    }
  }
  downs_ += downs;
  last_change_ = now;

  ring::EventRecord record{};
  record.mono_ns = static_cast<std::uint64_t>(now);
  record.kind = static_cast<std::uint16_t>(ring::EventKind::kCarrier);
  record.flags = static_cast<std::uint16_t>(
      (reading_.carrier ? ring::kFlagCarrier : 0) | (first ? ring::kFlagInitial : 0) |
      (gone || (first && !next.present) ? ring::kFlagGone : 0) |
      (returned ? ring::kFlagReturned : 0));
  record.link = link;
  record.path = ring::kNone;
  record.count = static_cast<std::uint32_t>(downs);
  record.value[0] = reading_.down_count;
  record.value[1] = reading_.up_count;
  record.value[2] = static_cast<std::uint64_t>(since);
  record.value[3] = reading_.ifindex;
  sink.event(record);
}

}  // namespace fabric::prober
