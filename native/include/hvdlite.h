// The C interface of libhvdlite: everything Python may call, and nothing else.
//
// Conventions: functions return a hvd_status; pointers are borrowed for the length of the call; a handle is used by one
// thread at a time unless noted. hvdlite/native.py declares the same functions, and a test compares the two.

#pragma once

#include <stdint.h>

#define HVD_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum { HVD_ABI_VERSION = 12 };

typedef int32_t hvd_status;
enum {
  HVD_OK = 0,
  HVD_ABORTED = 1,    // abort was called
  HVD_TIMED_OUT = 2,  // nothing moved for the progress timeout
  HVD_CORRUPT = 3,    // a frame failed its check
  HVD_INVALID = 4,    // an argument is out of range
  HVD_SYSTEM = 5,     // a system call failed; errno has the reason
  HVD_BUSY = 6,       // a call holds the page
};

// The values of hvdlite.tensors.dtypes.DType.
enum {
  HVD_UINT8 = 0,
  HVD_INT8 = 1,
  HVD_INT16 = 2,
  HVD_INT32 = 3,
  HVD_INT64 = 4,
  HVD_FLOAT16 = 5,
  HVD_BFLOAT16 = 6,
  HVD_FLOAT32 = 7,
  HVD_FLOAT64 = 8,
  HVD_BOOL = 9,
};

// The values of hvdlite.tensors.dtypes.Average ... Product. HVD_AVERAGE is of integers only: a sum that does not wrap
// around before it is scaled, by 1 / n exactly.
enum { HVD_AVERAGE = 0, HVD_SUM = 1, HVD_MIN = 3, HVD_MAX = 4, HVD_PRODUCT = 5 };

// One contiguous piece of memory: read from `in`, written at `out`. Addresses are integers so that a numpy array of
// uint64 with three columns is an array of spans.
typedef struct {
  uint64_t in;
  uint64_t out;
  uint64_t bytes;
} hvd_span;

typedef struct {
  int32_t dtype;
  int32_t op;
  double prescale;
  double postscale;
} hvd_reduction;

HVD_API int32_t hvd_abi_version(void);

// ---- kernels

// out = postscale * reduce(prescale * in[0], ..., prescale * in[n - 1]), folded in that order. `out` may equal any in.
HVD_API hvd_status hvd_reduce(void* out, const void* const* in, int32_t n, uint64_t count,
                              const hvd_reduction* reduction);

// For a reduction in several collectives. Opening turns the spans' input into partial results, one after the other:
// scaled by prescale, and float32 for 16-bit floats, for averages int32, int64 or two int64 (kernels/reduce.h), and the
// type itself for others. They can be summed as those types. Closing scales them by postscale, rounds them, and writes
// them to the spans.
HVD_API hvd_status hvd_open_partials(void* partials, const hvd_span* spans, uint64_t n, const hvd_reduction* reduction);
HVD_API hvd_status hvd_close_partials(const void* partials, const hvd_span* spans, uint64_t n,
                                      const hvd_reduction* reduction);

HVD_API uint32_t hvd_crc32c(uint32_t crc, const void* data, uint64_t bytes);

// As memcpy, but with non-temporal stores: no line of `out` is read before it is written, and the cache keeps its
// content. For memory that others read next, or so much that it would have left the cache by then.
HVD_API void hvd_stream_copy(void* out, const void* in, uint64_t bytes);

// Has the C library's allocator keep `bytes` more of freed memory than it would, for the whole process and for good, so
// that memory which is freed and allocated again in each step does not come from the system each time. Does nothing if
// more was asked for before, or if the user has set MALLOC_..._ or GLIBC_TUNABLES. Any thread.
HVD_API void hvd_keep_freed(uint64_t bytes);

// The latency of waking a thread that sleeps on another core, in nanoseconds: the upper quartile of a few tries, at
// most two milliseconds. 0 if there is only one core, or no thread can be started.
HVD_API int64_t hvd_wakeup_ns(void);

// Decides whether a thread spins before it sleeps. `most_ns`: for how long; negative: for how much of its processor
// time it yields to other threads instead, where it can. `vain`: waits in a row that spinning did not end. `is_idle`:
// the last wait timed out, and no wait spins until one succeeds. `is_near`: the last wait slept, but not for long, so
// the next one may spin for longer. All begin with 0.
typedef struct {
  int64_t most_ns;
  uint32_t vain;
  uint16_t is_idle;
  uint16_t is_near;
} hvd_spin;

