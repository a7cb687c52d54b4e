// How a symbol is bound to the version that it had in an old glibc; see old_glibc.cpp.
#pragma once

// The version in which a symbol entered glibc: that of the port.
#if defined(__x86_64__)
#define FABRIC_FIRST "GLIBC_2.2.5"
#define FABRIC_FIRST_SETNAME "GLIBC_2.12"
#elif defined(__riscv)
#define FABRIC_FIRST "GLIBC_2.27"
#define FABRIC_FIRST_SETNAME "GLIBC_2.27"
#else  // aarch64, ppc64le
#define FABRIC_FIRST "GLIBC_2.17"
#define FABRIC_FIRST_SETNAME "GLIBC_2.17"
#endif
// Whoever else is in the process keeps his own.
#define FABRIC_OURS __attribute__((visibility("hidden")))
#define FABRIC_BIND(ours, theirs, version) __asm__(".symver " #ours ", " #theirs "@" version)
