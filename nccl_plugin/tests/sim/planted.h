// The cores with one fault planted at a time: does the simulator notice? planted.cmake writes
// copies of core/*.cpp in which each of these faults can be switched on.
#pragma once

#include <array>
#include <vector>

#include "tests/sim/coverage.h"

namespace fabric::sim {

enum class Fault {
  none,
  answer_of_another_fence,   // the answer to an earlier fence ends the present one
  answer_taken_for_present,  // and counts as the answer to the present one
  replay_before_fence,       // chunks of a failed path go out again without waiting for the answer
  replay_of_living,          // so do those that went out on the path's next connection
  nothing_replayed,          // the chunks that the answer does not name are forgotten
  done_when_written,         // a send is done once its bytes are out
  done_while_read,           // a send is done though a transport still reads its buffer
  copy_omitted,              // small messages are not copied
  early_cts_dropped,         // a CTS that overtook another is lost
  old_connection_admitted,   // an epoch below the fence is admitted
  old_chunk_placed,          // a chunk of a retired connection is placed
  duplicate_counted,         // a chunk that is here already counts again
  fence_leaves_open,         // the receiver answers a fence without retiring the connection
  retired_connection_returns,  // a connection that the receiver gave up is admitted again
  tag_not_looked_at,           // a message goes into whichever slot is free
  single_tag_not_looked_at,    // so it does where the receive has one slot
  guess_of_another_tag,        // a message goes eagerly though the last receive had another tag
  guess_not_compared,          // the receiver does not compare the tag of what came eagerly
  tag_breaks_nothing,          // another tag is no break to the sender
  report_leaves_out,           // a fence's answer names only some of the chunks that are there
  newer_connection_closed,     // a hint takes a connection that was made after it
  last_path_closed,            // or the last one
  weightless_path_unused,      // a path without weight carries nothing, though there is no other
  untrusted_path_unused,       // nor does one that has just come back
  not_taken_back,      // what went eagerly stays where a receive of several slots turned out to be
  overtaking_dropped,  // an acknowledgement that overtook its CTS is lost
  lost_cts_missed,     // a state says that a group is done, its CTS was lost, nobody notices
  era_not_looked_at,   // what was sent eagerly in vain is taken
  replay_waits,        // what a failed path had waits until that path is back
  cross_rail_unused,   // a path between different rails carries nothing, though there is no other
  fence_not_awaited,   // a fence is answered while the old connection's NIC may still write
  admitted_too_early,  // and a new connection is taken
  old_landing_counts,  // what landed on a retired connection counts
  landing_lost,        // what lands while a connection is retired does not
  landing_counts_twice,  // a notification that comes twice counts twice
  whole_without_last,    // a message is whole before its last chunk told its size
  group_not_wrapped,     // the number in the immediate is taken for the group's
  credits_overdrawn,     // more chunks go out than receives are posted
  credits_kept,          // the receiver tells its sender too late that it may go on
  key_of_other_rail,     // a write carries the key of the sender's rail
  region_of_caller,      // a copy is sent as if it lay in the caller's memory
  landed_rails_missed,   // which NICs landed is not noted
  stream_beside,         // a stream carries beside a one-sided path
  device_memory_copied,  // memory that the CPU may not read is copied
  device_on_stream,      // or a stream carries it
  device_guessed,        // the receiver takes what went eagerly to belong there
  // Of a core that knows one loss at a time (kFurther):
  resend_not_tracked,  // what was sent again is lost for good where it is lost again
  resend_forgotten,    // so is what waits to be sent again when another path fails
  one_fence_only,      // a further loss takes the place of the fence under way
  answer_for_all,      // an answer ends the fences of all rails
};

struct Planted {
  Fault fault;
  const char* name;
};

inline constexpr std::array kPlanted{
    Planted{Fault::answer_of_another_fence, "the answer to an earlier fence ends the present one"},
    Planted{Fault::answer_taken_for_present,
            "the answer to an earlier fence is taken for this one"},
    Planted{Fault::replay_before_fence, "replay before the fence is answered"},
    Planted{Fault::replay_of_living, "replay of what is on a living connection"},
    Planted{Fault::nothing_replayed, "nothing is replayed"},
    Planted{Fault::done_when_written, "a send is done once written"},
    Planted{Fault::done_while_read, "a send is done while its buffer is read"},
    Planted{Fault::copy_omitted, "small messages are not copied"},
    Planted{Fault::early_cts_dropped, "a CTS that came early is dropped"},
    Planted{Fault::old_connection_admitted, "a fenced epoch is admitted"},
    Planted{Fault::old_chunk_placed, "a chunk of a retired connection is placed"},
    Planted{Fault::duplicate_counted, "a duplicate counts again"},
    Planted{Fault::fence_leaves_open, "a fence is answered without retiring"},
    Planted{Fault::retired_connection_returns, "a retired connection is admitted again"},
    Planted{Fault::tag_not_looked_at, "the tag is not looked at"},
    Planted{Fault::single_tag_not_looked_at, "the tag of a single receive is not looked at"},
    Planted{Fault::guess_of_another_tag, "a message of another tag goes eagerly"},
    Planted{Fault::guess_not_compared, "the tag of what came eagerly is not compared"},
    Planted{Fault::tag_breaks_nothing, "another tag is no break to the sender"},
    Planted{Fault::report_leaves_out, "a report leaves chunks out"},
    Planted{Fault::newer_connection_closed, "a hint takes a newer connection"},
    Planted{Fault::last_path_closed, "a hint takes the last path"},
    Planted{Fault::weightless_path_unused, "a path without weight is never used"},
    Planted{Fault::untrusted_path_unused, "an untrusted path is never used"},
    Planted{Fault::not_taken_back, "what went eagerly in vain is not taken back"},
    Planted{Fault::overtaking_dropped, "an acknowledgement that came early is dropped"},
    Planted{Fault::lost_cts_missed, "a CTS that was lost is not inferred"},
    Planted{Fault::era_not_looked_at, "what was sent eagerly in vain is taken"},
    Planted{Fault::replay_waits, "what a failed path had waits for its return"},
    Planted{Fault::cross_rail_unused, "a cross-rail path alone is never used"},
    Planted{Fault::fence_not_awaited, "a fence is answered while the old NIC may write"},
    Planted{Fault::admitted_too_early, "a connection is admitted while the old NIC may write"},
    Planted{Fault::old_landing_counts, "a landing on a retired connection counts"},
    Planted{Fault::landing_lost, "a landing while a connection is retired does not count"},
    Planted{Fault::landing_counts_twice, "a landing counts twice"},
    Planted{Fault::whole_without_last, "a message is whole without its last chunk"},
    Planted{Fault::group_not_wrapped, "the group in the immediate is not wrapped"},
    Planted{Fault::credits_overdrawn, "more writes than credits"},
    Planted{Fault::credits_kept, "credits are kept back"},
    Planted{Fault::key_of_other_rail, "the key of another rail"},
    Planted{Fault::region_of_caller, "a copy with the region of its caller's memory"},
    Planted{Fault::landed_rails_missed, "the NICs that landed are not noted"},
    Planted{Fault::stream_beside, "a stream carries beside a one-sided path"},
    Planted{Fault::device_memory_copied, "device memory is copied"},
    Planted{Fault::device_on_stream, "a stream carries device memory"},
    Planted{Fault::device_guessed, "a receive into device memory is guessed"},
};

// Right where one path is lost and its chunks are sent again; wrong where another follows
// meanwhile.
struct Further {
  Fault fault;
  const char* name;
  std::vector<Seen> when;  // a schedule without any of these cannot show it
};
inline const std::array kFurther{
    Further{Fault::resend_not_tracked, "what was sent again is not", {Seen::further_resending}},
    Further{Fault::resend_forgotten,
            "what waits to be sent again is forgotten",
            {Seen::further_waiting}},
    Further{Fault::one_fence_only,
            "a further loss takes the place of the fence under way",
            {Seen::further_asked, Seen::further_heard, Seen::further_answered}},
    Further{Fault::answer_for_all,
            "one answer ends all fences",
            {Seen::further_asked, Seen::further_heard, Seen::further_answered}},
};

inline Fault planted = Fault::none;  // the one switched on
inline bool is(Fault fault) { return planted == fault; }

}  // namespace fabric::sim
