// Prints the ring's layout as JSON, for the test that compares it with fabricd/probes/layout.py.
#include <linux/ptp_clock.h>

#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/wire.h"
#include "fabric/clock_ports.h"
#include "fabric/ring.h"

namespace {

using nlohmann::ordered_json;
using namespace fabric;

#define FIELD(type, name)                                              \
  {                                                                    \
#name, {                                                           \
      {"offset", offsetof(type, name)}, { "size", sizeof(type::name) } \
    }                                                                  \
  }

ordered_json structs() {
  using ring::EventRecord;
  using ring::LinkRow;
  using ring::PathRow;
  using ring::RingHeader;
  using ring::SampleRecord;
  return {
      {"RingHeader",
       {{"size", sizeof(RingHeader)},
        {"fields",
         {FIELD(RingHeader, magic),
          FIELD(RingHeader, version),
          FIELD(RingHeader, header_size),
          FIELD(RingHeader, file_size),
          FIELD(RingHeader, link_row_size),
          FIELD(RingHeader, path_row_size),
          FIELD(RingHeader, max_links),
          FIELD(RingHeader, max_paths),
          FIELD(RingHeader, event_slots),
          FIELD(RingHeader, sample_slots),
          FIELD(RingHeader, path_offset),
          FIELD(RingHeader, event_offset),
          FIELD(RingHeader, sample_offset),
          FIELD(RingHeader, pid),
          FIELD(RingHeader, flags),
          FIELD(RingHeader, incarnation),
          FIELD(RingHeader, start_ns),
          FIELD(RingHeader, heartbeat_ns),
          FIELD(RingHeader, event_head),
          FIELD(RingHeader, sample_head),
          FIELD(RingHeader, config_epoch),
          FIELD(RingHeader, link_count),
          FIELD(RingHeader, path_count),
          FIELD(RingHeader, misses),
          FIELD(RingHeader, link_interval_ns),
          FIELD(RingHeader, clock_train_hz),
          FIELD(RingHeader, due_times_refused),
          FIELD(RingHeader, sent),
          FIELD(RingHeader, received),
          FIELD(RingHeader, stalls),
          FIELD(RingHeader, stall_ns),
          FIELD(RingHeader, stall_max_ns),
          FIELD(RingHeader, control_errors),
          FIELD(RingHeader, refused),
          FIELD(RingHeader, clock_read_ns),
          FIELD(RingHeader, rdma_link_count),
          FIELD(RingHeader, rdma_path_count)}}}},
      {"LinkRow",
       {{"size", sizeof(LinkRow)},
        {"fields",
         {FIELD(LinkRow, seq), FIELD(LinkRow, netdev), FIELD(LinkRow, address),
          FIELD(LinkRow, port), FIELD(LinkRow, bind_errno), FIELD(LinkRow, flags),
          FIELD(LinkRow, ifindex), FIELD(LinkRow, phc), FIELD(LinkRow, carrier_down_count),
          FIELD(LinkRow, carrier_up_count), FIELD(LinkRow, last_change_ns), FIELD(LinkRow, downs),
          FIELD(LinkRow, read_ns), FIELD(LinkRow, last_heard_ns), FIELD(LinkRow, sent),
          FIELD(LinkRow, received), FIELD(LinkRow, send_errors)}}}},
      {"PathRow",
       {{"size", sizeof(PathRow)},
        {"fields",
         {FIELD(PathRow, seq),
          FIELD(PathRow, address),
          FIELD(PathRow, port),
          FIELD(PathRow, link),
          FIELD(PathRow, flags),
          FIELD(PathRow, host_id),
          FIELD(PathRow, awake_us),
          FIELD(PathRow, interval_ns),
          FIELD(PathRow, peer_interval_ns),
          FIELD(PathRow, sent),
          FIELD(PathRow, received),
          FIELD(PathRow, rx_lost),
          FIELD(PathRow, tx_lost),
          FIELD(PathRow, duplicates),
          FIELD(PathRow, restarts),
          FIELD(PathRow, rx_missed),
          FIELD(PathRow, tx_missed),
          FIELD(PathRow, rtt_last_ns),
          FIELD(PathRow, rtt_min_ns),
          FIELD(PathRow, rtt_smoothed_ns),
          FIELD(PathRow, last_heard_ns),
          FIELD(PathRow, peer_incarnation),
          FIELD(PathRow, rx_bitmap),
          FIELD(PathRow, tx_bitmap),
          FIELD(PathRow, acked_ns),
          FIELD(PathRow, said_ns),
          FIELD(PathRow, due_ns),
          FIELD(PathRow, late_ns)}}}},
      {"EventRecord",
       {{"size", sizeof(EventRecord)},
        {"fields",
         {FIELD(EventRecord, index), FIELD(EventRecord, mono_ns), FIELD(EventRecord, kind),
          FIELD(EventRecord, flags), FIELD(EventRecord, link), FIELD(EventRecord, path),
          FIELD(EventRecord, count), FIELD(EventRecord, config), FIELD(EventRecord, value)}}}},
      {"SampleRecord",
       {{"size", sizeof(SampleRecord)},
        {"fields",
         {FIELD(SampleRecord, index), FIELD(SampleRecord, mono_ns), FIELD(SampleRecord, path),
          FIELD(SampleRecord, flags), FIELD(SampleRecord, config), FIELD(SampleRecord, local_seq),
          FIELD(SampleRecord, peer_seq), FIELD(SampleRecord, t1), FIELD(SampleRecord, t2),
          FIELD(SampleRecord, t3), FIELD(SampleRecord, t4), FIELD(SampleRecord, clock_message)}}}},
  };
}

