#include "verbs/async_events.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

namespace fabric::verbs {

AsyncEvents::AsyncEvents(std::shared_ptr<Device> device, Error& error)
    : device_(std::move(device)) {
  const int fd = device_->context()->async_fd;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    error = failed("fcntl of the events", device_->name(), errno);
    return;
  }
  usable_ = true;
}

void AsyncEvents::read(std::string& notes) {
  ibv_async_event event{};
  while (usable_ && device_->verbs().get_async_event(device_->context(), &event) == 0) {
    take(event, notes);
    // Always: an object whose event is not acknowledged cannot be destroyed.
    device_->verbs().ack_async_event(&event);
  }
}

void AsyncEvents::take(const ibv_async_event& event, std::string& notes) {
  const auto note = [&](const std::string& where) {
    notes += (notes.empty() ? "" : ", ") + where + " " +
             device_->verbs().event_type_str(event.event_type);
  };
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR: {
      const bool up = event.event_type == IBV_EVENT_PORT_ACTIVE;
      const int port = event.element.port_num;
      ++(up ? counts_.port_up : counts_.port_down);
      if (port > 0 && port <= static_cast<int>(kMostPorts)) {
        health_->set(static_cast<std::uint8_t>(port), up);
      }
      note(device_->name() + ":" + std::to_string(port));
      return;
    }
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_GID_CHANGE:
      ++counts_.address_change;  // each dial reads them anyway
      return;
    case IBV_EVENT_DEVICE_FATAL:
      ++counts_.fatal;
      device_->set_gone();
      note(device_->name());
      return;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      ++counts_.queue_error;  // its completions say whose
      return;
    default:
      ++counts_.other;
  }
}

}  // namespace fabric::verbs
