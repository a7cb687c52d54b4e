// Every parameter of the plugin: the fields, and one table from which they are parsed, logged and
// documented (host/params_dump.cpp prints the table of docs/reference/plugin.md; a test compares
// the two). A new one is a field with its default and a row of kParams.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace fabric::host {

struct Params {
  std::string run_dir = "/run/fabricd";
  bool failover = true;
  std::int64_t deadline_ns = 120'000'000'000;
  int user_timeout_ms = 3000;
  std::int64_t hold_ns = 500'000'000;
  std::uint32_t chunk_size = 256 * 1024;
  int socket_buffer = 0;
  std::string job;
  std::string run_incarnation;
  std::string ifname;
  std::string ib_hca;
  std::string family;
  bool stripe = false;
  std::string standby;
  bool adapt = false;
  bool verbs = false;
  bool gpudirect = false;
  bool ib_disable = false;
  int ib_gid_index = -1;
  int ib_roce_version = 2;
  std::string ib_family;
  std::string ib_range;
  int ib_pkey = 0;
  int ib_traffic_class = 0;
  int ib_service_level = 0;
  int ib_timeout = 14;
  int ib_retries = 7;
  bool ib_adaptive_routing = false;
  int ib_split_from = 8192;
  bool ib_inline = true;
  int ib_relaxed_ordering = 2;
  int wire_max = 6;
  bool unproven = false;
  std::string complaints;  // not a parameter: what was malformed; init() logs it
};

struct ParamSpec {
  using Field = std::variant<std::string Params::*, bool Params::*, int Params::*,
                             std::uint32_t Params::*, std::int64_t Params::*>;
  std::string_view name;  // of the environment variable
  Field field;            // its value in a fresh Params is the default
  // Numbers: what the variable may say, in its unit; the field is that times `scale`.
  std::string_view unit = {};
  double low = 0;
  double high = 0;
  double scale = 1;
  std::string_view unset = {};  // texts that are empty by default: what that means
  std::string_view what;
};

