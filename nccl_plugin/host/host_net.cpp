#include "host/host_net.h"
#include "host/monotonic.h"

#include <algorithm>
#include <mutex>

#include "host/context.h"
#include "host/control.h"
#include "host/regions.h"
#include "host/requests.h"
#include "src/cancel.h"

namespace fabric {

Result cancel(SendComm* comm) {
  const std::unique_ptr<SendComm> owned(comm);
  owned->sender->cancel();
  return Result::success;
}

namespace host {

namespace {

class HostNet final : public Net {
 public:
  HostNet(const Params& params, std::optional<std::vector<Rail>> rails, Parts parts)
      : given_(std::move(rails)), parts_(std::move(parts)) {
    context_.params = params;
    context_.clock.calibrate();  // once: comms may outlive a finalize
  }
  ~HostNet() override { shut_down(); }

  Result init(Logger logger) override;
  Result finalize() override;
  Result devices(int* count) override;
  Result properties(int device, const DeviceProperties** out) override;
  Result listen(int device, std::span<std::byte, kHandleSize> handle, ListenComm** out) override;
  Result connect(int device, std::span<const std::byte, kHandleSize> handle, int traffic_class,
                 SendComm** out) override;
  Result accept(ListenComm* comm, RecvComm** out) override;
  Result close(ListenComm* comm) override;
  Result close(SendComm* comm) override;
  Result close(RecvComm* comm) override;
  Result isend(SendComm* comm, const void* data, std::size_t size, int tag, Request** out,
               Region* region) override;
  Result irecv(RecvComm* comm, std::span<const ReceiveSlot> slots, bool optional_completion,
               Request** out) override;
  Result register_memory(const MemoryRange& range, Region** out) override;
  Result deregister_memory(Region* region) override;
  Result iflush(RecvComm* comm, std::span<const FlushRange> ranges, Request** out) override;
  Result test(Request* request, bool* done, int* sizes) override;
  Result wait(int timeout_us) override;
  Result wake() override;

  Stats& stats() { return context_.stats; }
  [[nodiscard]] const Stats& stats() const { return context_.stats; }

 private:
  Result start();
  void shut_down();
  Result test_receive(Request* request, bool* done, int* sizes);
  Result test_flush(Request* request, bool* done);
  std::vector<FlushBuffer> flush_buffers(std::span<const FlushRange> ranges);
  [[nodiscard]] bool usable(const Registration& registration, const char* call) const;

