// What the offsets do not tell: which arguments each call of each version takes, and the numbers
// that pass between NCCL and us. Facts of the ABI, read off NCCL's public headers:
// - tables, properties and attributes in src/include/plugin/net/net_v8.h ... net_v12.h;
// - sizes, marks and memory kinds in src/include/plugin/nccl_net.h;
// - the offload handle and its types in src/include/nccl_device/net_device.h;
// - log levels and subsystems in src/include/nccl_common.h, results in src/nccl.h.in.
//
// Checked against the headers themselves, by compiling the same tables from them, for NCCL 2.30.7
// (commit 5067397c, v8 to v12 side by side) on 2026-11-21: every offset here and in
// abi_layout_test.cpp, every size and every argument list.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "abi/tables.h"
#include "src/net.h"

namespace abi = fabric::abi;

namespace {

// i: int or enum, l: 64 bits without sign, I and L: where such a one lies, p: any other pointer.
template <typename T>
constexpr char letter() {
  if constexpr (std::is_same_v<T, int*>) {
    return 'I';
  } else if constexpr (std::is_same_v<T, std::size_t*>) {
    return 'L';
  } else if constexpr (std::is_pointer_v<T>) {
    return 'p';
  } else if constexpr (std::is_same_v<T, int>) {
    return 'i';
  } else {
    static_assert(std::is_unsigned_v<T> && sizeof(T) == 8);
    return 'l';
  }
}

template <typename... Arguments>
std::string letters(abi::Status (*)(Arguments...)) {
  return {letter<Arguments>()...};
}

struct Signatures {
  const char* init;
  const char* listen;
  const char* connect;
  const char* isend;
  const char* irecv;
};

// The calls that differ between versions.
template <typename Table>
void differing(const Signatures& facts) {
  CHECK(letters(decltype(Table::init){}) == facts.init);
  CHECK(letters(decltype(Table::listen){}) == facts.listen);
  CHECK(letters(decltype(Table::connect){}) == facts.connect);
  CHECK(letters(decltype(Table::isend){}) == facts.isend);
  CHECK(letters(decltype(Table::irecv){}) == facts.irecv);
}

// Those that do not.
template <typename Table>
void common() {
  CHECK(letters(decltype(Table::devices){}) == "I");
  CHECK(letters(decltype(Table::get_properties){}) == "ip");
  CHECK(letters(decltype(Table::accept){}) == "ppp");
  CHECK(letters(decltype(Table::register_memory){}) == "pplip");
  CHECK(letters(decltype(Table::register_dmabuf){}) == "pplilip");
  CHECK(letters(decltype(Table::deregister_memory){}) == "pp");
  CHECK(letters(decltype(Table::iflush){}) == "pipIpp");  // sizes stay int in every version
  CHECK(letters(decltype(Table::test){}) == "pII");
  CHECK(letters(decltype(Table::close_send){}) == "p");
  CHECK(letters(decltype(Table::close_receive){}) == "p");
  CHECK(letters(decltype(Table::close_listen){}) == "p");
  CHECK(letters(decltype(Table::get_device_region){}) == "ppp");
  CHECK(letters(decltype(Table::receive_consumed){}) == "pip");
  if constexpr (requires(Table t) { t.make_virtual_device; }) {
    CHECK(letters(decltype(Table::make_virtual_device){}) == "Ip");
  }
  if constexpr (requires(Table t) { t.finalize; }) {
    CHECK(letters(decltype(Table::finalize){}) == "p");
    CHECK(letters(decltype(Table::set_attributes){}) == "pp");
  }
}

}  // namespace

