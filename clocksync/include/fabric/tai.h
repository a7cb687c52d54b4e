/*
 * TAI and UTC for any process of the host, in C or C++; beside fabric/clock.h.
 *
 *   struct fabric_tai clock;
 *   struct fabric_tai_time now;
 *   if (fabric_tai_open(&clock, NULL) == 0 && fabric_tai_now(&clock, &now) == 0)
 *     printf("TAI %lld ns, off by %.0f ns at most\n", (long long)now.time.ns, now.time.bound_ns);
 *   fabric_tai_close(&clock);
 *
 * A page of its own ($RUN/clock-tai), a latch as the clock page is. There is a time while some host
 * of the fabric has a PTP grandmaster that gives TAI. Layout as in clocksync/page/tai_page.py.
 */
#ifndef FABRIC_TAI_H
#define FABRIC_TAI_H

#include <fabric/clock.h>

#define FABRIC_TAI_MAGIC 0x49415446u /* "FTAI" */
#define FABRIC_TAI_VERSION 1

enum {
  FABRIC_TAI_UTC_KNOWN = 1, /* utc_offset_s holds */
  FABRIC_TAI_TRACEABLE = 2, /* to a primary reference, as the grandmaster says */
};

struct fabric_tai_record {
  struct fabric_clock_line line; /* its `check` is of all words of the record;
                                    fabric_ns is TAI, reference the host that has the master */
  uint64_t grandmaster;          /* clockIdentity, as a number */
  int32_t utc_offset_s;          /* TAI less UTC */
  uint32_t flags;
  uint16_t steps_removed;
  uint8_t clock_class;
  uint8_t accuracy;
  int32_t leap; /* at the end of the UTC day: +1 or -1 second, or 0 */
};

struct fabric_tai_page {
  uint32_t magic;
  uint16_t version;
  uint16_t used; /* bytes of this structure */
  uint64_t seq;  /* records written so far; record[seq & 1] holds */
  struct fabric_tai_record record[2];
};

struct fabric_tai_time {
  struct fabric_time time; /* ns: TAI since 1970-01-01 00:00:00 TAI */
  int64_t utc_ns;          /* UTC since 1970; holds with FABRIC_TAI_UTC_KNOWN */
  struct fabric_tai_record source;
};

struct fabric_tai {
  const struct fabric_tai_page* page;
  int64_t last_ns;
  uint64_t last_epoch;
};

/* The page of this host, or below `run_dir`; NULL: $FABRIC_RUN_DIR, or /run/fabricd.
 * 0, or an errno: ENOENT without a clock service, EPROTO when it is no page of this version. */
static inline int fabric_tai_open(struct fabric_tai* clock, const char* run_dir) {
  char path[PATH_MAX];
  struct stat info;
  void* map;
  int fd, length;
  memset(clock, 0, sizeof *clock);
  if (run_dir == NULL) run_dir = getenv("FABRIC_RUN_DIR");
  if (run_dir == NULL || run_dir[0] == '\0') run_dir = "/run/fabricd";
  length = snprintf(path, sizeof path, "%s/clock-tai", run_dir);
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
  clock->page = (const struct fabric_tai_page*)map;
  if (clock->page->magic != FABRIC_TAI_MAGIC || clock->page->version != FABRIC_TAI_VERSION ||
      clock->page->used != sizeof(struct fabric_tai_page)) {
    munmap(map, FABRIC_CLOCK_SIZE);
    clock->page = NULL;
    return EPROTO;
  }
  return 0;
}

static inline void fabric_tai_close(struct fabric_tai* clock) {
  if (clock->page != NULL) munmap((void*)(uintptr_t)clock->page, FABRIC_CLOCK_SIZE);
  clock->page = NULL;
}

/* 0, ESTALE while there is no time, EPROTO when the page is damaged. Not for two threads at once
 * with the same `clock`; each may have its own. */
static inline int fabric_tai_now(struct fabric_tai* clock, struct fabric_tai_time* out) {
  enum { TRIES = 1000, WORDS = sizeof(struct fabric_tai_record) / 8 };
  uint64_t words[WORDS];
  struct timespec raw;
  int i, tries, error;
  for (tries = 0;; ++tries) {
    const uint64_t seq = __atomic_load_n(&clock->page->seq, __ATOMIC_ACQUIRE);
    const uint64_t* from = (const uint64_t*)&clock->page->record[seq & 1];
    uint64_t sum = FABRIC_CLOCK_SALT;
    for (i = 0; i < WORDS; ++i) words[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&clock->page->seq, __ATOMIC_RELAXED) == seq) {
      for (i = 1; i < WORDS; ++i) sum ^= words[i];
      if (sum == words[0]) break;
    }
    if (tries == TRIES) return EPROTO;
  }
  memcpy(&out->source, words, sizeof out->source);
  if (clock_gettime(CLOCK_MONOTONIC_RAW, &raw) != 0) return errno;
  error = fabric_clock_at(&out->source.line, (int64_t)raw.tv_sec * 1000000000 + raw.tv_nsec,
                          &out->time);
  if (error != 0) return error;
  if (out->time.epoch == clock->last_epoch && out->time.ns < clock->last_ns) {
    /* A newer line lies a little lower: wait for it rather than go back. */
    out->time.bound_ns += (double)(clock->last_ns - out->time.ns);
    out->time.ns = clock->last_ns;
  }
  clock->last_ns = out->time.ns;
  clock->last_epoch = out->time.epoch;
  out->utc_ns = out->time.ns - (int64_t)out->source.utc_offset_s * 1000000000;
  return 0;
}

#endif
