// Asynchronous events: of which port, how often, and that each is acknowledged.
#include "verbs/async_events.h"

#include "verbs/tests/kit.h"

using namespace fabric::verbs;

TEST_CASE("events: a port's event counts for that port alone") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  nic.ports.resize(2);
  Error error;
  AsyncEvents events(test::open("a0"), error);
  REQUIRE(events.descriptor() >= 0);
  std::string notes;
  events.read(notes);  // none: returns at once
  CHECK(notes.empty());
  nic.raise(IBV_EVENT_PORT_ERR, 2);
  events.read(notes);
  CHECK(events.health()->up(1));
  CHECK(!events.health()->up(2));
  CHECK(notes == "a0:2 port error");
  nic.raise(IBV_EVENT_PORT_ACTIVE, 2);
  nic.raise(IBV_EVENT_PORT_ERR, 1);
  nic.raise(IBV_EVENT_GID_CHANGE, 1);
  events.read(notes);
  CHECK(!events.health()->up(1));
  CHECK(events.health()->up(2));
  CHECK(events.counts().port_down == 2);
  CHECK(events.counts().port_up == 1);
  CHECK(events.counts().address_change == 1);
  CHECK(nic.events_unacknowledged() == 0);
}

TEST_CASE("events: ports that no device has change nothing") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  Error error;
  AsyncEvents events(test::open("a0"), error);
  std::string notes;
  for (const int port : {0, -1, 5, 1000}) {
    nic.raise(IBV_EVENT_PORT_ERR, port);
  }
  events.read(notes);
  for (std::uint8_t port = 0; port < 6; ++port) {
    CHECK(events.health()->up(port));
  }
  CHECK(events.counts().port_down == 4);
}

TEST_CASE("events: a fatal one ends the device; a queue's error is its completions' to tell") {
  fake::Network network;
  fake::Nic& nic = network.add_nic("a0", "10.0.0.1");
  const auto device = test::open("a0");
  Error error;
  AsyncEvents events(device, error);
  std::string notes;
  nic.raise(IBV_EVENT_QP_FATAL);
  nic.raise(IBV_EVENT_SRQ_ERR);
  events.read(notes);
  CHECK(!device->gone());
  CHECK(events.counts().queue_error == 1);
  CHECK(events.counts().other == 1);
  nic.raise(IBV_EVENT_DEVICE_FATAL);
  events.read(notes);
  CHECK(device->gone());
}
