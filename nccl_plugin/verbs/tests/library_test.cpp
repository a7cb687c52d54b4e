// Loading libibverbs: the one of this machine (rdma-core is among the packages of ./run), none, and
// a library that is something else.
#include <doctest/doctest.h>

#include <string>

#include "verbs/library.h"

using fabric::verbs::Library;

TEST_CASE("verbs library: this machine's has every function in its version") {
  const Library& library = Library::get();
  INFO(library.missing());
  REQUIRE(library.functions() != nullptr);
  CHECK(library.missing().empty());
  CHECK(&Library::get() == &library);
  const fabric::verbs::Functions& verbs = *library.functions();
  CHECK(std::string(verbs.wc_status_str(IBV_WC_WR_FLUSH_ERR)) == "Work Request Flushed Error");
  CHECK(std::string(verbs.port_state_str(IBV_PORT_ACTIVE)) == "active");
  CHECK((verbs.reg_mr_iova2 != nullptr));
  CHECK((verbs.reg_dmabuf_mr != nullptr));
}

TEST_CASE("verbs library: without one there are no functions, and the reason names the file") {
  const Library library("libibverbs-of-no-machine.so.1");
  CHECK(library.functions() == nullptr);
  CHECK(library.missing().find("libibverbs-of-no-machine.so.1") != std::string::npos);
}

TEST_CASE("verbs library: one without the functions is refused by their names") {
  const Library library("libm.so.6");
  CHECK(library.functions() == nullptr);
  CHECK(library.missing().find("ibv_open_device@IBVERBS_1.1") != std::string::npos);
  CHECK(library.missing().find("ibv_fork_init@IBVERBS_1.1") != std::string::npos);
}
