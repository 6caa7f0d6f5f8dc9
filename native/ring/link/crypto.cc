#include "ring/link/crypto.h"

#include <dlfcn.h>

namespace hvd::ring {
namespace {

template <class Function>
bool find(void* library, const char* name, Function* function) noexcept {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

bool Crypto::load(const char* path) noexcept {
  // Never unloaded: Python has it for as long as the process lives.
  void* library = dlopen(path, RTLD_LAZY);
  return library != nullptr && find(library, "EVP_aes_128_gcm", &aes_128_gcm) &&
         find(library, "EVP_CIPHER_CTX_new", &context_new) && find(library, "EVP_CIPHER_CTX_free", &context_free) &&
         find(library, "EVP_CIPHER_CTX_ctrl", &control) && find(library, "EVP_EncryptInit_ex", &encrypt_init) &&
         find(library, "EVP_EncryptUpdate", &encrypt_update) && find(library, "EVP_EncryptFinal_ex", &encrypt_final) &&
         find(library, "EVP_DecryptInit_ex", &decrypt_init) && find(library, "EVP_DecryptUpdate", &decrypt_update) &&
         find(library, "EVP_DecryptFinal_ex", &decrypt_final);
}

}  // namespace hvd::ring
