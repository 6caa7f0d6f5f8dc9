// Frames and links: what arrives damaged or out of turn is never taken for the next frame, and no connection's end
// loses or doubles one.

#include <poll.h>

#include <cstring>
#include <string>
#include <thread>

#include "kernels/crc32c.h"
#include "tests/check.h"
#include "tests/ring_neighbours.h"

namespace {

using namespace hvd::ring;
using std::chrono::milliseconds;
using std::chrono::seconds;

void test_good_frames_arrive_in_order_whole_or_in_pieces() {
  Neighbours neighbours;
  std::string got;
  for (int i = 0; i < 3; ++i) neighbours.come(frame(i, kPayload + std::to_string(i)));
  for (int i = 0; i < 3; ++i) {
    CHECK(neighbours.receive(kPayload.size() + 1, &got));
    CHECK(got == kPayload + std::to_string(i));
  }
  Message payload;
  uint32_t crc;
  for (const char byte : frame(3)) {
    CHECK(neighbours.link.try_receive(kPayload.size(), &payload, &crc) == Outcome::kNotYet);
    neighbours.come(std::string(1, byte));
  }
  CHECK(neighbours.link.try_receive(kPayload.size(), &payload, &crc) == Outcome::kDone);
  CHECK(std::memcmp(payload.data(), kPayload.data(), kPayload.size()) == 0);
  neighbours.come(frame(4, ""));
  CHECK(neighbours.receive(0, &got) && got.empty());
}

// After a good frame come these bytes: the connection is cut, and the next one begins with the same frame.
void check_refused(const std::string& bytes) {
  Neighbours neighbours;
  neighbours.come(frame(0));
  CHECK(neighbours.receive(kPayload.size()));
  neighbours.come(bytes);
  Message payload;
  uint32_t crc;
  CHECK(neighbours.link.try_receive(kPayload.size(), &payload, &crc) == Outcome::kNotYet);
  CHECK(neighbours.left_is_cut());
  CHECK(neighbours.link.corrupt() == 1);
  SocketPair wire;
  neighbours.come_anew(&wire, 1);
  neighbours.come(frame(1));
  CHECK(neighbours.receive(kPayload.size()));
}

void test_every_flipped_bit_is_seen() {
  const std::string good = frame(1);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    check_refused(bad);
  }
}

void test_frames_that_are_perfect_but_not_the_next_one() {
  check_refused(frame(0));
  check_refused(frame(2));
  check_refused(frame(1, kPayload, kSession + 1));
  check_refused(frame(1, kPayload + "x"));
  check_refused(frame(1, "short"));
  check_refused("GET / HTTP/1.1\r\nHost: hvdlite.example\r\n\r\n");
}

// One that is damaged behind its header may: it comes again.
void test_only_the_next_frame_touches_the_callers_memory() {
  Neighbours neighbours;
  const std::string untouched(kPayload.size(), '.');
  std::string memory = untouched;
  Message payload;
  uint32_t crc;
  const auto try_receive = [&] { return neighbours.link.try_receive(memory.size(), &payload, &crc, memory.data()); };
  neighbours.come(frame(1));
  CHECK(try_receive() == Outcome::kNotYet && memory == untouched && neighbours.left_is_cut());
  std::string bad = frame(0);
  bad.back() ^= 1;
  SocketPair wires[2];
  neighbours.come_anew(&wires[0], 0);
  neighbours.come(bad);
  CHECK(try_receive() == Outcome::kNotYet && neighbours.left_is_cut());
  neighbours.come_anew(&wires[1], 0);
  for (const char byte : frame(0)) {
    CHECK(try_receive() == Outcome::kNotYet);
    neighbours.come(std::string(1, byte));
  }
  CHECK(try_receive() == Outcome::kDone && memory == kPayload);
  CHECK(payload.is_borrowed() && payload.data() == memory.data() && payload.size() == memory.size());
}

void test_a_link_that_damages_everything_fails() {
  Neighbours neighbours;
  for (int i = 0; neighbours.link.status() == HVD_OK; ++i) {
    CHECK(i < 20);
    SocketPair wire;
    neighbours.come_anew(&wire, 0);
    neighbours.come(frame(1));
    Message payload;
    uint32_t crc;
    CHECK(neighbours.link.try_receive(kPayload.size(), &payload, &crc) != Outcome::kDone);
  }
  CHECK(neighbours.link.status() == HVD_CORRUPT);
  CHECK(!neighbours.receive(kPayload.size()));
}

void test_only_links_across_hosts_are_check_summed() {
  for (const bool has_checksums : {true, false}) {
    Neighbours neighbours(seconds(5), has_checksums);
    neighbours.give(kPayload);
    FrameHeader header;
    std::memcpy(&header, neighbours.went().data(), sizeof header);
    CHECK(header.payload_crc == (has_checksums ? hvd::crc32c(0, kPayload.data(), kPayload.size()) : 0));
  }
}

void test_a_new_connection_goes_on_where_the_neighbour_is() {
  for (uint64_t received : {0, 1, 2, 3}) {
    Neighbours neighbours;
    std::string expected;
    for (uint64_t i = 0; i < 3; ++i) {
      neighbours.give(kPayload + std::to_string(i));
      if (i >= received) expected += frame(i, kPayload + std::to_string(i));
    }
    neighbours.went();
    SocketPair wire;
    neighbours.go_anew(&wire, received);
    CHECK(neighbours.went() == expected);
    SocketPair impossible;
    CHECK(!neighbours.link.attach_right(0, impossible.ends[0], 4));
    CHECK(received == 0 || !neighbours.link.attach_right(0, impossible.ends[0], received - 1));
  }
}