// Waits until one of two descriptors is readable, at most `timeout_ms`, without a limit if that is negative. Returns
// the sum of 1 for the first and 2 for the second, 0 on time-out or a signal, and -1 on failure.
HVD_API int32_t hvd_spin_poll(hvd_spin* spin, int32_t first, int32_t second, int32_t timeout_ms);

// ---- page: ranks of one host agree, in shared memory, on what they run next (page/agreement.h)

typedef struct hvd_page hvd_page;

enum {
  HVD_DECIDED_NOTHING = 0,
  HVD_DECIDED_TENSORS = 1,
  HVD_DECIDED_MESSAGE = 2,  // the next message of rank 0 counts now
  HVD_DECIDED_CLOSING = 3,  // rank 0 decides alone until hvd_page_reopen
};

// Sets of names are bits, 64 in each of `words`. `tensors` are to be run; no rank has a value for `blanks`, and all
// ranks have put the bytes of `carried`, which are those of one call, into the page. They last until the next call.
// `is_held_back`: this rank was not willing to decide. `is_waiting`: some names wait for ranks. `news`: how many.
// `calls`: how many calls of this rank were done before.
typedef struct {
  int32_t kind;
  int32_t is_held_back;
  int32_t is_waiting;
  int32_t news;
  int32_t words;
  uint64_t calls;
  const uint64_t* tensors;
  const uint64_t* blanks;
  const uint64_t* carried;
} hvd_decision;

// A rank published something at `at_ns` on the monotonic clock. `was_last`: it completed what others had submitted.
typedef struct {
  int64_t at_ns;
  int32_t rank;
  int32_t was_last;
} hvd_news;

// Bytes of the page that hvd_page_open expects behind `fd`, zero-filled; 0 if there is no such page. `names`, a power
// of two, is how many tensors ranks agree on. `slot_bytes`: how many bytes of a call a rank puts into the page at a
// time.
HVD_API uint64_t hvd_page_bytes(int32_t size, int32_t names, int32_t slot_bytes);

// `bells` has an eventfd of each rank, which remain the caller's, and open while the page is. `spin_ns`: how long a
// call spins before it sleeps, as `most_ns` of hvd_spin. A forked child has no mapping of the page.
HVD_API hvd_status hvd_page_open(int32_t fd, int32_t rank, int32_t size, int32_t names, int32_t slot_bytes,
                                 const int32_t* bells, int64_t spin_ns, hvd_page** out);

// A rank has turns, which do not overlap, and calls, which do not overlap either. Functions of turns return HVD_BUSY
// while a call waits; it then ends, and rings the bell for another turn.

// Publishes names that this rank has submitted, none of which is in flight; for `blanks` it has no value. HVD_INVALID
// if the page is closed.
HVD_API hvd_status hvd_page_submit(hvd_page* page, const uint64_t* names, const uint64_t* blanks, int32_t words);

// At rank 0: it has sent `messages` since the page exists. And at any rank: the page is to be closed. Both are decided
// like tensors, so hvd_page_next must follow.
HVD_API void hvd_page_announce(hvd_page* page, uint32_t messages);
HVD_API void hvd_page_request_closing(hvd_page* page);

// At rank 0: from now on, or no longer, each submit of another rank rings its bell. hvd_page_next must follow.
HVD_API void hvd_page_watch(hvd_page* page, int32_t is_watched);

// Takes the next decision. Without `is_willing`, this rank decides on no tensors itself. HVD_ABORTED if there is none,
// and the page is; HVD_INVALID if a peer wrote what no correct peer writes. `news`, null or with room for one of each
// rank, gets what ranks have published since the last call, in order of time.
HVD_API hvd_status hvd_page_next(hvd_page* page, int32_t is_willing, hvd_decision* out, hvd_news* news);

// Opens the page again, once all ranks have taken the closing. What was submitted before counts no more.
HVD_API hvd_status hvd_page_reopen(hvd_page* page, uint32_t messages);

// The names that `rank` has submitted and that have not run, in as many words as hold all names of the page. None while
// a call waits.
HVD_API void hvd_page_waiting(hvd_page* page, int32_t rank, uint64_t* names);

// `bytes` of the tensor of `rank`, from `offset` on.
typedef struct {
  int32_t rank;
  int32_t offset;
  int32_t bytes;
} hvd_piece;

