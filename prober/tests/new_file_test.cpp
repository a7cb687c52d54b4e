#include "shell/new_file.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <string>

using fabric::prober::create_file;
using fabric::prober::Fd;

TEST_CASE("a file is created at its final mode, and never written through a link") {
  char name[] = "/tmp/fabric-new-file-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  const std::string directory = name;
  const std::string path = directory + "/draft";
  const std::string victim = directory + "/victim";
  const mode_t before = ::umask(0);

  { const Fd kept = create_file(victim, 0600); }
  REQUIRE(::symlink(victim.c_str(), path.c_str()) == 0);
  const Fd fd = create_file(path, 0640);
  REQUIRE(fd);
  CHECK(::write(fd.get(), "x", 1) == 1);

  struct stat facts {};
  REQUIRE(::lstat(path.c_str(), &facts) == 0);
  CHECK(S_ISREG(facts.st_mode));
  CHECK((facts.st_mode & 07777U) == 0640U);
  REQUIRE(::lstat(victim.c_str(), &facts) == 0);
  CHECK(facts.st_size == 0);

  // What cannot be removed is not written to either.
  REQUIRE(::unlink(path.c_str()) == 0);
  REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  CHECK_FALSE(create_file(path, 0600));

  ::umask(before);
  ::rmdir(path.c_str());
  ::unlink(victim.c_str());
  ::rmdir(name);
}
