/*
 * Fabric time for any process of the host, in C or C++: this header is all there is.
 *
 *   struct fabric_clock clock;
 *   struct fabric_time now;
 *   if (fabric_clock_open(&clock, NULL) == 0 && fabric_clock_now(&clock, &now) == 0)
 *     printf("%lld ns, off by %.0f ns at most\n", (long long)now.ns, now.bound_ns);
 *   fabric_clock_close(&clock);
 *
 * The page says where a line lies over CLOCK_MONOTONIC_RAW and how far it may be off; reading it is
 * one clock_gettime and no system call. One writer, the clock service; any number of readers. There
 * are two lines, of which one holds while the other is written (a latch, as in the kernel's
 * seqcount_latch_t): a writer that dies in between, or is not scheduled, keeps nobody waiting. The
 * file is created whole, renamed into place, and never cut: a mapping of it stays sound. Only a page
 * of another version takes its place, and nothing here looks for one: who has the old one open reads
 * HOLDOVER with a bound that grows, then ESTALE when the line ends (an hour at most). Close and open
 * it anew then, or when it says HOLDOVER for long. Layout as in clocksync/page/clock_page.py.
 * Little-endian hosts only.
 */
#ifndef FABRIC_CLOCK_H
#define FABRIC_CLOCK_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FABRIC_CLOCK_MAGIC 0x4b4c4346u /* "FCLK" */
#define FABRIC_CLOCK_VERSION 1
#define FABRIC_CLOCK_SIZE 4096
#define FABRIC_CLOCK_SALT 0x9e3779b97f4a7c15ull

enum fabric_clock_state {
  FABRIC_CLOCK_UNSYNCED = 0,
  FABRIC_CLOCK_LOCKED = 1,
  FABRIC_CLOCK_HOLDOVER = 2, /* nobody was heard lately; the bound grows */
};

struct fabric_clock_line {
  uint64_t check;    /* of all words after it: their exclusive or, with FABRIC_CLOCK_SALT */
  int64_t raw_ns;    /* CLOCK_MONOTONIC_RAW at the line's origin */
  int64_t fabric_ns; /* fabric time there */
  double slope;      /* fabric nanoseconds per raw nanosecond, less one */
  double bound_ns;   /* how far off it may be at the origin */
  double drift;      /* by so much a nanosecond more later */
  double wander;     /* and by half of so much a nanosecond squared */
  uint64_t fresh_ns; /* older than that it is holdover, whatever the state says */
  uint64_t end_ns;   /* older than that it is nothing */
  uint32_t state;
  uint32_t reference; /* id of the host whose time it is */
  uint64_t epoch;     /* another one: time may have been set back */
  uint64_t reserved;
};

struct fabric_clock_page {
  uint32_t magic;
  uint16_t version;
  uint16_t used; /* bytes of this structure */
  uint64_t seq;  /* lines written so far; line[seq & 1] holds */
  struct fabric_clock_line line[2];
};

struct fabric_time {
  int64_t ns; /* never less than in the call before, but for another epoch */
  double bound_ns;
  enum fabric_clock_state state;
  uint32_t reference;
  uint64_t epoch;
};

struct fabric_clock {
  const struct fabric_clock_page* page;
  int64_t last_ns;
  uint64_t last_epoch;
};

/* The page of this host, or below `run_dir`; NULL: $FABRIC_RUN_DIR, or /run/fabricd.
 * 0, or an errno: ENOENT without a clock service, EPROTO when it is no page of this version. */