// What a rank makes of a tensor of which all ranks put `bytes` or fewer into the page: `count` pieces, one behind the
// other. With a `reduction`, a piece is that of all ranks, reduced.
typedef struct {
  const hvd_reduction* reduction;
  const hvd_piece* pieces;
  int32_t count;
  int32_t is_everything;  // on all ranks: one piece, all that they have, reduced
  uint64_t bytes;
} hvd_recipe;

// A tensor of a call: this rank has `bytes` of it at `in`, and `recipe` writes to `out`.
typedef struct {
  const void* in;
  void* out;
  const hvd_recipe* recipe;
  uint32_t name;
  uint32_t bytes;
} hvd_carried;

// How a call ends. REFUSED: nothing was submitted. LEFT: its tensors are submitted, and after hvd_page_adopt turns go
// on with them. DONE: they have run. Any larger number is a ticket: the call is left, but may be resumed.
enum { HVD_CALL_REFUSED = 0, HVD_CALL_DONE = 1, HVD_CALL_LEFT = 2 };

// A call of a thread whose rank had nothing in flight when the page had `version`. Times are seconds of the
// monotonic clock.
typedef struct {
  hvd_news* news;  // null, or room for one of each rank
  uint64_t version;
  const hvd_carried* tensors;  // `count` with different names, in the order that they have on all ranks
  int32_t count;
  int32_t outcome;  // of these fields alone, written unless a turn or another call holds the page
  // Of a call that is DONE.
  int32_t news_count;
  uint64_t number;  // it counts this rank's calls that were done, from 1
  double begun_at;
  double done_at;
  // If there are news of all ranks: the first and the last of them, and how long after all others the last one came.
  int32_t first_rank;
  int32_t last_rank;
  double first_at;
  double last_at;
  double late_s;
} hvd_call;

// The address of the version, which changes with everything that a rank publishes or decides, until hvd_page_free.
HVD_API const uint64_t* hvd_page_version(hvd_page* page);

// Agrees on tensors, within 2 ms, and moves them, within 2 more. Returns the outcome or a ticket. Refused if the
// version has changed, or turns have not applied all that they have decided.
HVD_API int64_t hvd_page_call(hvd_page* page, hvd_call* call);

// Goes on with a call that has returned `ticket`, with 8 ms for the agreement; LEFT if a turn has taken it over.
HVD_API int64_t hvd_page_resume(hvd_page* page, hvd_call* call, int64_t ticket);

// 1 if a call was left, with which this turn goes on.
HVD_API int32_t hvd_page_adopt(hvd_page* page);

// Moves the tensors of a carried decision, in the order of the decisions. Waits until all ranks have put theirs.
// HVD_TIMED_OUT if nothing has come for `timeout_ns`; HVD_ABORTED soon after hvd_page_give_up; HVD_INVALID if there is
// no such decision or piece, or a peer wrote what no correct peer writes. Any thread, while no call waits and none can
// begin.
HVD_API hvd_status hvd_page_collect(hvd_page* page, const hvd_carried* tensors, int32_t count, int64_t timeout_ns);

typedef struct hvd_arena hvd_arena;

// Sets the arena, in which `regions[r]` belongs to rank r; it is closed after the page. A tensor that all ranks have
// there is reduced without a copy. One that this rank has elsewhere may go through `staging`, in its region, if it has
// more than `more_than` bytes and at most `bytes`. Up to two may be given, by `index`, at any time, each with a page
// more. While hvd_page_is_sharing, peers may be about to write to memory of this rank there, also after its call has
// failed: see hvd_arena_stop_sharing.
HVD_API hvd_status hvd_page_use_arena(hvd_page* page, hvd_arena* arena, const int32_t* regions);
HVD_API hvd_status hvd_page_stage(hvd_page* page, int32_t index, void* staging, uint64_t more_than, uint64_t bytes);
HVD_API int32_t hvd_page_is_sharing(hvd_page* page);

// Ends hvd_page_collect, now and later. Any thread, also after hvd_page_close.
HVD_API void hvd_page_give_up(hvd_page* page);

// From now until hvd_page_next, a decision of another rank rings this rank's bell. 1 if there is one already, as
// hvd_page_has_decision. Any thread, as hvd_page_poll, which waits like hvd_spin_poll, but also until there is a
// decision.
HVD_API int32_t hvd_page_arm(hvd_page* page);
HVD_API int32_t hvd_page_has_decision(hvd_page* page);
HVD_API int32_t hvd_page_poll(hvd_page* page, hvd_spin* spin, int32_t first, int32_t second, int32_t timeout_ms);

