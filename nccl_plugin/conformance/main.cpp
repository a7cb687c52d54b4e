// fabric-conformance: plays NCCL's side of the net plugin contract against any libnccl-net*.so.
//
// exit status: 0 all passed, 1 a case failed, 2 usage
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/runner.h"
#include "perf/clock.h"

namespace {

using fabric::conformance::Case;
using fabric::conformance::Job;
using fabric::conformance::Level;
using fabric::conformance::Outcome;
using fabric::conformance::Verdict;

constexpr char kExamples[] = R"(examples:
  all cases, all table versions, 2 and 4 ranks on this machine:
    fabric-conformance --plugin ./libnccl-net-fabric.so
  one rank of four hosts, all cases ten times:
    fabric-conformance --plugin ./libnccl-net-fabric.so --rank $RANK --ranks 4 \
      --rendezvous file:/shared/dir --rounds 10
  only what NCCL relies on, as its own socket transport keeps it:
    fabric-conformance --plugin ./libnccl-net-fabric.so --level nccl
  the cases about tags with one table:
    fabric-conformance --plugin ./libnccl-net-fabric.so --abi v11 --case tags)";

struct Options {
  Job job;
  std::vector<int> worlds{2, 4};
  std::vector<int> abis;  // empty: all that the plugin exports
  std::vector<std::string> cases;
  int rounds = 1;  // with another seed each
  double deadline_s = 1800;
  bool json = false;
  bool list = false;
};

const char* word(Outcome outcome) {
  switch (outcome) {
    case Outcome::passed:
      return "ok";
    case Outcome::failed:
      return "FAILED";
    case Outcome::not_offered:
      return "not offered";
  }
  return "?";
}

bool wanted(const Options& options, const Case& one) {
  return options.cases.empty() ||
         std::any_of(options.cases.begin(), options.cases.end(), [&](const std::string& part) {
           return one.name.find(part) != std::string::npos;
         });
}

void print(const Verdict& v) {
  std::printf("v%-3d %d ranks  %-34s %8.2f s  %s%s%s\n", v.abi, v.world, v.name.c_str(), v.seconds,
              word(v.outcome), v.why.empty() ? "" : ": ", v.why.c_str());
  std::fflush(stdout);
}

nlohmann::json to_json(const Verdict& v) {
  return {{"case", v.name},   {"abi", "v" + std::to_string(v.abi)}, {"ranks", v.world},
          {"round", v.round}, {"outcome", word(v.outcome)},         {"seconds", v.seconds},
          {"reason", v.why}};
}

class Run {
 public:
  explicit Run(Options options) : options_(std::move(options)) {}

  int all() {
    const std::vector<int> exported = fabric::conformance::exported_versions(options_.job.plugin);
    const std::vector<int>& abis = options_.abis.empty() ? exported : options_.abis;
    for (const int abi : abis) {
      if (std::find(exported.begin(), exported.end(), abi) == exported.end()) {
        throw fabric::perf::UsageError(options_.job.plugin + " exports no ncclNetPlugin_v" +
                                       std::to_string(abi));
      }
    }
    for (; round_ < options_.rounds; ++round_) {
      for (const int abi : abis) {
        for (const int world : options_.worlds) round(abi, world);
      }
    }
    return end(abis);
  }

 private:
  double elapsed() const {
    return static_cast<double>(fabric::perf::monotonic_ns() - began_) * 1e-9;
  }

  void round(int abi, int world) {
    Job job = options_.job;
    job.abi = abi;
    job.world = world;
    for (const Case& one : fabric::conformance::all_cases()) {
      if (!wanted(options_, one) || over_) continue;
      if (elapsed() > options_.deadline_s) {
        over_ = true;
        verdicts_.push_back({one.name, abi, world, round_, Outcome::failed, 0,
                             "the deadline of " + std::to_string(options_.deadline_s) +
                                 " s is over: not run, nor any after it"});
      } else {
        verdicts_.push_back(fabric::conformance::run_case(job, one, round_));
      }
      if (!options_.json) print(verdicts_.back());
    }
  }

