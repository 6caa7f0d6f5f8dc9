#include "ring/link/cipher.h"

#include <dlfcn.h>

#include <cstring>

namespace hvd::ring {
namespace {

// libcrypto's numbers for EVP_CIPHER_CTX_ctrl.
constexpr int kGetTag = 0x10;
constexpr int kSetTag = 0x11;

struct Nonce {
  explicit Nonce(uint64_t sequence) noexcept { std::memcpy(bytes + 4, &sequence, sizeof sequence); }
  unsigned char bytes[12] = {};
};

const unsigned char* bytes_of(const void* data) noexcept { return static_cast<const unsigned char*>(data); }

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

Cipher::~Cipher() {
  if (context_ != nullptr) crypto_->context_free(context_);
}

bool Cipher::set_key(const unsigned char* key, bool to_encrypt) noexcept {
  if (context_ == nullptr) context_ = crypto_->context_new();
  if (context_ == nullptr) return false;
  const Crypto::Init init = to_encrypt ? crypto_->encrypt_init : crypto_->decrypt_init;
  return init(context_, crypto_->aes_128_gcm(), nullptr, key, nullptr) == 1;
}

bool Cipher::seal(const FrameHeader& header, const char* payload, size_t bytes, char* sealed) noexcept {
  const Nonce nonce(header.sequence);
  auto* out = reinterpret_cast<unsigned char*>(sealed);
  int n = 0;
  return crypto_->encrypt_init(context_, nullptr, nullptr, nullptr, nonce.bytes) == 1 &&
         crypto_->encrypt_update(context_, nullptr, &n, bytes_of(&header), sizeof header) == 1 &&
         (bytes == 0 || crypto_->encrypt_update(context_, out, &n, bytes_of(payload), static_cast<int>(bytes)) == 1) &&
         crypto_->encrypt_final(context_, out + bytes, &n) == 1 &&
         crypto_->control(context_, kGetTag, kTagBytes, out + bytes) == 1;
}

bool Cipher::open(const FrameHeader& header, char* payload, size_t bytes, const char* tag) noexcept {
  const Nonce nonce(header.sequence);
  auto* data = reinterpret_cast<unsigned char*>(payload);
  unsigned char nothing[kTagBytes];
  int n = 0;
  return crypto_->decrypt_init(context_, nullptr, nullptr, nullptr, nonce.bytes) == 1 &&
         crypto_->decrypt_update(context_, nullptr, &n, bytes_of(&header), sizeof header) == 1 &&
         (bytes == 0 || crypto_->decrypt_update(context_, data, &n, data, static_cast<int>(bytes)) == 1) &&
         crypto_->control(context_, kSetTag, kTagBytes, const_cast<char*>(tag)) == 1 &&
         crypto_->decrypt_final(context_, nothing, &n) == 1;
}

}  // namespace hvd::ring
