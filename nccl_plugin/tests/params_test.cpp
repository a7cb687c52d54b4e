// Parameters from the environment: what is taken, refused, and said.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "host/params.h"

using namespace fabric::host;

namespace {

// Sets variables for one test and takes all of the table out again.
class Environment {
 public:
  Environment() { clear(); }
  ~Environment() { clear(); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

 private:
  static void clear() {
    for (const ParamSpec& spec : kParams) {
      ::unsetenv(std::string(spec.name).c_str());
    }
  }
};

}  // namespace

TEST_CASE("without a variable every parameter has the default of its field") {
  const Environment environment;
  const Params read = read_params();
  for (const ParamSpec& spec : kParams) {
    if (spec.name != "FABRIC_JOB") {
      CHECK_MESSAGE(value_text(read, spec) == value_text(Params{}, spec), std::string(spec.name));
    }
  }
  CHECK_FALSE(read.job.empty());
  CHECK(read.complaints.empty());
}

TEST_CASE("both ends of every range are taken, what lies beyond and what is no number is not") {
  for (const ParamSpec& spec : kParams) {
    if (spec.low >= spec.high) {
      continue;
    }
    const std::string name(spec.name);
    CAPTURE(name);
    const std::string fallback = value_text(Params{}, spec);
    for (const double bound : {spec.low, spec.high}) {
      const Environment environment;
      Environment::set(name.c_str(), std::to_string(bound).c_str());
      const Params read = read_params();
      CHECK(read.complaints.empty());
      CHECK(std::stod(value_text(read, spec)) == doctest::Approx(bound));
    }
    for (const std::string& wrong :
         {std::to_string(spec.low - 1), std::to_string(spec.high + 1), std::string("nan"),
          std::string("12abc"), std::string("1e999"), std::string(" "), std::string("-")}) {
      CAPTURE(wrong);
      const Environment environment;
      Environment::set(name.c_str(), wrong.c_str());
      const Params read = read_params();
      CHECK(read.complaints.find(name + "=" + wrong) != std::string::npos);
      CHECK(value_text(read, spec) == fallback);
    }
  }
}

TEST_CASE("what counts bytes or says yes and no takes no fraction, seconds do") {
  const Environment environment;
  Environment::set("FABRIC_FAILOVER", "0.5");
  Environment::set("FABRIC_CHUNK", "8192.5");
  Environment::set("FABRIC_HOLD", "0.25");
  const Params read = read_params();
  CHECK(read.failover);
  CHECK(read.chunk_size == Params{}.chunk_size);
  CHECK(read.hold_ns == 250'000'000);
  CHECK(read.complaints.find("FABRIC_FAILOVER") != std::string::npos);
  CHECK(read.complaints.find("FABRIC_CHUNK") != std::string::npos);
  CHECK(read.complaints.find("FABRIC_HOLD") == std::string::npos);
}

TEST_CASE("the one line for the log names every parameter with its value") {
  const Environment environment;
  Environment::set("FABRIC_DEADLINE", "7.5");
  Environment::set("FABRIC_JOB", "llm-7");
  const std::string line = describe(read_params());
  for (const ParamSpec& spec : kParams) {
    CHECK(line.find(std::string(spec.name) + "=") != std::string::npos);
  }
  CHECK(line.find("FABRIC_DEADLINE=7.5") != std::string::npos);
  CHECK(line.find("FABRIC_JOB=llm-7") != std::string::npos);
}
