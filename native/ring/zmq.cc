#include "ring/zmq.h"

#include <dlfcn.h>

namespace hvd::ring {
namespace {

template <class Function>
bool find(void* library, const char* name, Function* function) noexcept {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

bool Zmq::load(const char* path) noexcept {
  // The copy that is loaded already owns the sockets; loading it afresh is for programs that are not Python. The
  // library is never unloaded, since its threads call back into this one.
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(path, RTLD_LAZY);
  return library != nullptr && find(library, "zmq_msg_init", &msg_init) &&
         find(library, "zmq_msg_init_size", &msg_init_size) && find(library, "zmq_msg_init_data", &msg_init_data) &&
         find(library, "zmq_msg_close", &msg_close) && find(library, "zmq_msg_move", &msg_move) &&
         find(library, "zmq_msg_send", &msg_send) && find(library, "zmq_msg_recv", &msg_recv) &&
         find(library, "zmq_msg_more", &msg_more) && find(library, "zmq_msg_data", &msg_data) &&
         find(library, "zmq_msg_size", &msg_size) && find(library, "zmq_poll", &poll) &&
         find(library, "zmq_getsockopt", &getsockopt) && find(library, "zmq_errno", &last_errno);
}

}  // namespace hvd::ring
