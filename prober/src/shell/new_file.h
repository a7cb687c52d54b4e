// Creates a file that is filled and then renamed into place.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "shell/fd.h"

namespace fabric::prober {

// Opens a new file to read and write; an invalid Fd and errno when there is none. It never has more
// rights than `mode`, and whatever lies there under that name, a link included, is removed first.
inline Fd create_file(const std::string& path, mode_t mode) {
  ::unlink(path.c_str());
  return Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
}

}  // namespace fabric::prober
