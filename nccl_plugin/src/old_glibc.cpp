// What keeps the library loadable beside an old glibc (2.17; training containers of 2022 have 2.31
// and 2.35), wherever it is built. Linked into the library alone, not into programs or tests.
//
// A linker binds each symbol to its newest version in the glibc of the build machine. These are all
// that this library and the static libstdc++ and libgcc below it ask for that came, or were given a
// new version, after 2.17. Here they are hidden definitions, made of what every glibc has:
// - threads: moved from libpthread to libc in 2.34, and kept there under their first version, too.
//   Before that they are in libpthread.so.0, which is linked by name (since then an empty file).
// - stat, fstat: inline wrappers until 2.33. The kernel's structure is glibc's on 64 bits.
// - getrandom: 2.25.
// - __libc_single_threaded: 2.32. Never true: there is the control thread.
// - _dl_find_object: 2.35. How an exception finds its frames; dl_iterate_phdr was the way before.
// tests/unit/nccl_plugin/test_plugin_library.py says when another one comes up.
#include <features.h>

#if defined(__GLIBC__) && defined(__LP64__)

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "src/old_glibc.h"

FABRIC_BIND(first_pthread_create, pthread_create, FABRIC_FIRST);
FABRIC_BIND(first_pthread_join, pthread_join, FABRIC_FIRST);
FABRIC_BIND(first_pthread_once, pthread_once, FABRIC_FIRST);
FABRIC_BIND(first_pthread_key_create, pthread_key_create, FABRIC_FIRST);
FABRIC_BIND(first_pthread_mutex_trylock, pthread_mutex_trylock, FABRIC_FIRST);
FABRIC_BIND(first_pthread_setname_np, pthread_setname_np, FABRIC_FIRST_SETNAME);

extern "C" {

int first_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int first_pthread_join(pthread_t, void**);
int first_pthread_once(pthread_once_t*, void (*)());
int first_pthread_key_create(pthread_key_t*, void (*)(void*));
int first_pthread_mutex_trylock(pthread_mutex_t*);
int first_pthread_setname_np(pthread_t, const char*);

FABRIC_OURS int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                               void* (*run)(void*), void* argument) noexcept {
  return first_pthread_create(thread, attributes, run, argument);
}

FABRIC_OURS int pthread_join(pthread_t thread, void** result) {
  return first_pthread_join(thread, result);
}

FABRIC_OURS int pthread_once(pthread_once_t* once, void (*run)()) {
  return first_pthread_once(once, run);
}

FABRIC_OURS int __pthread_key_create(pthread_key_t* key, void (*destroy)(void*)) noexcept {
  return first_pthread_key_create(key, destroy);
}

FABRIC_OURS int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  return first_pthread_mutex_trylock(mutex);
}

FABRIC_OURS int pthread_setname_np(pthread_t thread, const char* name) noexcept {
  return first_pthread_setname_np(thread, name);
}

FABRIC_OURS int stat(const char* path, struct stat* out) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, out, 0));
}

FABRIC_OURS int fstat(int fd, struct stat* out) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, fd, out));
}

FABRIC_OURS int fstat64(int fd, struct stat64* out) noexcept {
  static_assert(sizeof(struct stat64) == sizeof(struct stat));
  return static_cast<int>(::syscall(SYS_fstat, fd, out));
}

FABRIC_OURS ssize_t getrandom(void* out, size_t size, unsigned int flags) {
  return ::syscall(SYS_getrandom, out, size, flags);
}

FABRIC_OURS char __libc_single_threaded = 0;

#ifdef DLFO_STRUCT_HAS_EH_DBASE

namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* out;
};

int look(dl_phdr_info* object, std::size_t /*size*/, void* raw) {
  const auto* search = static_cast<const Search*>(raw);
  const ElfW(Phdr)* frames = nullptr;
  std::uintptr_t low = UINTPTR_MAX;
  std::uintptr_t high = 0;
  bool holds = false;
  for (std::size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_GNU_EH_FRAME) {
      frames = &segment;
    }
    if (segment.p_type == PT_LOAD) {
      const std::uintptr_t from = object->dlpi_addr + segment.p_vaddr;
      const std::uintptr_t to = from + segment.p_memsz;
      holds = holds || (search->address >= from && search->address < to);
      low = from < low ? from : low;
      high = to > high ? to : high;
    }
  }
  if (!holds || frames == nullptr) {
    return 0;
  }
  *search->out = {};
  // NOLINTBEGIN(performance-no-int-to-ptr): the loader gives numbers, its answer has pointers
  search->out->dlfo_map_start = reinterpret_cast<void*>(low);
  search->out->dlfo_map_end = reinterpret_cast<void*>(high);
  search->out->dlfo_eh_frame = reinterpret_cast<void*>(object->dlpi_addr + frames->p_vaddr);
  // NOLINTEND(performance-no-int-to-ptr)
  return 1;
}

}  // namespace

FABRIC_OURS int _dl_find_object(void* address, dl_find_object* out) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), out};
  return ::dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

#endif

}  // extern "C"

#endif
