// libibverbs as one table of function pointers, loaded with dlopen: nothing links it, and where it
// is missing everything but verbs works. The plugin and the prober call verbs through this table
// alone, so that a test replaces the table and injects every fault (verbs/fake/).
//
// The header's inline functions (ibv_post_send, ibv_poll_cq, ...) call what the provider has put
// into the context. The table has an entry for each of them that does the same: a fake table needs
// no provider. Return values are libibverbs': 0 or an errno for most; a pointer or null with errno
// set; ibv_poll_cq a count, or below 0.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace fabric::verbs {

struct Functions {
  // Devices. A list ends with null and is freed when its devices have been opened.
  ibv_device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  const char* (*get_device_name)(ibv_device* device);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*query_device)(ibv_context* context, ibv_device_attr* out);
  // Null `input`. EOPNOTSUPP where the provider knows no extended attributes.
  int (*query_device_ex)(ibv_context* context, const ibv_query_device_ex_input* input,
                         ibv_device_attr_ex* out);
  // The device's free-running clock, in its own ticks (see hca_core_clock). EOPNOTSUPP: none.
  int (*query_rt_values_ex)(ibv_context* context, ibv_values_ex* out);

  // Ports, and what their tables hold. Ports count from 1.
  int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* out);
  int (*query_gid)(ibv_context* context, std::uint8_t port, int index, ibv_gid* out);
  // Type and interface of a GID as well. An empty entry is ENODATA. EOPNOTSUPP: libibverbs is older
  // than rdma-core 32.
  int (*query_gid_ex)(ibv_context* context, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* out);
  int (*query_pkey)(ibv_context* context, std::uint8_t port, int index, __be16* out);

  // Memory.
  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* pd);
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, std::size_t length, int access);
  // The only one that takes optional access flags (relaxed ordering). Null: older than
  // rdma-core 28.
  ibv_mr* (*reg_mr_iova2)(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                          unsigned int access);
  // Null: older than rdma-core 34.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                           int fd, int access);
  int (*dereg_mr)(ibv_mr* mr);

  // Completions.
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                       int vector);
  // Null with EOPNOTSUPP where the provider has none. Its CQ is polled by the functions in it.
  ibv_cq_ex* (*create_cq_ex)(ibv_context* context, ibv_cq_init_attr_ex* attributes);
  int (*destroy_cq)(ibv_cq* cq);
  int (*poll_cq)(ibv_cq* cq, int count, ibv_wc* out);
  int (*req_notify_cq)(ibv_cq* cq, int solicited_only);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** user);
  void (*ack_cq_events)(ibv_cq* cq, unsigned int count);

  // Queue pairs.
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes);
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
  int (*query_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* initial);
  int (*destroy_qp)(ibv_qp* qp);
  int (*post_send)(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad);
  int (*post_recv)(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad);
  ibv_ah* (*create_ah)(ibv_pd* pd, ibv_ah_attr* attributes);
  int (*destroy_ah)(ibv_ah* handle);

  // Events of a device: read from ibv_context::async_fd. Every event that was read is acknowledged,
  // else the destruction of its object waits for ever.
  int (*get_async_event)(ibv_context* context, ibv_async_event* out);
  void (*ack_async_event)(ibv_async_event* event);

  const char* (*event_type_str)(ibv_event_type type);
  const char* (*port_state_str)(ibv_port_state state);
  const char* (*wc_status_str)(ibv_wc_status status);

  // Where the kernel shows devices; tests have another directory.
  const char* sysfs = "/sys/class";
};

// The libibverbs of this process.
class Library {
 public:
  // Loads it at the first call, from whatever thread; it stays loaded, for providers have threads
  // and handlers in it. Also tells it that the process may fork.
  static const Library& get();

  // Null: there is none, and missing() says why.
  [[nodiscard]] const Functions* functions() const { return usable_ ? &functions_ : nullptr; }
  [[nodiscard]] const std::string& missing() const { return missing_; }

  // From the file `name`, for tests of what is missing; nothing is kept between two of them.
  explicit Library(const char* name);

 private:
  Functions functions_{};
  bool usable_ = false;
  std::string missing_;
};

}  // namespace fabric::verbs