  std::optional<std::vector<Rail>> given_;
  const Parts parts_;
  Context context_;
  Regions::Transports transports_;  // made once: links outlive a finalize
  Regions regions_;
  std::mutex mutex_;  // init and finalize
  int users_ = 0;
  std::unique_ptr<Control> control_;
  std::vector<DeviceProperties> properties_;
};

Result HostNet::init(Logger logger) {
  const std::scoped_lock lock(mutex_);
  if (users_ == 0 && control_ == nullptr) {
    context_.logger = logger;
    const Result result = start();
    if (result != Result::success) {
      return result;
    }
  }
  ++users_;
  return Result::success;
}

Result HostNet::start() {
  FoundRails found = given_ ? FoundRails{*given_, {}, "", ""} : find_rails(context_.params);
  std::vector<Rail>& rails = found.rails;
  if (!found.notes.empty()) {
    context_.say(LogLevel::warn, found.notes);
  }
  if (!found.remarks.empty()) {
    context_.say(LogLevel::info, found.remarks);
  }
  context_.rails.set_own_addresses(std::move(found.own_addresses));
  context_.fixed = given_.has_value();
  context_.incarnation = random_number();
  context_.run_incarnation = run_incarnation_of(context_.params.run_incarnation);
  context_.ended.store(false);
  if (rails.empty()) {
    context_.say(LogLevel::warn, "no usable network device");
    return Result::system_error;
  }
  context_.params.complaints +=
      set_standby(context_.params.standby, rails, context_.policy.backup_of, context_.shown);
  context_.rails.assign(rails);
  context_.policy.stripe = context_.params.stripe;
  if (context_.params.wire_max < kWireVersionChallenge && !context_.params.unproven) {
    context_.params.complaints += "FABRIC_WIRE=" + std::to_string(context_.params.wire_max) +
                                  " has no challenge, it needs FABRIC_UNPROVEN=1; ";
    context_.params.wire_max = kWireVersion;
  }
  if (transports_.empty()) {
    transports_ = parts_.transports(context_);
    for (const auto& transport : transports_) {
      context_.memory = context_.memory == nullptr ? transport->memory() : context_.memory;
    }
  }
  auto control = std::make_unique<Control>(context_, parts_, transports_);
  context_.wake_control = [raw = control.get()] { raw->wake(); };
  const std::string no_page = context_.stats.open(context_.params, rails, monotonic_ns());
  const std::string error = control->open();
  if (!error.empty()) {
    context_.stats.close();
    context_.say(LogLevel::warn, error);
    return Result::system_error;
  }
  properties_.clear();
  std::string names;
  for (const Rail& rail : context_.rails) {
    names += " " + rail.name + " " + rail.address.text();
    if (properties_.size() == context_.shown) {
      names += " (stands by)";
      continue;
    }
    DeviceProperties& device = properties_.emplace_back();
    device.name = rail.name;
    device.pci_path = rail.pci_path;
    device.guid = rail.guid;
    device.speed_mbps = rail.speed_mbps;
    device.memory_kinds = Regions::kinds(transports_, context_.shown);
  }
  control->start();  // from here on it writes the rails' addresses
  control_ = std::move(control);
  context_.say(LogLevel::info, "rails:" + names);
  context_.say(LogLevel::info, describe(context_.params));
  if (!context_.params.complaints.empty()) {
    context_.say(LogLevel::warn, "defaults are used: " + context_.params.complaints);
  }
  if (context_.params.unproven) {
    context_.say(
        LogLevel::warn,
        "FABRIC_UNPROVEN=1: peers that answer no challenge are let in. Whoever records one "
        "of their connections can end this job. Unset it once all hosts have this release");
  }
  if (!no_page.empty()) {
    context_.say(LogLevel::info, "no stats page: " + no_page);
  }
  return Result::success;
}

void HostNet::shut_down() {
  if (control_ != nullptr) {
    control_->stop();
    context_.ended.store(true);
    context_.wake_control = [] {};  // comms may be closed after finalize
    control_.reset();
    context_.stats.close();
  }
}

Result HostNet::finalize() {
  const std::scoped_lock lock(mutex_);
  if (users_ == 0) {
    return Result::invalid_usage;
  }
  if (--users_ == 0) {
    shut_down();
  }
  return Result::success;
}

Result HostNet::devices(int* count) {
  *count = static_cast<int>(properties_.size());
  return Result::success;
}

Result HostNet::properties(int device, const DeviceProperties** out) {
  if (device < 0 || static_cast<std::size_t>(device) >= properties_.size()) {
    return Result::invalid_argument;
  }
  *out = &properties_[static_cast<std::size_t>(device)];
  return Result::success;
}

Result HostNet::listen(int device, std::span<std::byte, kHandleSize> handle, ListenComm** out) {
  if (control_ == nullptr || device < 0 || static_cast<std::size_t>(device) >= context_.shown) {
    return Result::invalid_argument;
  }
  Handle made;
  auto comm = std::make_unique<ListenComm>();
  comm->listener = control_->listen(static_cast<std::size_t>(device), made);
  encode(made, handle);
  *out = comm.release();
  return Result::success;
}

Result HostNet::connect(int device, std::span<const std::byte, kHandleSize> handle,
                        int /*traffic_class*/, SendComm** out) {
  *out = nullptr;
  const auto decoded = decode_handle(handle);
  if (!decoded) {
    context_.say(LogLevel::warn, "connect: " + handle_fault(handle));
    return Result::invalid_argument;
  }
  if (control_ == nullptr || device < 0 || static_cast<std::size_t>(device) >= context_.shown) {
    return Result::invalid_argument;
  }
  auto comm = std::make_unique<SendComm>();
  std::string why;
  comm->sender = control_->connect(static_cast<std::size_t>(device), *decoded, why);
  if (comm->sender == nullptr) {
    context_.say(LogLevel::warn, "connect: " + why);
    return Result::remote_error;
  }
  *out = comm.release();
  return Result::success;
}

Result HostNet::accept(ListenComm* comm, RecvComm** out) {
  *out = nullptr;
  if (control_ == nullptr) {
    return Result::invalid_usage;  // after finalize
  }
  std::shared_ptr<host::Receiver> receiver;
  const Result result = control_->accept(comm->listener, receiver);
  if (receiver != nullptr) {
    auto made = std::make_unique<RecvComm>();
    made->receiver = std::move(receiver);
    *out = made.release();
  }
  return result;
}

Result HostNet::close(ListenComm* comm) {
  const std::unique_ptr<ListenComm> owned(comm);
  if (control_ != nullptr) {
    control_->close(owned->listener);
  }
  return Result::success;
}

Result HostNet::close(SendComm* comm) {
  const std::unique_ptr<SendComm> owned(comm);
  owned->sender->close();
  return Result::success;
}

Result HostNet::close(RecvComm* comm) {
  const std::unique_ptr<RecvComm> owned(comm);
  owned->receiver->close();
  return Result::success;
}

// Of device memory nothing else than its registration is of use.
bool HostNet::usable(const Registration& registration, const char* call) const {
  if (registration.device && registration.region == nullptr) {
    context_.say(LogLevel::warn,
                 std::string(call) + ": device memory outside of what its region registered");
    return false;
  }
  return true;
}

Result HostNet::isend(SendComm* comm, const void* data, std::size_t size, int tag, Request** out,
                      Region* region) {
  *out = nullptr;
  bool taken = false;
  core::Sequence sequence = 0;
  Registration registration;
  if (context_.memory != nullptr && size != 0) {
    registration = regions_.of(transports_, region, const_cast<void*>(data), size);
  }
  if (!usable(registration, "isend")) {
    return Result::invalid_argument;
  }
  const Result result = comm->sender->post(data, size, tag, taken, sequence,
                                           {registration.region, true, registration.device});
  if (taken) {
    Request* request = comm->requests.get();
    *request = {};
    request->send = comm;
    request->number = sequence;
    request->size = size;
    request->holds[0] = std::move(registration.hold);
    *out = request;
  }
  return result;
}

Result HostNet::irecv(RecvComm* comm, std::span<const ReceiveSlot> slots,
                      bool /*optional_completion*/, Request** out) {
  *out = nullptr;
  if (slots.empty() || slots.size() > static_cast<std::size_t>(kMaxGroupedReceives)) {
    return Result::invalid_argument;
  }
  if (comm->requests.out() >= kMaxPosted) {
    return Result::success;  // not yet
  }
  bool taken = false;
  core::GroupId group = 0;
  std::vector<Registration> registrations;
  if (context_.memory != nullptr) {
    for (const ReceiveSlot& slot : slots) {
      registrations.push_back(regions_.of(transports_, slot.region, slot.data, slot.size));
      if (!usable(registrations.back(), "irecv")) {
        return Result::invalid_argument;
      }
    }
  }
  const Result result = comm->receiver->post(slots, taken, group, registrations);
  if (taken) {
    Request* request = comm->requests.get();
    *request = {};
    request->receive = comm;
    request->number = group;
    request->count = slots.size();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      request->buffers[i] = {static_cast<const std::byte*>(slots[i].data), slots[i].size};
    }
    for (std::size_t i = 0; i < registrations.size(); ++i) {
      request->holds[i] = std::move(registrations[i].hold);
    }
    *out = request;
  }
  return result;
}

Result HostNet::register_memory(const MemoryRange& range, Region** out) {
  std::string why;
  *out = regions_.add(transports_, range, why);
  if (*out == nullptr) {
    context_.say(LogLevel::info,
                 "memory of kind " + std::to_string(range.kind) + " cannot be registered: " + why);
    return Result::invalid_argument;
  }
  return Result::success;
}

Result HostNet::deregister_memory(Region* region) {
  return regions_.remove(region) ? Result::success : Result::invalid_argument;
}

std::vector<FlushBuffer> HostNet::flush_buffers(std::span<const FlushRange> ranges) {
  std::vector<FlushBuffer> buffers;
  for (const FlushRange& range : ranges) {
    if (range.size != 0) {
      FlushBuffer& buffer = buffers.emplace_back(FlushBuffer{range.data, range.size, {}});
      if (context_.memory != nullptr && range.region != nullptr) {
        buffer.registration = regions_.of(transports_, range.region, range.data, range.size);
      }
    }
  }
  return buffers;
}

Result HostNet::iflush(RecvComm* comm, std::span<const FlushRange> ranges, Request** out) {
  *out = nullptr;
  const std::uint64_t all = (std::uint64_t{1} << context_.rails.size()) - 1;
  const std::uint64_t rails = comm->landed.rails_of(ranges, all);
  if (rails == 0) {
    return Result::success;
  }
  const std::vector<FlushBuffer> buffers = flush_buffers(ranges);
  std::vector<std::unique_ptr<Flush>> flushes;
  for (const auto& transport : transports_) {
    if (auto flush = transport->flush(buffers, rails)) {
      flushes.push_back(std::move(flush));
    }
  }
  if (!flushes.empty()) {
    *out = comm->requests.get();
    **out = {};
    (*out)->receive = comm;
    (*out)->flushes = std::move(flushes);
  }
  return Result::success;
}

// Every one of them has to be done.
Result HostNet::test_flush(Request* request, bool* done) {
  while (!request->flushes.empty()) {
    bool through = false;
    const Result result = request->flushes.back()->test(through);
    if (result != Result::success || !through) {
      return result;
    }
    request->flushes.pop_back();
  }
  *done = true;
  request->receive->requests.put(request);
  return Result::success;
}

Result HostNet::test(Request* request, bool* done, int* sizes) {
  *done = false;
  if (!request->flushes.empty()) {
    return test_flush(request, done);
  }
  if (request->send != nullptr) {
    std::size_t size = request->size;
    const Result result = request->send->sender->test(request->number, *done, size);
    if (*done) {
      if (sizes != nullptr) {
        *sizes = static_cast<int>(size);
      }
      RequestPool& pool = request->send->requests;
      pool.put(request);
    }
    return result;
  }
  return test_receive(request, done, sizes);
}

Result HostNet::test_receive(Request* request, bool* done, int* sizes) {
  RecvComm& comm = *request->receive;
  std::uint8_t rails = 0;
  const Result result = comm.receiver->test(request->number, request->count, *done, sizes, &rails);
  if (*done) {
    for (std::size_t i = 0; i < request->count; ++i) {
      comm.landed.note(request->buffers[i].data(), request->buffers[i].size(), rails);
    }
    comm.requests.put(request);
  }
  return result;
}

Result HostNet::wait(int timeout_us) {
  context_.waits.wait(std::max(timeout_us, 0));
  return Result::success;
}

Result HostNet::wake() {
  context_.waits.signal();
  return Result::success;
}

}  // namespace

std::unique_ptr<Net> make_host_net(const Params& params, std::optional<std::vector<Rail>> rails,
                                   Parts parts) {
  return std::make_unique<HostNet>(params, std::move(rails), std::move(parts));
}

const Stats& stats_of(const Net& net) { return dynamic_cast<const HostNet&>(net).stats(); }

}  // namespace host

}  // namespace fabric
