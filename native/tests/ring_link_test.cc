// Frames and links: whatever arrives damaged, out of turn or from a stranger is never taken for the next frame.

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/crc32c.h"
#include "ring/frame.h"
#include "ring/link.h"
#include "tests/check.h"
#include "tests/ring_fake_zmq.h"

namespace {

using namespace hvd::ring;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Parts = std::vector<std::string>;

constexpr uint64_t kSession = 0x1122334455667788;
const std::string kPayload = "sixteen bytes...";

// Sends on one FakeLink to itself: rank 0 of a ring of one.
struct Loop {
  explicit Loop(size_t capacity = 8, milliseconds timeout = seconds(5), const char* endpoint = "tcp://127.0.0.1:1")
      : wire(capacity, endpoint), link(fake_zmq(), &wire, &wire, kSession, timeout) {
    CHECK(link.open());
  }

  void send(const std::string& bytes) {
    Message payload(link.zmq());
    CHECK(link.allocate(bytes.size(), &payload));
    std::memcpy(payload.data(), bytes.data(), bytes.size());
    CHECK(link.send(&payload, link.checksum(&payload)));
  }

  bool receive(uint64_t bytes, std::string* got = nullptr) {
    Message payload(link.zmq());
    uint32_t crc;
    const bool done = link.receive(bytes, &payload, &crc);
    if (done && got != nullptr) got->assign(payload.data(), payload.size());
    return done;
  }