TEST_CASE("every call takes what NCCL passes") {
  differing<abi::NetV8>({"p", "ipp", "ippp", "ppiipp", "pipIIpp"});
  differing<abi::NetV9>({"p", "ipp", "ippp", "pplipp", "pipLIpp"});
  differing<abi::NetV10>({"pp", "ipp", "ipppp", "pplippp", "pipLIppp"});
  differing<abi::NetV11>({"plppp", "pipp", "pippp", "pplippp", "pipLIppp"});
  differing<abi::NetV12>({"plppp", "pipp", "pippp", "pplippp", "pipLIppp"});
  common<abi::NetV8>();
  common<abi::NetV9>();
  common<abi::NetV10>();
  common<abi::NetV11>();
  common<abi::NetV12>();
}

TEST_CASE("what is passed by pointer") {
  CHECK(sizeof(abi::OffloadHandle) == 32);
  CHECK(offsetof(abi::OffloadHandle, type) == 0);
  CHECK(offsetof(abi::OffloadHandle, version) == 4);
  CHECK(offsetof(abi::OffloadHandle, handle) == 8);
  CHECK(offsetof(abi::OffloadHandle, size) == 16);
  CHECK(offsetof(abi::OffloadHandle, needs_proxy_progress) == 24);
  CHECK(sizeof(abi::FlowAttributes) == 16);
  CHECK(offsetof(abi::FlowAttributes, max_concurrent_peers) == 0);
  CHECK(offsetof(abi::FlowAttributes, min_concurrent_peers) == 4);
  CHECK(offsetof(abi::FlowAttributes, max_flows_per_peer) == 8);
  CHECK(offsetof(abi::FlowAttributes, min_flows_per_peer) == 12);
  CHECK(sizeof(abi::NetAttributes) == 44);
  CHECK(offsetof(abi::NetAttributes, send) == 0);
  CHECK(offsetof(abi::NetAttributes, receive) == 16);
  CHECK(offsetof(abi::NetAttributes, operation) == 32);
  CHECK(offsetof(abi::NetAttributes, algorithm) == 36);
  CHECK(offsetof(abi::NetAttributes, protocol) == 40);
  CHECK(sizeof(abi::CommConfig) == 4);
  CHECK(offsetof(abi::VirtualDevice<4>, devices) == 4);
  CHECK(sizeof(abi::VirtualDevice<abi::kDevicesPerNicV9>) == 20);
  CHECK(sizeof(abi::VirtualDevice<abi::kDevicesPerNicV12>) == 36);
}

TEST_CASE("the numbers") {
  CHECK(abi::kMemoryHost == 1);
  CHECK(abi::kMemoryCuda == 2);
  CHECK(abi::kMemoryDmaBuf == 4);
  CHECK(abi::kOffloadNone == 0);
  CHECK(abi::kOffloadVersionNone == 0);
  CHECK(abi::kTrafficClassUndefined == -1);
  CHECK(abi::kIdUndefined == -1);
  CHECK(abi::kMaxMessage == 1'099'511'627'776);
  CHECK(abi::kMaxMessageV8 == 1'073'741'824);
  CHECK(fabric::kHandleSize == 128);
  CHECK(fabric::kMaxRequests == 32);
  CHECK(fabric::kOptionalCompletion == 1);
  CHECK(fabric::kLogSubsystemNet == 0x10);
  const std::array levels{fabric::LogLevel::none,  fabric::LogLevel::version,
                          fabric::LogLevel::warn,  fabric::LogLevel::info,
                          fabric::LogLevel::abort, fabric::LogLevel::trace};
  for (std::size_t i = 0; i < levels.size(); ++i) {
    CHECK(static_cast<std::size_t>(levels[i]) == i);
  }
  const std::array results{fabric::Result::success,          fabric::Result::unhandled_cuda_error,
                           fabric::Result::system_error,     fabric::Result::internal_error,
                           fabric::Result::invalid_argument, fabric::Result::invalid_usage,
                           fabric::Result::remote_error,     fabric::Result::in_progress};
  for (std::size_t i = 0; i < results.size(); ++i) {
    CHECK(static_cast<std::size_t>(results[i]) == i);
  }
}
