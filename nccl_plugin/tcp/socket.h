// The socket calls that the transport makes. Everything is non-blocking.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "core/ack_timeout.h"
#include "host/address.h"
#include "host/fd.h"
#include "host/params.h"
#include "host/rails.h"

namespace fabric::tcp {

using host::Address;
using host::Fd;
using host::Params;
using host::Rail;

// Of the other end; absent when there is none.
Address far_end(int fd);

// A listener on the rail's address and device; on its port if that is free, otherwise on any, which
// is written to it.
Fd listen_on(Rail& rail, std::string& error);

// Starts connecting from the rail's address and device. No descriptor: errno says why.
Fd start_connect(const Rail& rail, const Address& to, const Params& params);
// 0, or the errno of a finished connect.
int connect_error(int fd);

enum class Purpose { control, data };
void tune(int fd, Purpose purpose, const Params& params);
// Closing it sends a reset, and what the kernel still holds of it is lost.
void reset_on_close(int fd);

// What the kernel may hold unsent before it takes no more.
void set_unsent_limit(int fd, std::size_t bytes);
// So much must have come in before anybody is woken for it (reading takes less as well). The kernel
// keeps to less where its buffer is smaller, and wakes at the end of the connection in any case.
void set_low_water(int fd, std::size_t bytes);

// TCP_INFO. A connection that is held is pushed: a full queue of our own host took its last packet,
// and the kernel waits 200 ms before it tries again (tcp_check_probe_timer) unless it is told to.
std::optional<core::PathSample> sample(int fd);
// What has come is acknowledged now, and what is yet to come not while it is read: that would be a
// packet out (some 2 us) before the reader can do anything about what it has read.
void acknowledge(int fd);
// Of ours, unacknowledged or unsent in this socket.
std::size_t waiting_bytes(int fd);
}  // namespace fabric::tcp
