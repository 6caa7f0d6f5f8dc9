// The few functions of libzmq that the ring calls, found at run time in the library that pyzmq has loaded.
//
// pyzmq's wheels carry libzmq, compiled into its extension module or beside it, and a second copy could not use the
// first one's sockets. dlsym on the extension module looks through the module and all that it depends on, so either
// layout works, nothing is linked, and no zmq header is needed to build. The types below are part of libzmq's stable
// ABI since 4.1.

#ifndef HVDLITE_RING_ZMQ_H_
#define HVDLITE_RING_ZMQ_H_

#include <cstddef>

namespace hvd::ring {

struct alignas(void*) ZmqMessage {
  unsigned char opaque[64];
};

struct ZmqPollItem {
  void* socket;
  int fd;
  short events;
  short revents;
};

constexpr short kZmqPollIn = 1;
constexpr short kZmqPollOut = 2;
constexpr int kZmqDontWait = 1;
constexpr int kZmqSendMore = 2;
constexpr int kZmqLastEndpoint = 32;

struct Zmq {
  int (*msg_init)(ZmqMessage*);
  int (*msg_init_size)(ZmqMessage*, size_t bytes);
  int (*msg_init_data)(ZmqMessage*, void* data, size_t bytes, void (*release)(void* data, void* hint), void* hint);
  int (*msg_close)(ZmqMessage*);
  int (*msg_move)(ZmqMessage* to, ZmqMessage* from);
  int (*msg_send)(ZmqMessage*, void* socket, int flags);
  int (*msg_recv)(ZmqMessage*, void* socket, int flags);
  int (*msg_more)(const ZmqMessage*);
  void* (*msg_data)(ZmqMessage*);
  size_t (*msg_size)(const ZmqMessage*);
  int (*poll)(ZmqPollItem*, int n, long timeout_ms);
  int (*getsockopt)(void* socket, int option, void* value, size_t* bytes);
  int (*last_errno)();

  // Fills the table from the shared object at `path`. False if it cannot be loaded or lacks a function.
  bool load(const char* path) noexcept;
};

}  // namespace hvd::ring

#endif  // HVDLITE_RING_ZMQ_H_
