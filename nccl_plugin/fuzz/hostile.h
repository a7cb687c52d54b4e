// Every place of the plugin that reads bytes of a stranger, of a peer or of the daemon, behind one
// function: the fuzzer's target, and a unit test's.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace fabric::hostile {

// The first byte says which reader the rest is for: hello and welcome, handle, steer page, single
// frame bodies, a stream of frames into both cores, or one into cores that let small messages go
// before their CTS. Throws std::logic_error when something was accepted that must not be: what
// is read must survive being written and read again, no chunk may leave the buffers, and what is
// done must be whole.
void feed(std::span<const std::byte> bytes);

// Good examples of each, from the real encoders.
std::vector<std::vector<std::byte>> seeds();

}  // namespace fabric::hostile
