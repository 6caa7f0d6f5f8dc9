// CHECK(condition): ends the program with the place and the condition if it does not hold.

#ifndef HVDLITE_TESTS_CHECK_H_
#define HVDLITE_TESTS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                               \
    }                                                                             \
  } while (false)

#endif  // HVDLITE_TESTS_CHECK_H_
