#include "page/carrier.h"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.h"

namespace hvd::page {

namespace {

// The bytes from the beginning of a tensor to that of the next one.
uint64_t room_of(const hvd_carried& tensor) noexcept { return (tensor.recipe->bytes + 63) / 64 * 64; }

uint64_t room_of(const Carried& carried) noexcept {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < carried.count; ++i) bytes += room_of(carried.tensors[i]);
  return bytes;
}

// Copies what other ranks will read. More than a few lines go past this core's cache: another core may take several
// times as long to read a line from there as from memory.
void copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes) noexcept {
  constexpr uint64_t kStreamed = 4 << 10;
  if (bytes >= kStreamed) {
    hvd_stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// True if each part of the input keeps its values until it has been reduced, so that this rank need not read its slot,
// which is not in its cache.
bool is_input_kept(const hvd_carried& tensor) noexcept {
  const hvd_recipe& recipe = *tensor.recipe;
  if (recipe.count != 1 || tensor.bytes != recipe.bytes) return false;
  const uint8_t *in = static_cast<const uint8_t*>(tensor.in), *out = static_cast<const uint8_t*>(tensor.out);
  const hvd_piece& piece = recipe.pieces[0];
  return out == in + piece.offset || out + piece.bytes <= in || in + tensor.bytes <= out;
}

}  // namespace

bool Carrier::can_carry(const Carried& carried) const noexcept {
  for (int32_t i = 0; i < carried.count; ++i) {
    const hvd_carried& tensor = carried.tensors[i];
    if (tensor.bytes > tensor.recipe->bytes) return false;
    if (tensor.recipe->bytes > 0 && page_.geometry().slot_bytes == 0) return false;
  }
  return true;
}

void Carrier::put(const Carried& carried, uint64_t part) noexcept {
  const uint64_t slot_bytes = static_cast<uint64_t>(page_.geometry().slot_bytes);
  const uint64_t first = part * slot_bytes, last = first + slot_bytes;
  uint64_t begin = 0;  // of a tensor
  for (int32_t i = 0; i < carried.count && begin < last; ++i) {
    const hvd_carried& tensor = carried.tensors[i];
    const uint64_t from = std::max(begin, first), to = std::min(begin + tensor.bytes, last);
    if (from < to) {
      const uint8_t* in = static_cast<const uint8_t*>(tensor.in);
      copy_out(page_.slot(own_, number_ + part - part_) + (from - first), in + (from - begin), to - from);
    }
    begin += room_of(tensor);
  }
}

hvd_status Carrier::move(const Carried& carried, hvd_spin* spin, int64_t until_ns) noexcept {
  const uint64_t slot_bytes = static_cast<uint64_t>(page_.geometry().slot_bytes), bytes = room_of(carried);
  const uint64_t parts = bytes == 0 ? 1 : (bytes + slot_bytes - 1) / slot_bytes;
  for (;;) {
    if (part_ > 0) {
      if (hvd_status status = await(spin, until_ns)) return status;
    }
    if (part_ + 1 < parts) {
      put(carried, part_ + 1);
      tell();
    }
    if (hvd_status status = read(carried)) return status;
    ++number_;
    if (++part_ == parts) break;
  }
  part_ = 0;
  return HVD_OK;
}

// Counts the part after the present one, which was put, and wakes the ranks that sleep.
void Carrier::tell() noexcept {
  page_.line(own_).parts.store(number_ + 2);
  fence();  // before this rank reads who sleeps
  for (int32_t rank = 0; rank < page_.geometry().size; ++rank) {
    Line& line = page_.line(rank);
    if (rank == own_ || line.is_asleep.load() == 0) continue;
    line.bell.increment();
    line.bell.wake();
  }
}

// HVD_OK if the next part of all ranks is there, HVD_BUSY if not.
hvd_status Carrier::look() noexcept {
  for (int32_t rank = 0; rank < page_.geometry().size; ++rank) {
    const int64_t ahead = static_cast<int64_t>(page_.line(rank).parts.load() - (number_ + 1));
    if (ahead < 0) return HVD_BUSY;
    if (ahead > 1) return HVD_INVALID;  // it would have had to find this rank's next part
  }
  return HVD_OK;
}

hvd_status Carrier::await(hvd_spin* spin, int64_t until_ns) noexcept {
  Line& line = page_.line(own_);
  bool may_spin = true;
  for (;;) {
    const uint32_t rung = line.bell.load();
    hvd_status status = look();
    if (status == HVD_BUSY && may_spin) {
      may_spin = false;
      spin_until(spin, [&] { return (status = look()) != HVD_BUSY; });
    }
    if (status != HVD_BUSY) return status;
    if (monotonic_ns() >= until_ns) return HVD_BUSY;
    line.is_asleep.store(1);
    fence();  // before the last look
    if (look() == HVD_BUSY) line.bell.sleep(rung, until_ns);
    line.is_asleep.store(0);
  }
}

// Makes of the present part what the recipes say.
hvd_status Carrier::read(const Carried& carried) noexcept {
  const int64_t slot_bytes = page_.geometry().slot_bytes;
  const int64_t first = static_cast<int64_t>(part_) * slot_bytes, last = first + slot_bytes;
  int64_t begin = 0;
  for (int32_t i = 0; i < carried.count && begin <= last; ++i) {
    const hvd_carried& tensor = carried.tensors[i];
    const int64_t end = begin + static_cast<int64_t>(room_of(tensor));
    if (end >= first) {
      if (hvd_status status = read(tensor, begin)) return status;
    }
    begin = end;
  }
  return HVD_OK;
}

// The same for a tensor that begins at `begin` of its call.
hvd_status Carrier::read(const hvd_carried& tensor, int64_t begin) noexcept {
  const int32_t size = page_.geometry().size;
  const hvd_recipe& recipe = *tensor.recipe;
  const int64_t slot_bytes = page_.geometry().slot_bytes, most = static_cast<int64_t>(recipe.bytes);
  // Of the part, in bytes of the tensor; it may begin before the tensor does.
  const int64_t first = static_cast<int64_t>(part_) * slot_bytes - begin, last = std::min(first + slot_bytes, most);
  uint8_t* write = static_cast<uint8_t*>(tensor.out);
  for (int32_t i = 0; i < recipe.count; ++i) {
    const hvd_piece& piece = recipe.pieces[i];
    if (piece.rank < 0 || piece.rank >= size || piece.offset < 0 || piece.bytes < 0 || piece.offset > most ||
        piece.bytes > most - piece.offset)
      return HVD_INVALID;
    const int64_t from = std::max<int64_t>(piece.offset, first);
    const int64_t bytes = std::min<int64_t>(piece.offset + int64_t{piece.bytes}, last) - from;
    if (bytes > 0) {
      uint8_t* to = write + (from - piece.offset);
      if (recipe.reduction != nullptr) {
        for (int32_t rank = 0; rank < size; ++rank)
          inputs_[static_cast<size_t>(rank)] = page_.slot(rank, number_) + (from - first);
        if (is_input_kept(tensor)) inputs_[static_cast<size_t>(own_)] = static_cast<const uint8_t*>(tensor.in) + from;
        const uint64_t items = static_cast<uint64_t>(bytes) / item_bytes(recipe.reduction->dtype);
        reduce(to, inputs_.data(), size, items, *recipe.reduction);
      } else {
        std::memcpy(to, page_.slot(piece.rank, number_) + (from - first), static_cast<size_t>(bytes));
      }
    }
    write += piece.bytes;
  }
  return HVD_OK;
}

}  // namespace hvd::page