// Between collectives nobody else would send what a broken connection has lost.
void test_what_a_finished_collective_sent_is_sent_again_without_another_one() {
  Neighbours neighbours;
  std::string all;
  for (uint64_t i = 0; i < kWindow; ++i) {
    const std::string payload(1 << 20, static_cast<char>('a' + i));
    neighbours.give(payload);
    all += frame(i, payload);
  }
  std::thread reader([&] {
    for (size_t got = 0; got < all.size(); got += neighbours.went().size()) continue;
  });
  CHECK(neighbours.link.finish());
  reader.join();
  SocketPair wire;
  neighbours.go_anew(&wire, 0);
  std::string got;
  while (neighbours.link.flush(0)) got += neighbours.went();
  CHECK(got + neighbours.went() == all);
}

void test_a_full_link_refuses_until_frames_are_acknowledged() {
  Neighbours neighbours;
  for (uint64_t i = 0; i < 2 * kWindow; ++i) neighbours.give(kPayload);
  Message payload;
  CHECK(neighbours.link.try_send(&payload, 0) == Outcome::kNotYet);
  std::thread acknowledger([&] { neighbours.acknowledge(kWindow); });
  CHECK(neighbours.link.send(&payload, 0));
  acknowledger.join();
}

void test_an_acknowledgement_of_what_was_never_sent_cuts_the_connection() {
  Neighbours neighbours;
  std::string memory = kPayload;
  neighbours.lend(&memory);
  neighbours.acknowledge(2);
  std::thread neighbour([&] {
    pollfd end = {neighbours.right[0].ends[1], POLLRDHUP, 0};
    CHECK(poll(&end, 1, 5000) == 1);
    SocketPair wire;
    neighbours.go_anew(&wire, 1);
  });
  CHECK(neighbours.link.finish());
  neighbour.join();
}

void test_frames_are_acknowledged_now_and_then_and_lent_ones_at_the_end() {
  Neighbours neighbours;
  for (uint64_t i = 0; i < kWindow; ++i) {
    CHECK(neighbours.acknowledged() == 0);
    neighbours.come(frame(i));
    CHECK(neighbours.receive(kPayload.size()));
  }
  CHECK(neighbours.acknowledged() == kWindow);
  neighbours.come(frame(kWindow));
  CHECK(neighbours.receive(kPayload.size()) && neighbours.link.finish());
  CHECK(neighbours.acknowledged() == 0);
  const FrameHeader held = seal(Kind::kHeld, kSession, kWindow + 1, 0, 0);
  neighbours.come(std::string(reinterpret_cast<const char*>(&held), sizeof held));
  CHECK(neighbours.receive(0));
  CHECK(neighbours.acknowledged() == 0);
  CHECK(neighbours.link.finish());
  CHECK(neighbours.acknowledged() == kWindow + 2);
}

void test_lent_memory_is_waited_for() {
  Neighbours neighbours;
  std::string memory = kPayload;
  neighbours.lend(&memory);
  std::thread neighbour([&] { neighbours.acknowledge(1); });
  CHECK(neighbours.link.finish());
  neighbour.join();
}

void test_after_a_failure_no_memory_is_read() {
  Neighbours neighbours(milliseconds(50));
  std::string memory = kPayload;
  neighbours.lend(&memory);
  neighbours.went();
  CHECK(!neighbours.link.finish());
  CHECK(neighbours.link.status() == HVD_TIMED_OUT);
  neighbours.link.attach_right(0, neighbours.right[0].ends[0], 1);
  CHECK(!neighbours.link.flush(0));
  CHECK(neighbours.went().empty());
}

void test_silence_times_out_with_a_connection_and_without() {
  Neighbours neighbours(milliseconds(50));
  CHECK(!neighbours.receive(1));
  CHECK(neighbours.link.status() == HVD_TIMED_OUT);
  Link alone(kSession, kWindow, true, {0, 50'000'000});
  Message payload;
  uint32_t crc;
  CHECK(!alone.receive(1, &payload, &crc));
  CHECK(alone.status() == HVD_TIMED_OUT);
}

void test_abort_wakes_a_receiver_and_is_final() {
  Neighbours neighbours;
  std::thread receiver([&] { CHECK(!neighbours.receive(1)); });
  neighbours.link.abort();
  receiver.join();
  CHECK(neighbours.link.status() == HVD_ABORTED);
  CHECK(!neighbours.receive(1));
}

}  // namespace

int main() {
  test_good_frames_arrive_in_order_whole_or_in_pieces();
  test_every_flipped_bit_is_seen();
  test_frames_that_are_perfect_but_not_the_next_one();
  test_only_the_next_frame_touches_the_callers_memory();
  test_a_link_that_damages_everything_fails();
  test_only_links_across_hosts_are_check_summed();
  test_a_new_connection_goes_on_where_the_neighbour_is();
  test_what_a_finished_collective_sent_is_sent_again_without_another_one();
  test_a_full_link_refuses_until_frames_are_acknowledged();
  test_an_acknowledgement_of_what_was_never_sent_cuts_the_connection();
  test_frames_are_acknowledged_now_and_then_and_lent_ones_at_the_end();
  test_lent_memory_is_waited_for();
  test_after_a_failure_no_memory_is_read();
  test_silence_times_out_with_a_connection_and_without();
  test_abort_wakes_a_receiver_and_is_final();
}
