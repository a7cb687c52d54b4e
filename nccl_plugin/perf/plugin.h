// One view of a net plugin's table, whatever its version. As the table itself: after init(), calls
// for different comms may come from different threads, and wait() and wake() from any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "perf/errors.h"

namespace fabric::perf {

inline constexpr std::size_t kHandleBytes = 128;
using Handle = std::array<std::byte, kHandleBytes>;

struct Device {
  std::string name;
  std::string pci_path;
  std::uint64_t guid = 0;
  int speed_mbps = 0;
  int max_receives = 1;
};

// One buffer of a receive.
struct Slot {
  void* data;
  std::size_t size;
  int tag;
  void* region;
};
inline constexpr std::size_t kMaxGroup = 8;  // slots of one receive: NCCL's maxRecvs

// Every call throws TransportError when the plugin answers anything but success; its text has the
// last warning that the plugin logged. "Not yet" is a null return.
class Plugin {
 public:
  // Loads `path` and takes table `version`, or the highest of v12 to v8. Throws UsageError.
  static std::unique_ptr<Plugin> load(const std::string& path, std::optional<int> version,
                                      bool verbose);
  virtual ~Plugin() = default;

  virtual int version() const = 0;
  virtual std::string name() const = 0;
  virtual std::size_t max_message() const = 0;

  virtual void init() = 0;
  virtual void finalize() = 0;  // also where the table has no such call: then it does nothing
  virtual std::vector<Device> devices() = 0;

  virtual void* listen(int device, Handle* handle) = 0;
  virtual void* connect(int device, Handle* handle) = 0;
  virtual void* accept(void* listen_comm) = 0;
  virtual void close_listen(void* comm) = 0;
  virtual void close_send(void* comm) = 0;
  virtual void close_receive(void* comm) = 0;
  // As close_send, at once, where the plugin exports fabricCancelSend_v1; else as close_send.
  virtual void cancel_send(void* comm) = 0;

  virtual void* register_memory(void* comm, void* data, std::size_t size) = 0;
  virtual void deregister_memory(void* comm, void* region) = 0;
  virtual void* isend(void* comm, void* data, std::size_t size, int tag, void* region) = 0;
  // One receive of up to kMaxGroup messages, told apart by their tags. `optional`: *request goes in
  // as 0x1, as for protocols that find the end of a message in the data.
  virtual void* irecv(void* comm, std::span<const Slot> slots, bool optional = false) = 0;
  // Null: nothing to wait for.
  virtual void* iflush(void* comm, std::span<const Slot> slots) = 0;
  // True when done; then `sizes` says what was sent, or received into each slot. Empty: not asked.
  virtual bool test(void* request, std::span<std::size_t> sizes) = 0;

  // Whether the plugin exports fabricWait_v1.
  virtual bool can_wait() const = 0;
  virtual void wait(int timeout_us) = 0;
  // Whether the plugin exports fabricWake_v1, which ends wait() of all threads, or their next one.
  virtual bool can_wake() const = 0;
  virtual void wake() noexcept = 0;  // does nothing where it cannot
};

// The text of a result code, as people know it from NCCL.
std::string result_name(int code);

}  // namespace fabric::perf
