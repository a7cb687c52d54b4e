// One random schedule of a comm over paths that lose, delay, repeat and die, alone, by rails or all
// at once, against both cores. In half of them the plugin's policy chooses the paths, and both ends
// are told of them what is wrong, late, contradictory or nothing; it may say so for ever.
//
// Checked: every byte right, each message once and in posted order, no completion before the
// receiver has all, no read of a buffer that the sender's caller has back, no write into one that
// the receiver's caller has back, no chunk on two paths at once. Once faults cease, some paths stay
// dead, often all but one: everything has to arrive over those that live, in bounded time. Then the
// others come back, and each has to carry again (a policy leaves cross-rail paths alone where both
// their rails have paths of their own).
//
// In a third of the schedules all paths are one-sided, in another each connection is of one kind or
// the other. On a stream the receiver asks its core where a chunk goes before a byte of it lands.
// The NICs of a one-sided connection do what NICs may (nic.cpp): bytes land in any order, in parts
// and again, whatever the core thinks, and also for a connection that both ends have given up,
// until the receiver's transport confirms that its queue pair is in the error state. Checked there:
// no write lands after a fence was answered or in a buffer that was handed back, none without a
// posted receive, each with the key of its rail; a stream carries only where no one-sided path has
// a weight; every NIC that landed is known.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/coverage.h"

namespace fabric::sim {

// Plays the schedule of this seed. Empty: all held; otherwise the first thing that did not.
std::string play(std::uint64_t seed, Coverage* coverage = nullptr);

}  // namespace fabric::sim