  FakeLink wire;
  Link link;
};

void test_good_frames_arrive_in_order() {
  Loop loop;
  std::string got;
  for (int i = 0; i < 3; ++i) loop.send(kPayload + std::to_string(i));
  for (int i = 0; i < 3; ++i) {
    CHECK(loop.receive(kPayload.size() + 1, &got));
    CHECK(got == kPayload + std::to_string(i));
  }
  loop.send("");
  CHECK(loop.receive(0, &got) && got.empty());
}

// Receives one good frame, then one that `damage` has changed.
template <class Damage>
void check_corrupt(Damage damage) {
  Loop loop;
  loop.send(kPayload);
  CHECK(loop.receive(kPayload.size()));
  loop.send(kPayload);
  Parts parts = loop.wire.take();
  damage(&parts);
  loop.wire.inject("left", parts);
  CHECK(!loop.receive(kPayload.size()));
  CHECK(loop.link.status() == HVD_CORRUPT);
  Message next(loop.link.zmq());
  CHECK(loop.link.try_send(&next, 0) == Outcome::kFailed);
}

void test_only_frames_that_leave_the_host_are_check_summed() {
  for (const bool leaves : {true, false}) {
    Loop loop(8, seconds(5), leaves ? "tcp://127.0.0.1:1" : "ipc://@ring");
    loop.wire.take();  // the greeting
    loop.send(kPayload);
    const Parts parts = loop.wire.take();
    FrameHeader header;
    std::memcpy(&header, parts[0].data(), sizeof header);
    CHECK(header.payload_crc == (leaves ? hvd::crc32c(0, kPayload.data(), kPayload.size()) : 0));
  }
}

// A payload that is passed on keeps its checksum, unless only one of the two links has checksums.
void test_checksums_of_what_is_passed_on() {
  FakeLink network(8), host(8, "ipc://@ring");
  constexpr uint32_t kReceived = 7;
  const auto passed_on = [&](FakeLink* left, FakeLink* right) {
    Link link(fake_zmq(), left, right, kSession, seconds(1));
    Message payload(link.zmq());
    CHECK(link.allocate(kPayload.size(), &payload));
    std::memcpy(payload.data(), kPayload.data(), kPayload.size());
    return link.checksum(&payload, kReceived);
  };
  CHECK(passed_on(&network, &network) == kReceived);
  CHECK(passed_on(&network, &host) == 0);
  CHECK(passed_on(&host, &network) == hvd::crc32c(0, kPayload.data(), kPayload.size()));
}

void test_every_flipped_bit_is_seen() {
  for (size_t part = 0; part < 2; ++part) {
    const size_t bytes = part == 0 ? sizeof(FrameHeader) : kPayload.size();
    for (size_t bit = 0; bit < 8 * bytes; ++bit) {
      check_corrupt([&](Parts* parts) { (*parts)[part][bit / 8] ^= static_cast<char>(1 << bit % 8); });
    }
  }
}

void test_frames_of_the_wrong_shape() {
  check_corrupt([](Parts* parts) { parts->back().pop_back(); });
  check_corrupt([](Parts* parts) { parts->back().push_back('x'); });
  check_corrupt([](Parts* parts) { parts->front().pop_back(); });
  check_corrupt([](Parts* parts) { parts->front().push_back('x'); });
  check_corrupt([](Parts* parts) { parts->pop_back(); });
  check_corrupt([](Parts* parts) { parts->push_back("x"); });
  check_corrupt([](Parts* parts) { parts->clear(); });
}

// Frames that are perfect, but not the next one of this session.
void test_frames_out_of_turn() {
  const uint32_t crc = hvd::crc32c(0, kPayload.data(), kPayload.size());
  const uint32_t bytes = static_cast<uint32_t>(kPayload.size());
  const auto replace = [](const FrameHeader& header) {
    return [header](Parts* parts) { parts->front().assign(reinterpret_cast<const char*>(&header), sizeof header); };
  };
  check_corrupt(replace(seal(kSession + 1, 2, bytes, crc)));
  check_corrupt(replace(seal(kSession, 1, bytes, crc)));
  check_corrupt(replace(seal(kSession, 3, bytes, crc)));
  check_corrupt(replace(seal(kSession, 2, bytes + 1, crc)));
}

void test_strangers_are_dropped() {
  Loop loop;
  const Parts greeting = loop.wire.take();
  // Before the left neighbour has greeted, a stranger sends whatever it likes, even a greeting of another session.
  const FrameHeader other = seal(kSession + 1, 0, 0, 0);
  loop.wire.inject("stranger", {std::string(reinterpret_cast<const char*>(&other), sizeof other), ""});
  loop.wire.inject("stranger", {"one", "two", "three", "four"});
  loop.wire.inject("left", greeting);
  loop.wire.inject("stranger", {"x"});
  loop.wire.inject("stranger", greeting);
  loop.send(kPayload);
  CHECK(loop.receive(kPayload.size()));
  CHECK(loop.link.status() == HVD_OK);
}

void test_a_full_link_refuses_until_there_is_room() {
  Loop loop(2);
  loop.send(kPayload);
  Message payload(loop.link.zmq());
  CHECK(loop.link.try_send(&payload, 0) == Outcome::kNotYet);
  CHECK(loop.receive(kPayload.size()));
  CHECK(loop.link.try_send(&payload, 0) == Outcome::kDone);
}

void test_silence_times_out() {
  Loop loop(8, milliseconds(50));
  CHECK(!loop.receive(1));
  CHECK(loop.link.status() == HVD_TIMED_OUT);
}

void test_abort_wakes_a_receiver_and_is_final() {
  Loop loop;
  std::thread receiver([&] { CHECK(!loop.receive(1)); });
  loop.link.abort();
  receiver.join();
  CHECK(loop.link.status() == HVD_ABORTED);
  CHECK(!loop.receive(1));
}

void test_borrowed_memory_is_waited_for() {
  Loop loop;
  std::string memory = kPayload;
  Message payload(loop.link.zmq());
  CHECK(loop.link.borrow(memory.data(), memory.size(), &payload));
  CHECK(loop.link.send(&payload, hvd::crc32c(0, memory.data(), memory.size())));
  CHECK(!loop.link.drain(milliseconds(0)));
  std::thread receiver([&] { CHECK(loop.receive(kPayload.size())); });
  CHECK(loop.link.settle());
  receiver.join();
  CHECK(loop.link.drain(milliseconds(0)));
}

void test_after_an_abort_closing_the_sockets_releases_memory() {
  Loop loop;
  std::string memory = kPayload;
  Message payload(loop.link.zmq());
  CHECK(loop.link.borrow(memory.data(), memory.size(), &payload));
  CHECK(loop.link.send(&payload, 0));
  std::thread aborter([&] { loop.link.abort(); });
  CHECK(!loop.link.settle());
  aborter.join();
  CHECK(loop.link.status() == HVD_ABORTED);
  CHECK(!loop.link.drain(milliseconds(0)));
  std::thread closer([&] { loop.wire.drop(); });
  CHECK(loop.link.drain(seconds(5)));
  closer.join();
}

}  // namespace

int main() {
  test_good_frames_arrive_in_order();
  test_only_frames_that_leave_the_host_are_check_summed();
  test_checksums_of_what_is_passed_on();
  test_every_flipped_bit_is_seen();
  test_frames_of_the_wrong_shape();
  test_frames_out_of_turn();
  test_strangers_are_dropped();
  test_a_full_link_refuses_until_there_is_room();
  test_silence_times_out();
  test_abort_wakes_a_receiver_and_is_final();
  test_borrowed_memory_is_waited_for();
  test_after_an_abort_closing_the_sockets_releases_memory();
}
