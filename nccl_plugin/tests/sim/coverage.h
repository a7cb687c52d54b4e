// What a schedule had in it. The simulator counts, so that a change that keeps it from ever trying
// something is noticed (sim_test.cpp asks that each has happened).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fabric::sim {

enum class Seen : std::uint8_t {
  one_sided,        // all paths are: bytes land whatever the receiver's core thinks
  mixed,            // paths of both kinds, one and the other in turn
  by_policy,        // core/schedule.h and core/reported_down.h choose the paths; else any path does
  loss,             // of a control message
  duplication,      // of one, or of an answer
  late_control,     // one that was delivered before, long after
  late_hello,       // a connection that nobody waits for
  stale_packet,     // of a connection that was retired
  replay,           // a fence's answer left chunks to be sent again
  retired_unasked,  // the receiver gave a path up and said so
  both_ends_at_once,  // gave up the same path, or one each
  partition,          // no path carries anything
  rail_death,         // all paths over one rail of one end
  healed,             // and they came back
  striped,            // one message over several paths
  group,              // a receive of several buffers
  several_ranks,      // share the comm, each with a tag of its own
  guess_failed,       // a message went before a CTS that was another's
  empty_message,
  short_message,        // shorter than its receive
  hint_took_path,       // either end gave up a path because of what it heard
  hint_spared_last,     // the last path was said to be down, and stayed
  hint_older,           // a connection was newer than what was said of its path
  hints_contradict,     // one end says down what the other says is well
  hints_vanish,         // the daemon of one end is gone
  all_without_weight,   // every live path of the sender has weight 0
  only_untrusted,       // or has just come back
  one_left,             // of several paths one alone lives, and all has to arrive
  another_left,         // none that lives then had a connection before, and others had
  black_hole,           // one of the others swallows what is sent, and its ends do not know
  refusal,              // or both ends are told, and whoever dials
  timeout_found,        // an end gave a black hole up
  carried_again,        // every path carried once the others had come back
  last_landed_first,    // the last chunk of a message before another of it
  landed_twice,         // a notification that came twice
  wrote_while_retired,  // a write landed after its connection was given up at both ends
  fence_pending,        // a fence was heard while the old connection could still write
  no_credit,            // chunks waited for a posted receive
  group_wrap,           // the number of the group in the immediate wrapped
  five_nics,            // one message over five receiving NICs or more
  fails_again,          // a chunk that had been sent again was lost again
  fails_third,          // and once more
  kind_changed,         // a chunk was lost on a path of one kind, and went again on another's
  device_source,        // a message from memory that no CPU reads
  device_target,        // a receive into memory that no CPU writes
  waits_for_one_sided,  // a stream is asked for a chunk, and has only such
  registered_copy,      // a message copied into the transport's pool
  // A path is lost whose chunks are not acknowledged, while of a path that was lost before, and in
  // the first three over another rail,
  further_asked,      // the fence has not reached the receiver,
  further_heard,      // the fence waits at the receiver for the old connection's NIC,
  further_answered,   // the answer is on its way,
  further_waiting,    // chunks wait to be sent again (or were acknowledged meanwhile),
  further_resending,  // chunks are on their way again, over the path that is lost now,
  further_two,        // or while fences of two other rails wait for their answers.
  fence_again,        // a path's next connection is lost before the fence of the last is answered
  count,
};
inline constexpr auto kSeenCount = static_cast<std::size_t>(Seen::count);
inline constexpr std::array<const char*, kSeenCount> kSeenNames{
    "one-sided writes",
    "paths of both kinds",
    "paths by policy",
    "control messages lost",
    "repeated",
    "late and again",
    "late hellos",
    "stale packets",
    "replay",
    "retired unasked",
    "both ends at once",
    "partitions",
    "rail deaths",
    "returns",
    "striped messages",
    "grouped receives",
    "several sending ranks",
    "wrong guesses",
    "empty messages",
    "short messages",
    "paths taken by a hint",
    "last paths spared",
    "hints older than the connection",
    "contradictory hints",
    "vanished hints",
    "all weights 0",
    "no path trusted",
    "one path alone",
    "another path than before",
    "black holes",
    "refusing paths",
    "timeout found",
    "all paths carried again",
    "last chunks first",
    "landed twice",
    "writes of connections being retired",
    "fences not answered yet",
    "waits for credits",
    "group numbers that wrapped",
    "five NICs at one message",
    "second failures",
    "third failures",
    "replays on a path of the other kind",
    "device memory sent",
    "device memory filled",
    "streams that may not carry",
    "registered copies",
    "further rails lost before a fence was heard",
    "further rails lost before a fence that was heard was answered",
    "further rails lost before the answer of a fence was here",
    "paths lost before all was sent again",
    "paths lost while they carried what was sent again",
    "third rails lost while two fences waited",
    "paths lost again while their fence waited",
};

struct Coverage {
  std::array<std::uint64_t, kSeenCount> schedules{};  // that had it
};

}  // namespace fabric::sim