// Some rank will take part no more, so there may be no further decision. Any thread.
HVD_API void hvd_page_abort(hvd_page* page);

// Ends whatever waits, and unmaps the page. Later calls are refused; no other function may follow but hvd_page_free.
HVD_API void hvd_page_close(hvd_page* page);
HVD_API void hvd_page_free(hvd_page* page);

// ---- arena: memory of the ranks of one host that all of them have mapped

// Maps `count` regions of `region_bytes` each of the file `fd`; the caller allocates its pages. `own` is this rank's.
// Functions that take `fd` need the same file, which remains the caller's.
HVD_API hvd_status hvd_arena_open(int32_t fd, int32_t own, int32_t count, uint64_t region_bytes, hvd_arena** out);

// The beginning of this rank's region, of which the last HVD_ARENA_PAGE_BYTES are not for tensors.
HVD_API uint64_t hvd_arena_address(hvd_arena* arena);

// Offsets and lengths here and below, and of regions, are multiples of a huge page.
#define HVD_ARENA_PAGE_BYTES (UINT64_C(2) << 20)

// Allocates huge pages there if the system has any, and nothing otherwise. To be called before the pages are used.
HVD_API void hvd_arena_use_huge_pages(hvd_arena* arena, int32_t fd, uint64_t offset, uint64_t bytes);

// Returns pages of this rank's region to the system; they read as zeros then.
HVD_API hvd_status hvd_arena_release(hvd_arena* arena, uint64_t offset, uint64_t bytes);

// Detaches this rank's region from its peers, whose writes must not be seen any more: collectives running in it fail.
// Then pages that are in use must be made private, in place; concurrent writes of this process's threads are not lost.
HVD_API void hvd_arena_stop_sharing(hvd_arena* arena);
HVD_API hvd_status hvd_arena_make_private(hvd_arena* arena, int32_t fd, uint64_t offset, uint64_t bytes);

// To be called in a forked child before anything else: makes its writes to the region private.
HVD_API hvd_status hvd_arena_after_fork(hvd_arena* arena, int32_t fd);

// Unmaps the regions of all other ranks, while no collective runs; and this rank's.
HVD_API void hvd_arena_leave_peers(hvd_arena* arena);
HVD_API void hvd_arena_close(hvd_arena* arena);

// ---- shm: ranks of one host over one shared segment

typedef struct hvd_shm hvd_shm;

// Bytes of the segment that hvd_shm_open expects behind `fd`, zero-filled.
HVD_API uint64_t hvd_shm_bytes(int32_t size, uint64_t chunk_bytes, int32_t slots);

// Maps the segment. `spin_ns`: how long a waiting rank spins before it sleeps, as `most_ns` of hvd_spin.
HVD_API hvd_status hvd_shm_open(int32_t fd, int32_t rank, int32_t size, uint64_t chunk_bytes, int32_t slots,
                                int64_t spin_ns, int64_t progress_timeout_ns, hvd_shm** out);

// Sets the arena, in which `regions[r]` belongs to rank r; it is closed after `shm`. Tensors that all ranks have there
// are reduced without a copy. If a collective fails, peers may still write there: see above.
HVD_API hvd_status hvd_shm_use_arena(hvd_shm* shm, hvd_arena* arena, const int32_t* regions);

HVD_API hvd_status hvd_shm_allreduce(hvd_shm* shm, const hvd_span* spans, uint64_t n, const hvd_reduction* reduction);

// `counts[r]` spans of rank r follow each other in `spans`.
HVD_API hvd_status hvd_shm_allgather(hvd_shm* shm, const hvd_span* spans, const uint64_t* counts);

// `counts[r]` spans of the part of rank r follow each other in `spans`. `out` counts in this rank's own part only.
// With `partials`, the own part's partial results (see hvd_open_partials) go there in a row, and nothing to the spans.
HVD_API hvd_status hvd_shm_reducescatter(hvd_shm* shm, const hvd_span* spans, const uint64_t* counts,
                                         const hvd_reduction* reduction, void* partials);