static inline int fabric_clock_open(struct fabric_clock* clock, const char* run_dir) {
  char path[PATH_MAX];
  struct stat info;
  void* map;
  int fd, length;
  memset(clock, 0, sizeof *clock);
  if (run_dir == NULL) run_dir = getenv("FABRIC_RUN_DIR");
  if (run_dir == NULL || run_dir[0] == '\0') run_dir = "/run/fabricd";
  length = snprintf(path, sizeof path, "%s/clock", run_dir);
  if (length < 0 || (size_t)length >= sizeof path) return ENAMETOOLONG;
  fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != FABRIC_CLOCK_SIZE) {
    close(fd);
    return EPROTO;
  }
  map = mmap(NULL, FABRIC_CLOCK_SIZE, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return errno;
  clock->page = (const struct fabric_clock_page*)map;
  if (clock->page->magic != FABRIC_CLOCK_MAGIC || clock->page->version != FABRIC_CLOCK_VERSION ||
      clock->page->used != sizeof(struct fabric_clock_page)) {
    munmap(map, FABRIC_CLOCK_SIZE);
    clock->page = NULL;
    return EPROTO;
  }
  return 0;
}

static inline void fabric_clock_close(struct fabric_clock* clock) {
  if (clock->page != NULL) munmap((void*)(uintptr_t)clock->page, FABRIC_CLOCK_SIZE);
  clock->page = NULL;
}

/* What a line says at `raw_ns` of CLOCK_MONOTONIC_RAW; ESTALE when that is nothing. */
static inline int fabric_clock_at(const struct fabric_clock_line* line, int64_t raw_ns,
                                  struct fabric_time* out) {
  const int64_t age = (int64_t)((uint64_t)raw_ns - (uint64_t)line->raw_ns);
  /* A reader that was stopped between page and clock may be a little before the origin. */
  const double far = age < 0 ? -(double)age : (double)age;
  if (line->state > FABRIC_CLOCK_HOLDOVER || !(line->slope > -1 && line->slope < 1) ||
      !(line->bound_ns >= 0 && line->drift >= 0 && line->wander >= 0)) {
    return EPROTO;
  }
  if (line->state == FABRIC_CLOCK_UNSYNCED || far > (double)line->end_ns) return ESTALE;
  out->ns = line->fabric_ns + age + (int64_t)(line->slope * (double)age);
  out->bound_ns = line->bound_ns + (line->drift + line->wander * far / 2) * far;
  out->state = far > (double)line->fresh_ns ? FABRIC_CLOCK_HOLDOVER
                                            : (enum fabric_clock_state)line->state;
  out->reference = line->reference;
  out->epoch = line->epoch;
  return 0;
}

/* 0, ESTALE while there is no time, EPROTO when the page is damaged. Not for two threads at once
 * with the same `clock`; each may have its own. */
static inline int fabric_clock_now(struct fabric_clock* clock, struct fabric_time* out) {
  enum { TRIES = 1000, WORDS = sizeof(struct fabric_clock_line) / 8 };
  struct fabric_clock_line copy;
  uint64_t words[WORDS];
  struct timespec raw;
  int i, tries, error;
  for (tries = 0;; ++tries) {
    const uint64_t seq = __atomic_load_n(&clock->page->seq, __ATOMIC_ACQUIRE);
    const uint64_t* from = (const uint64_t*)&clock->page->line[seq & 1];
    uint64_t sum = FABRIC_CLOCK_SALT;
    for (i = 0; i < WORDS; ++i) words[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&clock->page->seq, __ATOMIC_RELAXED) == seq) {
      for (i = 1; i < WORDS; ++i) sum ^= words[i];
      if (sum == words[0]) break;
    }
    if (tries == TRIES) return EPROTO;
  }
  memcpy(&copy, words, sizeof copy);
  if (clock_gettime(CLOCK_MONOTONIC_RAW, &raw) != 0) return errno;
  error = fabric_clock_at(&copy, (int64_t)raw.tv_sec * 1000000000 + raw.tv_nsec, out);
  if (error != 0) return error;
  if (out->epoch == clock->last_epoch && out->ns < clock->last_ns) {
    /* A newer line lies a little lower: wait for it rather than go back. */
    out->bound_ns += (double)(clock->last_ns - out->ns);
    out->ns = clock->last_ns;
  }
  clock->last_ns = out->ns;
  clock->last_epoch = out->epoch;
  return 0;
}

#endif