// In the order of the documentation. `what` is Markdown, on one line.
inline constexpr std::array kParams{
    ParamSpec{.name = "FABRIC_RUN_DIR",
              .field = &Params::run_dir,
              .what = "where the steer page is read and the stats page written; may be missing"},
    ParamSpec{.name = "FABRIC_FAILOVER",
              .field = &Params::failover,
              .high = 1,
              .what = "0: one path, `TCP_USER_TIMEOUT`, an error when it dies (as stock transports "
                      "do)"},
    ParamSpec{.name = "FABRIC_DEADLINE",
              .field = &Params::deadline_ns,
              .unit = "s",
              .low = 0.1,
              .high = 86400,
              .scale = 1e9,
              .what = "how long *every* path may be dead before an error is returned"},
    ParamSpec{.name = "FABRIC_USER_TIMEOUT",
              .field = &Params::user_timeout_ms,
              .unit = "s",
              .low = 0.1,
              .high = 600,
              .scale = 1e3,
              .what = "`TCP_USER_TIMEOUT`, with `FABRIC_FAILOVER=0`"},
    ParamSpec{.name = "FABRIC_HOLD",
              .field = &Params::hold_ns,
              .unit = "s",
              .high = 60,
              .scale = 1e9,
              .what = "how long a path has to be back before it is trusted, doubling with each "
                      "failure, at most 8 s; the steer page, when it had taken the path, decides "
                      "instead"},
    ParamSpec{.name = "FABRIC_CHUNK",
              .field = &Params::chunk_size,
              .unit = "bytes",
              .low = 4096,
              .high = 4194304,
              .what = "a chunk, the unit of scheduling and of sending again"},
    ParamSpec{.name = "FABRIC_SOCKET_BUFFER",
              .field = &Params::socket_buffer,
              .unit = "bytes",
              .high = 1 << 30,
              .what = "of each data connection, each way; 0: the kernel tunes it"},
    ParamSpec{.name = "FABRIC_STRIPE",
              .field = &Params::stripe,
              .high = 1,
              .what = "1: every communicator spreads its chunks over all rails, also while its own "
                      "is well"},
    ParamSpec{.name = "FABRIC_STANDBY",
              .field = &Params::standby,
              .unset = "none",
              .what =
                  "`active/standby` pairs of devices with commas between (`eth0/eth4,eth1/eth5`): "
                  "NCCL does not see the standby, which carries while the active cannot"},
    ParamSpec{.name = "FABRIC_ADAPT",
              .field = &Params::adapt,
              .high = 1,
              .what =
                  "1: the weight of a path follows how long bytes wait there, beside the others, "
                  "and one that stays slow is opened again from another port, so that a switch "
                  "hashes it elsewhere"},
    ParamSpec{.name = "FABRIC_WIRE",
              .field = &Params::wire_max,
              .low = 1,
              .high = 6,
              .what =
                  "the highest version of the wire format to offer; peers take the highest that "
                  "both know. Version 2 is never spoken: it counts as 1. Below 6 only with "
                  "`FABRIC_UNPROVEN=1`"},
    ParamSpec{
        .name = "FABRIC_UNPROVEN",
        .field = &Params::unproven,
        .high = 1,
        .what = "1: peers of releases before wire version 6 are let in. They answer no challenge, "
                "so whoever records one of their connections can end this job. For the time of "
                "an upgrade"},
    ParamSpec{.name = "FABRIC_VERBS",
              .field = &Params::verbs,
              .high = 1,
              .what =
                  "1: rails with an RDMA device carry verbs where the peer's do too. New, and not "
                  "proved on an RDMA NIC: for trials"},
    ParamSpec{
        .name = "FABRIC_GPUDIRECT",
        .field = &Params::gpudirect,
        .high = 1,
        .what = "1: with `FABRIC_VERBS=1`, NCCL is told that the NICs reach GPU memory where they "
                "do. Such data goes over RDMA alone: without it the job waits, `FABRIC_DEADLINE` "
                "at most. Not proved on hardware"},
    ParamSpec{.name = "NCCL_IB_DISABLE",
              .field = &Params::ib_disable,
              .high = 1,
              .what = "1: all paths are TCP, whatever `FABRIC_VERBS` says"},
    ParamSpec{.name = "NCCL_IB_GID_INDEX",
              .field = &Params::ib_gid_index,
              .low = -1,
              .high = 255,
              .what = "entry of the GID table; -1: chosen at each dial, never a link-local one"},
    ParamSpec{.name = "NCCL_IB_ROCE_VERSION_NUM",
              .field = &Params::ib_roce_version,
              .low = 1,
              .high = 2,
              .what = "RoCE version of the chosen GID"},
    ParamSpec{.name = "NCCL_IB_ADDR_FAMILY",
              .field = &Params::ib_family,
              .unset = "the rail's own",
              .what = "`AF_INET`, `AF_INET6`: which GIDs are preferred"},
    ParamSpec{.name = "NCCL_IB_ADDR_RANGE",
              .field = &Params::ib_range,
              .unset = "all",
              .what = "prefix (`10.0.0.0/8`) that a chosen GID has to lie in"},
    ParamSpec{.name = "NCCL_IB_PKEY",
              .field = &Params::ib_pkey,
              .high = 65535,
              .what = "index of the P_Key; its value is followed when the table changes"},
    ParamSpec{.name = "NCCL_IB_TC",
              .field = &Params::ib_traffic_class,
              .high = 255,
              .what = "traffic class of all packets of a path, `NCCL_IB_FIFO_TC` included"},
    ParamSpec{.name = "NCCL_IB_SL",
              .field = &Params::ib_service_level,
              .high = 15,
              .what = "service level"},
    ParamSpec{.name = "NCCL_IB_TIMEOUT",
              .field = &Params::ib_timeout,
              .low = 1,
              .high = 31,
              .what = "the NIC sends again after 4.096 µs × 2^this; a path is called dead without "
                      "waiting for it"},
    ParamSpec{.name = "NCCL_IB_RETRY_CNT",
              .field = &Params::ib_retries,
              .high = 7,
              .what = "how often the NIC sends again"},
    ParamSpec{.name = "NCCL_IB_ADAPTIVE_ROUTING",
              .field = &Params::ib_adaptive_routing,
              .high = 1,
              .what = "1: full chunks go as a write and an empty one that notifies"},
    ParamSpec{.name = "NCCL_IB_AR_THRESHOLD",
              .field = &Params::ib_split_from,
              .unit = "bytes",
              .high = 1 << 30,
              .what = "with adaptive routing: of a chunk that is split"},
    ParamSpec{.name = "NCCL_IB_USE_INLINE",
              .field = &Params::ib_inline,
              .high = 1,
              .what = "0: small messages and CTS lines are read from memory by the NIC"},
    ParamSpec{.name = "NCCL_IB_PCI_RELAXED_ORDERING",
              .field = &Params::ib_relaxed_ordering,
              .high = 2,
              .what = "0: buffers are registered without relaxed ordering; 1, 2: with it, where "
                      "libibverbs can"},
    ParamSpec{.name = "FABRIC_JOB",
              .field = &Params::job,
              .unset = "the process's name",
              .what = "name in the stats page"},
    ParamSpec{.name = "FABRIC_INCARNATION",
              .field = &Params::run_incarnation,
              .unset = "none",
              .what =
                  "set by `fabric-run`: its own incarnation. A fence of that incarnation on the "
                  "steer page concerns this process; without it none does"},
    ParamSpec{.name = "NCCL_SOCKET_IFNAME",
              .field = &Params::ifname,
              .unset = "the NICs",
              .what = "devices that are rails, 8 at most: prefixes, or altnames in full; `^` "
                      "excludes, `=` means exactly"},
    ParamSpec{.name = "NCCL_IB_HCA",
              .field = &Params::ib_hca,
              .unset = "not asked",
              .what = "RDMA devices (`mlx5_0`, `mlx5_1:1`) whose network devices are rails, or "
                      "network devices: prefixes, `=` means exactly, `^` takes them out"},
    ParamSpec{.name = "NCCL_SOCKET_FAMILY",
              .field = &Params::family,
              .unset = "both",
              .what = "`AF_INET`, `AF_INET6`"},
};

// From the environment. Malformed values keep the default and are named in `complaints`.
Params read_params();
// One parameter in its unit, without it: "0.5".
std::string value_text(const Params& params, const ParamSpec& spec);
// All of them on one line: "FABRIC_HOLD=0.5 ...".
std::string describe(const Params& params);

}  // namespace fabric::host