  int end(const std::vector<int>& abis) const {
    std::size_t failed = 0;
    std::size_t passed = 0;
    for (const Verdict& v : verdicts_) {
      failed += v.outcome == Outcome::failed ? 1U : 0U;
      passed += v.outcome == Outcome::passed ? 1U : 0U;
    }
    if (verdicts_.empty()) throw fabric::perf::UsageError("no case has such a name");
    if (options_.json) {
      nlohmann::json out{{"plugin", options_.job.plugin},
                         {"level", options_.job.level == Level::nccl ? "nccl" : "strict"},
                         {"passed", passed},
                         {"failed", failed},
                         {"not_offered", verdicts_.size() - passed - failed},
                         {"rounds", round_},
                         {"seconds", elapsed()},
                         {"abis", nlohmann::json::array()},
                         {"cases", nlohmann::json::array()}};
      for (const int abi : abis) out["abis"].push_back("v" + std::to_string(abi));
      for (const Verdict& v : verdicts_) out["cases"].push_back(to_json(v));
      std::cout << out.dump(1) << '\n';
    } else {
      std::printf("%zu passed, %zu failed, %zu not offered, %.1f s\n", passed, failed,
                  verdicts_.size() - passed - failed, elapsed());
    }
    return failed == 0 ? 0 : 1;
  }

  Options options_;
  std::vector<Verdict> verdicts_;
  int round_ = 0;
  bool over_ = false;
  std::int64_t began_ = fabric::perf::monotonic_ns();
};

int parse(CLI::App& app, Options& o, int argc, char** argv) {
  std::vector<std::string> abis;
  int rank = -1;
  app.footer(kExamples);
  app.add_option("--plugin", o.job.plugin, "path of the plugin");
  app.add_option("--abi", abis, "tables to use (default: all that the plugin has)")
      ->check(CLI::IsMember({"v8", "v9", "v10", "v11", "v12"}));
  app.add_option("--level", o.job.level,
                 "nccl: what NCCL relies on; strict: all that our plugin promises")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Level>{{"nccl", Level::nccl}, {"strict", Level::strict}},
          CLI::ignore_space))
      ->default_str("strict");
  app.add_option("--ranks", o.worlds, "numbers of ranks")->check(CLI::Range(2, 64));
  app.add_option("--case", o.cases, "only cases with this in their name");
  app.add_option("--seed", o.job.seed, "of sizes and orders")->capture_default_str();
  app.add_option("--timeout", o.job.timeout_s, "seconds for each case")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  app.add_option("--deadline", o.deadline_s, "seconds for all: no case begins after that")
      ->capture_default_str();
  app.add_option("--rounds", o.rounds, "so often, with other sizes and orders each time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--device", o.job.device, "of the plugin's devices")->capture_default_str();
  auto* rank_option = app.add_option("--rank", rank, "run this rank only: the others elsewhere")
                          ->check(CLI::Range(0, 63));
  auto* rendezvous = app.add_option("--rendezvous", o.job.rendezvous,
                                    "file:DIR or tcp:HOST:PORT, where ranks are elsewhere");
  rank_option->needs(rendezvous);
  rendezvous->needs(rank_option);
  app.add_flag("--json", o.json, "one JSON object instead of a table");
  app.add_flag("--list", o.list, "the cases, and what each is about");
  app.add_flag("--verbose", o.job.verbose, "what the plugin logs");
  try {
    app.parse(argc, argv);
    if (rank >= 0) o.job.rank = rank;
    if (o.job.rank && (o.worlds.size() != 1 || rank >= o.worlds.front())) {
      throw CLI::ValidationError("--rank", "needs one --ranks, above it");
    }
    if (o.job.plugin.empty() && !o.list) throw CLI::RequiredError("--plugin");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const std::string& abi : abis) o.abis.push_back(std::stoi(abi.substr(1)));
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    CLI::App app{"Plays NCCL's side of the net plugin contract against any libnccl-net*.so.",
                 "fabric-conformance"};
    if (const int status = parse(app, options, argc, argv); status >= 0) return status;
    if (options.list) {
      for (const Case& one : fabric::conformance::all_cases()) {
        std::printf("%-34s %s\n", one.name.c_str(), one.what.c_str());
      }
      return 0;
    }
    return Run(std::move(options)).all();
  } catch (const fabric::perf::UsageError& error) {
    std::cerr << "fabric-conformance: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "fabric-conformance: " << error.what() << '\n';
    return 1;
  }
}
