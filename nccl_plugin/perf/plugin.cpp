#include "perf/plugin.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <type_traits>

#include "abi/tables.h"

namespace fabric::perf {
namespace {

// The plugin logs through a bare C function, from any of its threads.
struct Log {
  std::mutex mutex;
  std::string last_warning;
  bool verbose = false;
};
Log& the_log() {
  static Log* const log = new Log;  // never destroyed: plugin threads may log while we exit
  return *log;
}

constexpr int kWarn = 2;
constexpr std::uintptr_t kOptionalCompletion = 0x1;  // NCCL_NET_OPTIONAL_RECV_COMPLETION

__attribute__((format(printf, 5, 6))) void log_sink(int level, unsigned long /*subsystems*/,
                                                    const char* /*file*/, int /*line*/,
                                                    const char* format, ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is, by va_start
  const int length = std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (length < 0) return;
  Log& log = the_log();
  const std::lock_guard<std::mutex> guard(log.mutex);
  if (level == kWarn) log.last_warning = text.data();
  if (level == kWarn || log.verbose) {
    std::cerr << "plugin " << (level == kWarn ? "warning: " : "info: ") << text.data() << '\n';
  }
}

void check(int code, const char* call) {
  if (code == 0) return;
  std::string text = std::string(call) + " returned " + result_name(code);
  Log& log = the_log();
  const std::lock_guard<std::mutex> guard(log.mutex);
  if (!log.last_warning.empty()) text += ": " + log.last_warning;
  throw TransportError(call, code, text);
}

struct Library {
  explicit Library(void* handle_) : handle(handle_) {}
  ~Library() { dlclose(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void* handle;
};

template <typename Table>
class TablePlugin final : public Plugin {
  static constexpr bool kV8 = std::is_same_v<Table, abi::NetV8>;
  static constexpr bool kV10 = std::is_same_v<Table, abi::NetV10>;
  static constexpr bool kContext = requires(Table t) { t.finalize; };
  static constexpr bool kProfiles = kV10 || kContext;

 public:
  TablePlugin(std::unique_ptr<Library> library, Table* table, int version)
      : library_(std::move(library)), table_(table), version_(version) {
    wait_ = reinterpret_cast<abi::WaitV1>(dlsym(library_->handle, abi::kWaitSymbol));
    wake_ = reinterpret_cast<abi::WakeV1>(dlsym(library_->handle, abi::kWakeSymbol));
    cancel_ = reinterpret_cast<abi::CancelSendV1>(dlsym(library_->handle, abi::kCancelSendSymbol));
  }

  int version() const override { return version_; }
  std::string name() const override { return table_->name != nullptr ? table_->name : ""; }
  std::size_t max_message() const override { return kV8 ? abi::kMaxMessageV8 : abi::kMaxMessage; }

  void init() override {
    if constexpr (kContext) {
      check(table_->init(&context_, 1, &config_, log_sink, nullptr), "init");
    } else if constexpr (kV10) {
      check(table_->init(log_sink, nullptr), "init");
    } else {
      check(table_->init(log_sink), "init");
    }
  }

  void finalize() override {
    if constexpr (kContext) check(table_->finalize(context_), "finalize");
  }

  std::vector<Device> devices() override {
    int count = 0;
    check(table_->devices(&count), "devices");
    std::vector<Device> all;
    for (int i = 0; i < count; ++i) {
      typename Table::Properties p{};
      check(table_->get_properties(i, &p), "getProperties");
      all.push_back({p.name != nullptr ? p.name : "", p.pci_path != nullptr ? p.pci_path : "",
                     p.guid, p.speed_mbps, p.max_receives});
    }
    return all;
  }

  void* listen(int device, Handle* handle) override {
    void* comm = nullptr;
    if constexpr (kContext) {
      check(table_->listen(context_, device, handle->data(), &comm), "listen");
    } else {
      check(table_->listen(device, handle->data(), &comm), "listen");
    }
    return comm;
  }

  void* connect(int device, Handle* handle) override {
    void* comm = nullptr;
    abi::OffloadHandle* offload = nullptr;
    if constexpr (kContext) {
      check(table_->connect(context_, device, handle->data(), &comm, &offload), "connect");
    } else if constexpr (kV10) {
      check(table_->connect(device, &config_, handle->data(), &comm, &offload), "connect");
    } else {
      check(table_->connect(device, handle->data(), &comm, &offload), "connect");
    }
    return comm;
  }

  void* accept(void* listen_comm) override {
    void* comm = nullptr;
    abi::OffloadHandle* offload = nullptr;
    check(table_->accept(listen_comm, &comm, &offload), "accept");
    return comm;
  }

  void close_listen(void* comm) override { check(table_->close_listen(comm), "closeListen"); }
  void close_send(void* comm) override { check(table_->close_send(comm), "closeSend"); }
  void close_receive(void* comm) override { check(table_->close_receive(comm), "closeRecv"); }

  void cancel_send(void* comm) override {
    if (cancel_ == nullptr) return close_send(comm);
    check(cancel_(comm), "fabricCancelSend");
  }

  void* register_memory(void* comm, void* data, std::size_t size) override {
    void* region = nullptr;
    check(table_->register_memory(comm, data, size, abi::kMemoryHost, &region), "regMr");
    return region;
  }
  void deregister_memory(void* comm, void* region) override {
    check(table_->deregister_memory(comm, region), "deregMr");
  }

  void* isend(void* comm, void* data, std::size_t size, int tag, void* region) override {
    void* request = nullptr;
    const auto sized = static_cast<typename Table::Size>(size);
    if constexpr (kProfiles) {
      check(table_->isend(comm, data, sized, tag, region, nullptr, &request), "isend");
    } else {
      check(table_->isend(comm, data, sized, tag, region, &request), "isend");
    }
    return request;
  }

  void* irecv(void* comm, std::span<const Slot> slots, bool optional) override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the ABI's mark
    void* request = optional ? reinterpret_cast<void*>(kOptionalCompletion) : nullptr;
    std::array<void*, kMaxGroup> data{};
    std::array<typename Table::Size, kMaxGroup> sizes{};
    std::array<int, kMaxGroup> tags{};
    std::array<void*, kMaxGroup> regions{};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      data[i] = slots[i].data;
      sizes[i] = static_cast<typename Table::Size>(slots[i].size);
      tags[i] = slots[i].tag;
      regions[i] = slots[i].region;
    }
    const int count = static_cast<int>(slots.size());
    if constexpr (kProfiles) {
      std::array<void*, kMaxGroup> profiles{};
      check(table_->irecv(comm, count, data.data(), sizes.data(), tags.data(), regions.data(),
                          profiles.data(), &request),
            "irecv");
    } else {
      check(table_->irecv(comm, count, data.data(), sizes.data(), tags.data(), regions.data(),
                          &request),
            "irecv");
    }
    return request;
  }

