#include "verbs/library.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

// Macros that stand for inline functions; the names are the library's own here.
#undef ibv_query_port
#undef ibv_reg_mr

namespace fabric::verbs {

namespace {

using LegacyQueryPort = int (*)(ibv_context*, std::uint8_t, _compat_ibv_port_attr*);
using QueryGidEx = int (*)(ibv_context*, std::uint32_t, std::uint32_t, ibv_gid_entry*,
                           std::uint32_t, std::size_t);

// What the wrappers below need of the library. Written once, when it is loaded.
std::atomic<LegacyQueryPort> legacy_query_port{nullptr};
std::atomic<QueryGidEx> versioned_query_gid_ex{nullptr};

// The provider's extended operation, as the header's verbs_get_ctx_op() finds it; null: none.
template <typename Operation>
Operation operation_of(ibv_context* context, Operation verbs_context::*operation) {
  // This value of abi_compat says that the context is the last member of a verbs_context.
  if (reinterpret_cast<std::uintptr_t>(context->abi_compat) != UINTPTR_MAX) {
    return nullptr;
  }
  auto* extended = reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(context) -
                                                    offsetof(verbs_context, context));
  const auto offset =
      static_cast<std::size_t>(reinterpret_cast<std::byte*>(&(extended->*operation)) -
                               reinterpret_cast<std::byte*>(extended));
  // The structure grows at its front: an older library has less of it.
  return extended->sz < sizeof(verbs_context) - offset ? nullptr : extended->*operation;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* out) {
  if (auto* operation = operation_of(context, &verbs_context::query_port)) {
    return operation(context, port, out, sizeof *out);
  }
  std::memset(out, 0, sizeof *out);  // the older function knows a part of it
  return legacy_query_port.load(std::memory_order_acquire)(
      context, port, reinterpret_cast<_compat_ibv_port_attr*>(out));
}

int query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                 ibv_gid_entry* out) {
  auto* function = versioned_query_gid_ex.load(std::memory_order_acquire);
  return function == nullptr ? EOPNOTSUPP : function(context, port, index, out, 0, sizeof *out);
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* out) {
  auto* operation = operation_of(context, &verbs_context::query_device_ex);
  return operation == nullptr ? EOPNOTSUPP : operation(context, input, out, sizeof *out);
}

int query_rt_values_ex(ibv_context* context, ibv_values_ex* out) {
  auto* operation = operation_of(context, &verbs_context::query_rt_values);
  return operation == nullptr ? EOPNOTSUPP : operation(context, out);
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) {
  auto* operation = operation_of(context, &verbs_context::create_cq_ex);
  if (operation == nullptr || (attributes->wc_flags & ~std::uint64_t{IBV_CREATE_CQ_SUP_WC_FLAGS})) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return operation(context, attributes);
}

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  return qp->context->ops.post_send(qp, first, bad);
}
int post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  return qp->context->ops.post_recv(qp, first, bad);
}
int poll_cq(ibv_cq* cq, int count, ibv_wc* out) { return cq->context->ops.poll_cq(cq, count, out); }
int req_notify_cq(ibv_cq* cq, int solicited_only) {
  return cq->context->ops.req_notify_cq(cq, solicited_only);
}

// The functions of one loaded library, each in the version that the header above declares: several
// of them exist in an older one, too, with other structures.
class Loader {
 public:
  explicit Loader(void* library) : library_(library) {}

  template <typename Function>
  void need(Function*& out, const char* name, const char* version = "IBVERBS_1.1") {
    may(out, name, version);
    if (out == nullptr) {
      missing_ += (missing_.empty() ? "" : ", ") + std::string(name) + "@" + version;
    }
  }
  template <typename Function>
  void may(Function*& out, const char* name, const char* version) {
    out = reinterpret_cast<Function*>(::dlvsym(library_, name, version));
  }
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

void set_inline_functions(Functions& table) {
  table.query_port = query_port;
  table.query_gid_ex = query_gid_ex;
  table.query_device_ex = query_device_ex;
  table.query_rt_values_ex = query_rt_values_ex;
  table.create_cq_ex = create_cq_ex;
  table.post_send = post_send;
  table.post_recv = post_recv;
  table.poll_cq = poll_cq;
  table.req_notify_cq = req_notify_cq;
}

void load_devices(Loader& loader, Functions& table) {
  loader.need(table.get_device_list, "ibv_get_device_list");
  loader.need(table.free_device_list, "ibv_free_device_list");
  loader.need(table.get_device_name, "ibv_get_device_name");
  loader.need(table.open_device, "ibv_open_device");
  loader.need(table.close_device, "ibv_close_device");
  loader.need(table.query_device, "ibv_query_device");
  loader.need(table.query_gid, "ibv_query_gid");
  loader.need(table.query_pkey, "ibv_query_pkey");
  loader.need(table.get_async_event, "ibv_get_async_event");
  loader.need(table.ack_async_event, "ibv_ack_async_event");
  loader.need(table.event_type_str, "ibv_event_type_str");
  loader.need(table.port_state_str, "ibv_port_state_str");
  loader.need(table.wc_status_str, "ibv_wc_status_str");
}

void load_objects(Loader& loader, Functions& table) {
  loader.need(table.alloc_pd, "ibv_alloc_pd");
  loader.need(table.dealloc_pd, "ibv_dealloc_pd");
  loader.need(table.reg_mr, "ibv_reg_mr");
  loader.may(table.reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8");
  loader.may(table.reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
  loader.need(table.dereg_mr, "ibv_dereg_mr");
  loader.need(table.create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0");
  loader.need(table.destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0");
  loader.need(table.create_cq, "ibv_create_cq");
  loader.need(table.destroy_cq, "ibv_destroy_cq");
  loader.need(table.get_cq_event, "ibv_get_cq_event");
  loader.need(table.ack_cq_events, "ibv_ack_cq_events");
  loader.need(table.create_qp, "ibv_create_qp");
  loader.need(table.modify_qp, "ibv_modify_qp");
  loader.need(table.query_qp, "ibv_query_qp");
  loader.need(table.destroy_qp, "ibv_destroy_qp");
  loader.need(table.create_ah, "ibv_create_ah");
  loader.need(table.destroy_ah, "ibv_destroy_ah");
}

}  // namespace

Library::Library(const char* name) {
  void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    missing_ = reason == nullptr ? std::string(name) + " cannot be loaded" : reason;
    return;
  }
  Loader loader(library);
  load_devices(loader, functions_);
  load_objects(loader, functions_);
  set_inline_functions(functions_);
  LegacyQueryPort port = nullptr;
  loader.need(port, "ibv_query_port");
  QueryGidEx gid = nullptr;
  loader.may(gid, "_ibv_query_gid_ex", "IBVERBS_1.11");
  int (*fork_init)() = nullptr;
  loader.need(fork_init, "ibv_fork_init");
  if (!loader.missing().empty()) {
    missing_ = std::string(name) + " lacks " + loader.missing();
    ::dlclose(library);
    return;
  }
  legacy_query_port.store(port, std::memory_order_release);
  versioned_query_gid_ex.store(gid, std::memory_order_release);
  // Fails when something else in the process registered memory before: then that one decided.
  static_cast<void>(fork_init());
  usable_ = true;
}

const Library& Library::get() {
  static const Library library("libibverbs.so.1");
  return library;
}

}  // namespace fabric::verbs
