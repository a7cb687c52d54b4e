// A net plugin for tests of fabric-perf and fabric-conformance: another plugin's v11 table
// (FAULTY_INNER) with one fault put in, so that the checker is itself checked. FAULTY_MODE:
//   corrupt  one bit of one byte of the received message number FAULTY_AFTER is flipped
//   late     the same, but 20 ms after the message was said to be complete
//   error    isend number FAULTY_AFTER returns remote error
//   short    the size of received message FAULTY_AFTER is said to be one less
//   delay    each test() of a receive says "not yet" for the first millisecond
//   stall    from message FAULTY_AFTER on nothing is ever done
//   busy     every second isend and irecv says "not yet"
//   single   one slot per receive is all that is offered
// and breaches of the contract, which payload of one tag in order does not notice:
//   untagged   tags are ignored: sends land in the order of isend
//   sizeless   a send's size is said to be 0
//   hasty      every other send reports done as soon as isend took it. Not every send: a caller
//              without an open request stops testing, and nothing would move the bytes any more
//   budget     with 13 sends taken and not yet tested as done, isend says "not yet"
//   overrun    a byte past the end of each message is written
//   optional   irecv leaves 0x1, NCCL's mark for optional completion, in *request
//   flushless  iflush returns internal error
//   unclosable closeRecv with a request open returns internal error
// and what NCCL's own socket transport does, which is no breach of what NCCL relies on:
//   ordered    one slot per receive, tags are ignored, a comm has 32 requests and an error for
//   more,
//              only the oldest may be tested, and iflush returns internal error

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "abi/tables.h"

namespace {

using fabric::abi::NetV11;
using fabric::abi::Status;
using Clock = std::chrono::steady_clock;

struct Send {
  std::size_t size;
  bool early;  // said to be done before it is
};

struct Receive {
  std::byte* data;
  std::size_t size;
  Clock::time_point since;
};

NetV11* inner = nullptr;
std::string mode;
long after = 0;
long sends = 0;
long received = 0;
long calls = 0;
long open_sends = 0;
std::unordered_map<void*, Send> sends_made;
std::unordered_map<void*, Receive> receives;  // both programs call from one thread

constexpr long kBudget = 13;
constexpr std::size_t kOrdered = 32;

// Of mode `ordered`: the open requests of each comm, oldest first.
struct Ordered {
  std::unordered_map<void*, std::deque<void*>> open;
  std::unordered_map<void*, void*> comm_of;

