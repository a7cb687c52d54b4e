// One random schedule of a comm over paths that lose, delay, repeat and die, alone, by rails or all
// at once, against both cores. In half of them the plugin's policy chooses the paths, and both ends
// are told of them what is wrong, late, contradictory or nothing; it may say so for ever.
//
// Checked: every byte right, each message once and in posted order, no completion before the
// receiver has all, no read of a buffer that the sender's caller has back, no write into one that
// the receiver's caller has back, no chunk on two paths at once. Once faults cease, some paths stay
// dead, often all but one: everything has to arrive over those that live, in bounded time. Then the
// others come back, and each has to carry again (a policy leaves crossings alone where both their
// rails have paths of their own).
//
// Half of the schedules move bytes as a stream does (the receiver asks its core where a chunk goes
// before a byte of it lands), half as one-sided writes do (bytes land while the connection stands,
// whatever the core thinks; the core hears afterwards). The second kind forgives nothing: a chunk
// sent again while its first copy can still land is a corrupted buffer.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/coverage.h"

namespace fabric::sim {

// Plays the schedule of this seed. Empty: all held; otherwise the first thing that did not.
std::string play(std::uint64_t seed, Coverage* coverage = nullptr);

}  // namespace fabric::sim
