// Encrypts and authenticates the frames, or the acknowledgements, of one connection: AES-128-GCM.
//
// Each connection has keys of its own, and each direction of it another one. The nonce is the header's sequence number,
// which neither a frame nor an acknowledgement of one connection ever shares with another. The header travels in the
// clear, but the tag that follows the payload covers it as well.
//
// The functions are those of OpenSSL's libcrypto, found in a library that Python has loaded already. So nothing has to
// be linked, no header is needed, and there is one libcrypto in the process, with the security updates that Python
// gets. The signatures have been the same since OpenSSL 1.1.

#pragma once

#include <cstddef>

#include "ring/link/frame.h"

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

class Cipher {
 public:
  static constexpr size_t kTagBytes = 16;

  // `crypto` null: nothing is encrypted, and tags have no bytes.
  explicit Cipher(const Crypto* crypto) noexcept : crypto_(crypto) {}
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  bool is_on() const noexcept { return crypto_ != nullptr; }
  size_t tag_bytes() const noexcept { return is_on() ? kTagBytes : 0; }

  // Starts over with this key. False if there is no memory.
  bool set_key(const unsigned char* key, bool to_encrypt) noexcept;

  // Writes the encrypted payload to `sealed`, and then the tag. False if libcrypto fails.
  bool seal(const FrameHeader& header, const char* payload, size_t bytes, char* sealed) noexcept;

  // Decrypts `payload` in place. False if it, the header or the tag is not what was sealed.
  bool open(const FrameHeader& header, char* payload, size_t bytes, const char* tag) noexcept;

 private:
  const Crypto* const crypto_;
  Crypto::Context* context_ = nullptr;
};

}  // namespace hvd::ring
