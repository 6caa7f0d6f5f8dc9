// The payload of a frame: memory of its own, or memory of the caller's that it refers to.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <utility>

namespace hvd::ring {

class Message {
 public:
  Message() noexcept = default;
  ~Message() { clear(); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  // Becomes a message with memory of its own, not initialised. False if there is no memory; the message is then empty.
  bool allocate(size_t bytes) noexcept {
    clear();
    if (bytes == 0) return true;
    data_ = static_cast<char*>(std::malloc(bytes));
    if (data_ != nullptr) size_ = bytes;
    return data_ != nullptr;
  }

  // Becomes a message over memory of the caller.
  void borrow(void* data, size_t bytes) noexcept {
    clear();
    data_ = static_cast<char*>(data);
    size_ = bytes;
    is_borrowed_ = true;
  }

  // Takes the content of `other`, which is empty afterwards.
  void take(Message* other) noexcept {
    clear();
    std::swap(data_, other->data_);
    std::swap(size_, other->size_);
    std::swap(is_borrowed_, other->is_borrowed_);
  }

  void clear() noexcept {
    if (!is_borrowed_) std::free(data_);
    data_ = nullptr;
    size_ = 0;
    is_borrowed_ = false;
  }

  char* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  bool is_borrowed() const noexcept { return is_borrowed_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  bool is_borrowed_ = false;
};

}  // namespace hvd::ring
