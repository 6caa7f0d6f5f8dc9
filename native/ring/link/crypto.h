// The functions of OpenSSL's libcrypto that encrypt frames, found in a library that Python has loaded already.
//
// So nothing has to be linked, no header is needed, and there is one libcrypto in the process, with the security
// updates that Python gets. The signatures have been the same since OpenSSL 1.1.

#pragma once

namespace hvd::ring {

struct Crypto {
  using Context = void;
  using Init = int (*)(Context*, const void* cipher, void* engine, const unsigned char* key, const unsigned char* iv);
  using Update = int (*)(Context*, unsigned char* out, int* out_bytes, const unsigned char* in, int in_bytes);
  using Final = int (*)(Context*, unsigned char* out, int* out_bytes);

  const void* (*aes_128_gcm)() = nullptr;
  Context* (*context_new)() = nullptr;
  void (*context_free)(Context*) = nullptr;
  int (*control)(Context*, int type, int number, void* pointer) = nullptr;
  Init encrypt_init = nullptr;
  Update encrypt_update = nullptr;
  Final encrypt_final = nullptr;
  Init decrypt_init = nullptr;
  Update decrypt_update = nullptr;
  Final decrypt_final = nullptr;

  // `path`: the library, or one that is linked to it. False if it does not have all of them.
  bool load(const char* path) noexcept;
};

}  // namespace hvd::ring