// Of clocksync/page/ports.py.
ordered_json ports() {
  using namespace clock_ports;
  return {{"magic", kMagic},
          {"version", kVersion},
          {"size", kFileSize},
          {"salt", kSalt},
          {"used", sizeof(Page)},
          {"records_at", offsetof(Page, record)},
          {"record", sizeof(Record)},
          {"entries_at", offsetof(Record, entry)},
          {"entries", kEntries},
          {"entry", sizeof(Entry)},
          {"least_port", kLeastPort},
          {"fields",
           {FIELD(Entry, own), FIELD(Entry, peer), FIELD(Entry, host_id), FIELD(Entry, peer_port),
            FIELD(Entry, port)}}};
}

ordered_json constants() {
  using namespace ring;
  return {{"RING_MAGIC", kRingMagic},
          {"RING_VERSION", kRingVersion},
          {"HEADER_SIZE", kHeaderSize},
          {"MAX_LINKS", kMaxLinks},
          {"MAX_PATHS", kMaxPaths},
          {"EVENT_SLOTS", kEventSlots},
          {"SAMPLE_SLOTS", kSampleSlots},
          {"NONE", kNone},
          {"LINK_OFFSET", kLinkOffset},
          {"PATH_OFFSET", kPathOffset},
          {"EVENT_OFFSET", kEventOffset},
          {"SAMPLE_OFFSET", kSampleOffset},
          {"RING_FILE_SIZE", kRingFileSize},
          {"KIND_CARRIER", static_cast<int>(EventKind::kCarrier)},
          {"KIND_MISS", static_cast<int>(EventKind::kMiss)},
          {"KIND_HEARD", static_cast<int>(EventKind::kHeard)},
          {"KIND_STALL", static_cast<int>(EventKind::kStall)},
          {"KIND_PEER_RESTART", static_cast<int>(EventKind::kPeerRestart)},
          {"KIND_RDMA_PORT", static_cast<int>(EventKind::kRdmaPort)},
          {"FLAG_INCONCLUSIVE", kFlagInconclusive},
          {"FLAG_TX", kFlagTx},
          {"FLAG_FIRST", kFlagFirst},
          {"FLAG_PEER_STALLED", kFlagPeerStalled},
          {"FLAG_CARRIER", kFlagCarrier},
          {"FLAG_INITIAL", kFlagInitial},
          {"FLAG_GONE", kFlagGone},
          {"FLAG_RETURNED", kFlagReturned},
          {"SAMPLE_HAS_OUT", kSampleHasOut},
          {"SAMPLE_HAS_BACK", kSampleHasBack},
          {"SAMPLE_HW_LOCAL", kSampleHwLocal},
          {"SAMPLE_HW_PEER", kSampleHwPeer},
          {"SAMPLE_OUT_TRAIN_SHIFT", kSampleOutTrainShift},
          {"SAMPLE_BACK_TRAIN_SHIFT", kSampleBackTrainShift},
          {"REFUSALS", kRefusals},
          {"HEADER_RUNNING", kHeaderRunning},
          {"HEADER_REALTIME", kHeaderRealtime},
          {"HEADER_LOCKED", kHeaderLocked},
          {"HEADER_SYNCHRONIZED", kHeaderSynchronized},
          {"LINK_PRESENT", kLinkPresent},
          {"LINK_BOUND", kLinkBound},
          {"LINK_CARRIER", kLinkCarrier},
          {"LINK_HW_STAMPS", kLinkHwStamps},
          {"LINK_RDMA", kLinkRdma},
          {"LINK_SOURCE_SHIFT", kLinkSourceShift},
          {"PATH_CLOCK", kPathClock},
          {"PATH_ESTABLISHED", kPathEstablished},
          {"PATH_GONE", kPathGone},
          {"PATH_BY_DUE_TIME", kPathByDueTime},
          {"PATH_PORT_REFUSED", kPathPortRefused},
          {"PATH_RDMA", kPathRdma},
          {"PATH_PEER_RDMA", kPathPeerRdma},
          {"PATH_PEER_MOVES_SHIFT", kPathPeerMovesShift},
          {"PATH_PORT_SHIFT", kPathPortShift},
          {"WIRE_MAGIC", prober::kWireMagic},
          {"WIRE_VERSION", prober::kWireVersion},
          {"WIRE_SIZE", prober::kWireSize}};
}

// What fabricd/clock/phc.py speaks to the kernel.
ordered_json ptp() {
  return {{"PTP_SYS_OFFSET", PTP_SYS_OFFSET},
          {"PTP_SYS_OFFSET_PRECISE", PTP_SYS_OFFSET_PRECISE},
          {"PTP_SYS_OFFSET_EXTENDED", PTP_SYS_OFFSET_EXTENDED},
          {"PLAIN_SIZE", sizeof(ptp_sys_offset)},
          {"PRECISE_SIZE", sizeof(ptp_sys_offset_precise)},
          {"EXTENDED_SIZE", sizeof(ptp_sys_offset_extended)},
          {"MOST_SAMPLES", PTP_MAX_SAMPLES},
          {"time", sizeof(ptp_clock_time)},
          {"time.nsec", offsetof(ptp_clock_time, nsec)},
          {"plain.ts", offsetof(ptp_sys_offset, ts)},
          {"extended.ts", offsetof(ptp_sys_offset_extended, ts)},
          {"extended.clockid", offsetof(ptp_sys_offset_extended, rsv)},
          {"precise.monoraw", offsetof(ptp_sys_offset_precise, sys_monoraw)}};
}

}  // namespace

int main() {  // NOLINT(bugprone-exception-escape): a dump that fails may die of it
  const ordered_json out = {
      {"structs", structs()}, {"constants", constants()}, {"ptp", ptp()}, {"clock_ports", ports()}};
  std::puts(out.dump(1).c_str());
  return 0;
}
