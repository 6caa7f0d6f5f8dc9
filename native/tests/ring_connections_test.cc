// Several connections to each neighbour: frames take turns, and what becomes of one connection is no matter of the
// others.

#include <string>
#include <thread>

#include "tests/check.h"
#include "tests/ring_neighbours.h"

namespace {

using namespace hvd::ring;

constexpr size_t kConnections = 3;
constexpr uint64_t kShare = 2;  // of a window of 4 frames

struct Three : Neighbours {
  explicit Three(std::chrono::milliseconds timeout = std::chrono::seconds(5))
      : Neighbours(timeout, true, kConnections) {}

  // Receives `bytes` bytes at the right neighbour over this connection.
  std::string comes_over(size_t connection, size_t bytes) {
    std::string got;
    while (got.size() < bytes) {
      pollfd end = {right[connection].ends[1], POLLIN, 0};
      CHECK(poll(&end, 1, 5000) == 1);
      got += went(connection);
    }
    return got;
  }
};

std::string numbered(uint64_t i) { return kPayload + std::to_string(i); }

void test_frames_take_turns_and_each_connection_counts_its_own() {
  Three neighbours;
  std::string sent[kConnections];
  for (uint64_t i = 0; i < 7; ++i) {
    neighbours.give(numbered(i));
    sent[i % kConnections] += frame(i / kConnections, numbered(i));
  }
  for (size_t connection = 0; connection < kConnections; ++connection) {
    CHECK(neighbours.went(connection) == sent[connection]);
  }
  for (size_t connection = kConnections; connection-- > 0;) neighbours.come(sent[connection], connection);
  std::string got;
  for (uint64_t i = 0; i < 7; ++i) CHECK(neighbours.receive(numbered(i).size(), &got) && got == numbered(i));
}

void test_a_damaged_frame_ends_its_connection_only() {
  Three neighbours;
  std::string bad = frame(0, numbered(1));
  bad.back() ^= 1;
  neighbours.come(frame(0, numbered(0)), 0);
  neighbours.come(bad, 1);
  neighbours.come(frame(0, numbered(2)), 2);
  std::string got;
  CHECK(neighbours.receive(numbered(0).size(), &got) && got == numbered(0));
  Message payload;
  uint32_t crc;
  CHECK(neighbours.link.try_receive(numbered(1).size(), &payload, &crc) == Outcome::kNotYet);
  CHECK(neighbours.left_is_cut(1) && !neighbours.left_is_cut(0) && !neighbours.left_is_cut(2));
  SocketPair wire;
  neighbours.come_anew(&wire, 0, 1);
  neighbours.come(frame(0, numbered(1)), 1);
  for (uint64_t i = 1; i < kConnections; ++i) {
    CHECK(neighbours.receive(numbered(i).size(), &got) && got == numbered(i));
  }
  CHECK(neighbours.link.corrupt() == 1);
}

void test_a_new_connection_sends_again_what_its_predecessor_lost_and_nothing_else() {
  Three neighbours;
  for (uint64_t i = 0; i < 6; ++i) neighbours.give(numbered(i));
  for (size_t connection = 0; connection < kConnections; ++connection) neighbours.went(connection);
  SocketPair wire;
  CHECK(!neighbours.link.attach_right(1, wire.ends[0], 3));
  neighbours.go_anew(&wire, 1, 1);
  CHECK(neighbours.went(1) == frame(1, numbered(4)));
  CHECK(neighbours.went(0).empty() && neighbours.went(2).empty());
}

// Frames are longer than a socket holds, the neighbour reads the last one first, and nothing comes before it has all.
void test_all_connections_are_written_while_the_link_waits() {
  Three neighbours;
  constexpr uint64_t kBytes = 4 << 20;
  for (uint64_t i = 0; i < kConnections; ++i) neighbours.give(std::string(kBytes, static_cast<char>('a' + i)));
  std::thread reader([&] {
    for (size_t connection = kConnections; connection-- > 0;) {
      const std::string expected = frame(0, std::string(kBytes, static_cast<char>('a' + connection)));
      CHECK(neighbours.comes_over(connection, expected.size()) == expected);
    }
    neighbours.come(frame(0));
  });
  CHECK(neighbours.receive(kPayload.size()));
  reader.join();
}

void test_a_new_connection_is_flushed_after_the_collective() {
  Three neighbours;
  const std::string payload(4 << 20, 'x'), sent = frame(0, payload);
  neighbours.give(kPayload);
  neighbours.give(payload);
  std::thread reader([&] { CHECK(neighbours.comes_over(1, sent.size()) == sent); });
  CHECK(neighbours.link.finish());
  reader.join();
  SocketPair wire;
  neighbours.go_anew(&wire, 0, 1);
  CHECK(neighbours.link.flush(1) && !neighbours.link.flush(0));
  std::string got;
  while (neighbours.link.flush(1)) got += neighbours.went(1);
  CHECK(got + neighbours.went(1) == sent);
}

void test_each_connection_has_its_share_of_the_window() {
  Three neighbours;
  for (uint64_t i = 0; i < 2 * kShare * kConnections; ++i) neighbours.give(kPayload);
  Message payload;
  CHECK(neighbours.link.try_send(&payload, 0) == Outcome::kNotYet);
  neighbours.acknowledge(kShare, 1);
  CHECK(neighbours.link.try_send(&payload, 0) == Outcome::kNotYet);
  neighbours.acknowledge(1, 0);
  CHECK(neighbours.link.try_send(&payload, 0) == Outcome::kDone);
  CHECK(neighbours.link.try_send(&payload, 0) == Outcome::kDone);
  CHECK(neighbours.link.try_send(&payload, 0) == Outcome::kNotYet);
}

void test_each_connection_has_its_own_acknowledgements() {
  Three neighbours;
  for (uint64_t i = 0; i < 4; ++i) {
    neighbours.come(frame(i / kConnections), i % kConnections);
    CHECK(neighbours.receive(kPayload.size()));
  }
  CHECK(neighbours.acknowledged(0) == kShare && neighbours.acknowledged(1) == 0 && neighbours.acknowledged(2) == 0);
  const FrameHeader held = seal(Kind::kHeld, kSession, 1, 0, 0);
  neighbours.come(std::string(reinterpret_cast<const char*>(&held), sizeof held), 1);
  neighbours.come(frame(1), 2);
  CHECK(neighbours.receive(0) && neighbours.receive(kPayload.size()));
  CHECK(neighbours.acknowledged(1) == 2 && neighbours.acknowledged(2) == 2);
  const FrameHeader last = seal(Kind::kHeld, kSession, 2, 0, 0);
  neighbours.come(frame(2), 0);
  neighbours.come(frame(2), 1);
  neighbours.come(std::string(reinterpret_cast<const char*>(&last), sizeof last), 2);
  CHECK(neighbours.receive(kPayload.size()) && neighbours.receive(kPayload.size()) && neighbours.receive(0));
  CHECK(neighbours.acknowledged(2) == 0);
  CHECK(neighbours.link.finish());
  CHECK(neighbours.acknowledged(0) == 0 && neighbours.acknowledged(1) == 0 && neighbours.acknowledged(2) == 3);
}

void test_memory_that_was_lent_over_any_connection_is_waited_for() {
  Three neighbours;
  std::string memory[kConnections];
  for (std::string& each : memory) neighbours.lend(&(each = kPayload));
  std::thread neighbour([&] {
    for (size_t connection = kConnections; connection-- > 0;) neighbours.acknowledge(1, connection);
  });
  CHECK(neighbours.link.finish());
  neighbour.join();
  // All were there before finish returned: room for as many frames as if nothing had been sent.
  for (uint64_t i = 0; i < 2 * kShare * kConnections; ++i) neighbours.give(kPayload);
}

void test_after_a_failure_no_memory_is_read_for_any_connection() {
  Three neighbours(std::chrono::milliseconds(50));
  std::string memory[kConnections];
  for (std::string& each : memory) neighbours.lend(&(each = kPayload));
  for (size_t connection = 0; connection < kConnections; ++connection) neighbours.went(connection);
  CHECK(!neighbours.link.finish());
  for (size_t connection = 0; connection < kConnections; ++connection) {
    CHECK(!neighbours.link.attach_right(connection, neighbours.right[connection].ends[0], 0));
    CHECK(neighbours.went(connection).empty());
  }
}

}  // namespace

int main() {
  test_frames_take_turns_and_each_connection_counts_its_own();
  test_a_damaged_frame_ends_its_connection_only();
  test_a_new_connection_sends_again_what_its_predecessor_lost_and_nothing_else();
  test_all_connections_are_written_while_the_link_waits();
  test_a_new_connection_is_flushed_after_the_collective();
  test_each_connection_has_its_share_of_the_window();
  test_each_connection_has_its_own_acknowledgements();
  test_memory_that_was_lent_over_any_connection_is_waited_for();
  test_after_a_failure_no_memory_is_read_for_any_connection();
}
