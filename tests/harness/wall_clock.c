// Preloaded into a process, shifts its wall clock by the seconds that the file WALL_CLOCK_SHIFT holds at the moment.
// The monotonic clocks, and how long anything waits, stay as they are, as when somebody sets the clock of a host.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* shift_s;

__attribute__((constructor)) static void open_shift(void) {
  int file = open(getenv("WALL_CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC);
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) abort();
  shift_s = mapped;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && shift_s) now->tv_sec += *shift_s;
  return result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}