  void* iflush(void* comm, std::span<const Slot> slots) override {
    void* request = nullptr;
    std::array<void*, kMaxGroup> data{};
    std::array<int, kMaxGroup> sizes{};
    std::array<void*, kMaxGroup> regions{};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      data[i] = slots[i].data;
      sizes[i] = static_cast<int>(slots[i].size);
      regions[i] = slots[i].region;
    }
    const int count = static_cast<int>(slots.size());
    check(table_->iflush(comm, count, data.data(), sizes.data(), regions.data(), &request),
          "iflush");
    return request;
  }

  bool test(void* request, std::span<std::size_t> sizes) override {
    int done = 0;
    std::array<int, kMaxGroup> bytes{};
    check(table_->test(request, &done, sizes.empty() ? nullptr : bytes.data()), "test");
    // The ABI tells sizes as int: what is past 2 GiB comes back folded.
    for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<std::uint32_t>(bytes[i]);
    return done != 0;
  }

  bool can_wait() const override { return wait_ != nullptr; }
  void wait(int timeout_us) override { check(wait_(timeout_us), "fabricWait"); }
  bool can_wake() const override { return wake_ != nullptr; }
  void wake() noexcept override {
    if (wake_ != nullptr) static_cast<void>(wake_());
  }

 private:
  std::unique_ptr<Library> library_;
  Table* table_;
  int version_;
  void* context_ = nullptr;
  abi::CommConfig config_{abi::kTrafficClassUndefined};
  abi::WaitV1 wait_ = nullptr;
  abi::WakeV1 wake_ = nullptr;
  abi::CancelSendV1 cancel_ = nullptr;
};

std::unique_ptr<Plugin> make(std::unique_ptr<Library> library, void* table, int version) {
  switch (version) {
    case 8:
      return std::make_unique<TablePlugin<abi::NetV8>>(std::move(library),
                                                       static_cast<abi::NetV8*>(table), version);
    case 9:
      return std::make_unique<TablePlugin<abi::NetV9>>(std::move(library),
                                                       static_cast<abi::NetV9*>(table), version);
    case 10:
      return std::make_unique<TablePlugin<abi::NetV10>>(std::move(library),
                                                        static_cast<abi::NetV10*>(table), version);
    case 11:
      return std::make_unique<TablePlugin<abi::NetV11>>(std::move(library),
                                                        static_cast<abi::NetV11*>(table), version);
    default:
      return std::make_unique<TablePlugin<abi::NetV12>>(std::move(library),
                                                        static_cast<abi::NetV12*>(table), version);
  }
}

}  // namespace

std::unique_ptr<Plugin> Plugin::load(const std::string& path, std::optional<int> version,
                                     bool verbose) {
  the_log().verbose = verbose;
  // A bare file name is a file here, not a name to search the library path for.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw UsageError(std::string("cannot load the plugin: ") + dlerror());
  auto library = std::make_unique<Library>(handle);
  for (int v = version.value_or(12); v >= version.value_or(8); --v) {
    void* table = dlsym(handle, ("ncclNetPlugin_v" + std::to_string(v)).c_str());
    if (table != nullptr) return make(std::move(library), table, v);
  }
  throw UsageError(path + " exports no ncclNetPlugin_v" +
                   (version ? std::to_string(*version) : std::string("8 to _v12")));
}

std::string result_name(int code) {
  switch (code) {
    case 0:
      return "success (0)";
    case 1:
      return "unhandled CUDA error (1)";
    case 2:
      return "system error (2)";
    case 3:
      return "internal error (3)";
    case 4:
      return "invalid argument (4)";
    case 5:
      return "invalid usage (5)";
    case 6:
      return "remote error (6)";
    case 7:
      return "in progress (7)";
    default:
      return "result " + std::to_string(code);
  }
}

}  // namespace fabric::perf
