// As old_glibc.cpp, for a library that loads others: dlopen and its like moved from libdl to libc
// in glibc 2.34, and are kept there under their first version, too. Before that they are in
// libdl.so.2, which is linked by name (since then an empty file).
#include <features.h>

#if defined(__GLIBC__) && defined(__LP64__)

#include <dlfcn.h>

#include "src/old_glibc.h"

FABRIC_BIND(first_dlopen, dlopen, FABRIC_FIRST);
FABRIC_BIND(first_dlclose, dlclose, FABRIC_FIRST);
FABRIC_BIND(first_dlsym, dlsym, FABRIC_FIRST);
FABRIC_BIND(first_dlvsym, dlvsym, FABRIC_FIRST);
FABRIC_BIND(first_dlerror, dlerror, FABRIC_FIRST);

extern "C" {

void* first_dlopen(const char*, int);
int first_dlclose(void*);
void* first_dlsym(void*, const char*);
void* first_dlvsym(void*, const char*, const char*);
char* first_dlerror();

FABRIC_OURS void* dlopen(const char* file, int mode) noexcept { return first_dlopen(file, mode); }
FABRIC_OURS int dlclose(void* handle) noexcept { return first_dlclose(handle); }
FABRIC_OURS void* dlsym(void* handle, const char* name) noexcept {
  return first_dlsym(handle, name);
}
FABRIC_OURS void* dlvsym(void* handle, const char* name, const char* version) noexcept {
  return first_dlvsym(handle, name, version);
}
FABRIC_OURS char* dlerror() noexcept { return first_dlerror(); }

}  // extern "C"

#endif