  bool full(void* comm) { return mode == "ordered" && open[comm].size() >= kOrdered; }
  void add(void* comm, void* request) {
    open[comm].push_back(request);
    comm_of[request] = comm;
  }
  bool oldest(void* request) {
    return mode != "ordered" || open[comm_of.at(request)].front() == request;
  }
  void done(void* request) {
    std::erase(open[comm_of.at(request)], request);
    comm_of.erase(request);
  }
  void close(void* comm) {
    for (void* const request : open[comm]) comm_of.erase(request);
    open.erase(comm);
  }
};
Ordered ordered;

bool without_tags() { return mode == "untagged" || mode == "ordered"; }

bool busy() { return mode == "busy" && ++calls % 2 == 0; }

Status isend(void* comm, void* data, std::size_t size, int tag, void* region, void* profile,
             void** request) {
  if (mode == "error" && sends++ == after) return 6;
  if (busy() || (mode == "budget" && open_sends >= kBudget)) {
    *request = nullptr;
    return 0;
  }
  if (ordered.full(comm)) return 3;
  if (without_tags()) tag = 0;
  const Status status = inner->isend(comm, data, size, tag, region, profile, request);
  if (status == 0 && *request != nullptr) {
    ++open_sends;
    ordered.add(comm, *request);
    sends_made[*request] = {size, mode == "hasty" && sends++ % 2 == 0};
  }
  return status;
}

Status irecv(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** regions,
             void** profiles, void** request) {
  if (busy()) {
    *request = nullptr;
    return 0;
  }
  if (mode == "optional" && *request != nullptr) return 0;
  if (ordered.full(comm)) return 3;
  if (without_tags()) std::fill_n(tags, count, 0);
  const Status status = inner->irecv(comm, count, data, sizes, tags, regions, profiles, request);
  if (status == 0 && *request != nullptr) {
    ordered.add(comm, *request);
    receives[*request] = {static_cast<std::byte*>(data[0]), sizes[0], Clock::now()};
  }
  return status;
}

Status test_send(void* request, int* done, int* size) {
  const Status status = inner->test(request, done, size);
  const auto send = sends_made.find(request);
  if (send != sends_made.end() && send->second.early && *done == 0) {
    *done = 1;
    if (size != nullptr) *size = static_cast<int>(send->second.size);
  }
  if (mode == "sizeless" && size != nullptr) *size = 0;
  if (*done != 0) {
    --open_sends;
    ordered.done(request);
  }
  return status;
}

Status iflush(void* comm, int count, void** data, int* sizes, void** regions, void** request) {
  if (mode == "flushless" || mode == "ordered") return 3;
  return inner->iflush(comm, count, data, sizes, regions, request);
}

Status close_send(void* comm) {
  ordered.close(comm);
  return inner->close_send(comm);
}

Status close_receive(void* comm) {
  ordered.close(comm);
  const Status status = inner->close_receive(comm);
  return mode == "unclosable" && !receives.empty() ? 3 : status;
}

Status get_properties(int device, fabric::abi::PropertiesV11* out) {
  const Status status = inner->get_properties(device, out);
  if ((mode == "single" || mode == "ordered") && status == 0) out->max_receives = 1;
  return status;
}

Status test(void* request, int* done, int* size) {
  const auto found = receives.find(request);
  *done = 0;
  if (!ordered.oldest(request)) return 5;
  if (mode == "stall" && received >= after) return 0;
  if (found == receives.end()) return test_send(request, done, size);
  const Receive receive = found->second;
  if (mode == "delay" && Clock::now() - receive.since < std::chrono::milliseconds(1)) return 0;
  const Status status = inner->test(request, done, size);
  if (status != 0 || *done == 0) return status;
  ordered.done(request);
  receives.erase(found);
  if (mode == "overrun") receive.data[*size] ^= std::byte{0xff};
  // Token messages are small: only payload is spoiled.
  if (receive.size < 1024 || received++ != after) return status;
  std::byte* victim = receive.data + receive.size / 2;
  if (mode == "corrupt") *victim ^= std::byte{0x10};
  if (mode == "short") *size -= 1;
  if (mode == "late") {
    std::thread([victim] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      // Through the kernel, as a device would write: no access of this thread to the buffer.
      std::byte value{};
      const iovec own{&value, 1};
      const iovec theirs{victim, 1};
      if (process_vm_readv(getpid(), &own, 1, &theirs, 1, 0) != 1) return;
      value ^= std::byte{0x10};
      if (process_vm_writev(getpid(), &own, 1, &theirs, 1, 0) != 1) return;
    }).detach();
  }
  return status;
}

// Runs when the library is loaded: the table must be whole before anybody looks it up.
NetV11 make_table() {
  const char* path = std::getenv("FAULTY_INNER");
  const char* mode_text = std::getenv("FAULTY_MODE");
  const char* after_text = std::getenv("FAULTY_AFTER");
  mode = mode_text != nullptr ? mode_text : "";
  after = after_text != nullptr ? std::strtol(after_text, nullptr, 10) : 0;
  void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  inner = library != nullptr ? static_cast<NetV11*>(dlsym(library, "ncclNetPlugin_v11")) : nullptr;
  NetV11 table{};
  if (inner != nullptr) table = *inner;
  table.name = "FAULTY";
  table.isend = isend;
  table.irecv = irecv;
  table.test = test;
  table.iflush = iflush;
  table.close_send = close_send;
  table.close_receive = close_receive;
  table.get_properties = get_properties;
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) NetV11 ncclNetPlugin_v11;
NetV11 ncclNetPlugin_v11 = make_table();
