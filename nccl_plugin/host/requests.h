// What NCCL holds of a Net: comms, and requests under way.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "host/control.h"
#include "host/landed_buffers.h"
#include "host/transport.h"

namespace fabric {

class ListenComm {
 public:
  std::shared_ptr<host::Listener> listener;
};

class Request {
 public:
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
  std::uint64_t number = 0;  // sequence or group
  std::size_t size = 0;      // of a send, as posted
  std::size_t count = 1;
  std::vector<std::unique_ptr<host::Flush>> flushes;                // neither a send nor a receive
  std::array<std::shared_ptr<const void>, core::kMaxSlots> holds;   // its buffers' registrations
  std::array<std::span<const std::byte>, core::kMaxSlots> buffers;  // of a receive
};

namespace host {

// Receives that are not done, of one comm. NCCL has kMaxRequests at most; one-sided paths cannot
// tell more apart.
inline constexpr std::size_t kMaxPosted = core::kLandingGroups;

// Requests of one comm; calls for one comm do not overlap.
class RequestPool {
 public:
  Request* get() {
    if (free_.empty()) {
      return all_.emplace_back(std::make_unique<Request>()).get();
    }
    Request* request = free_.back();
    free_.pop_back();
    return request;
  }
  void put(Request* request) {
    *request = {};
    free_.push_back(request);
  }
  [[nodiscard]] std::size_t out() const { return all_.size() - free_.size(); }

 private:
  std::vector<std::unique_ptr<Request>> all_;
  std::vector<Request*> free_;
};

}  // namespace host

class SendComm {
 public:
  std::shared_ptr<host::Sender> sender;
  host::RequestPool requests;
};

class RecvComm {
 public:
  std::shared_ptr<host::Receiver> receiver;
  host::RequestPool requests;
  host::LandedBuffers landed;  // of receives that were reported done
};

}  // namespace fabric