// `send_counts[r]` spans for rank r follow each other in `sends`, and likewise in `receives` for what comes from it.
// `matrix` has the bytes from each rank to each other, row by sender; HVD_INVALID if the spans differ from it.
HVD_API hvd_status hvd_shm_alltoall(hvd_shm* shm, const hvd_span* sends, const uint64_t* send_counts,
                                    const hvd_span* receives, const uint64_t* receive_counts, const uint64_t* matrix);
HVD_API hvd_status hvd_shm_barrier(hvd_shm* shm);

// The bytes that this rank's collectives have copied so far: into slots, out of them, and from span to span. Any
// thread, at any time.
HVD_API uint64_t hvd_shm_copied_bytes(const hvd_shm* shm);

// Ends the running and all later calls of this rank with HVD_ABORTED. Any thread.
HVD_API void hvd_shm_abort(hvd_shm* shm);
HVD_API void hvd_shm_close(hvd_shm* shm);

// ---- ring: ranks of several hosts over stream sockets that others connect and authenticate

typedef struct hvd_ring hvd_ring;

// The AES-128 keys of one connection, for each of its directions. No other connection may have the same.
typedef struct {
  uint8_t frames[16];
  uint8_t acks[16];
} hvd_ring_keys;

// `session` is checked in every frame; `has_checksums`: so is a checksum of the payload. `crypto`: null, or the path of
// a shared object that is or links to OpenSSL's libcrypto, with which everything is encrypted and authenticated;
// HVD_SYSTEM with ELIBACC if it is not. `connections`: how many there are to each neighbour, from 1 to 16.
HVD_API hvd_status hvd_ring_open(int32_t rank, int32_t size, uint64_t session, uint64_t chunk_bytes, int32_t window,
                                 int32_t connections, int32_t has_checksums, const char* crypto, int64_t spin_ns,
                                 int64_t progress_timeout_ns, hvd_ring** out);

// Connections: the left ones come from rank - 1, the right ones lead to rank + 1. `connection`, counted from 0, is the
// same number at both ends. Any thread may detach and replace them at any time, even while a collective runs, which
// then waits for the next one. Descriptors remain the caller's: one may be closed once it was detached or replaced. A
// connection that ended or carried a damaged frame is shut down. `keys` are read only if the ring encrypts, and copied.

// Returns how many frames have come over connections of this number. A new left connection may be attached once its
// other end knows the count.
HVD_API uint64_t hvd_ring_detach_left(hvd_ring* ring, int32_t connection);
HVD_API hvd_status hvd_ring_attach_left(hvd_ring* ring, int32_t connection, int32_t fd, const hvd_ring_keys* keys);

// `received`: what hvd_ring_detach_left returned at the other end. HVD_CORRUPT if that is impossible.
HVD_API void hvd_ring_detach_right(hvd_ring* ring, int32_t connection);
HVD_API hvd_status hvd_ring_attach_right(hvd_ring* ring, int32_t connection, int32_t fd, uint64_t received,
                                         const hvd_ring_keys* keys);

// Sends what is left from a collective that has ended. To be called after attaching to the right and then, as long as
// it returns 1, whenever the connection is writable.
HVD_API int32_t hvd_ring_flush(hvd_ring* ring, int32_t connection);

// The number of damaged frames that arrived.
HVD_API uint64_t hvd_ring_corrupt(hvd_ring* ring);

HVD_API hvd_status hvd_ring_allreduce(hvd_ring* ring, const hvd_span* spans, uint64_t n,
                                      const hvd_reduction* reduction);
HVD_API hvd_status hvd_ring_allgather(hvd_ring* ring, const hvd_span* spans, const uint64_t* counts);

// As hvd_shm_reducescatter and hvd_shm_alltoall.
HVD_API hvd_status hvd_ring_reducescatter(hvd_ring* ring, const hvd_span* spans, const uint64_t* counts,
                                          const hvd_reduction* reduction);
HVD_API hvd_status hvd_ring_alltoall(hvd_ring* ring, const hvd_span* sends, const uint64_t* send_counts,
                                     const hvd_span* receives, const uint64_t* receive_counts, const uint64_t* matrix);
HVD_API hvd_status hvd_ring_barrier(hvd_ring* ring);

// Ends the running and all later calls of this rank with HVD_ABORTED. Any thread.
HVD_API void hvd_ring_abort(hvd_ring* ring);

// To be called after the last collective, once connections are detached or no thread uses them.
HVD_API void hvd_ring_close(hvd_ring* ring);

#ifdef __cplusplus
}
#endif
