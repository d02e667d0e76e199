#include "launch/agent/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace accelerate::launcher::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

TEST(Message, KeepsEveryByteOfAValue) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const std::string line = encode({.verb = "notice", .fields = {{"text", all}, {"empty", ""}}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const absl::StatusOr<Message> back = decode(line.substr(0, line.size() - 1));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->verb, "notice");
  EXPECT_EQ(back->text("text"), all);
  EXPECT_TRUE(back->fields.contains("empty"));
}

TEST(Message, CutsAValueThatWouldNotFit) {
  const std::string line =
      encode({.verb = "end", .fields = {{"text", std::string(1 << 20, '\n')}, {"z", "here"}}});
  EXPECT_LT(line.size(), kMaxMessageBytes);
  EXPECT_EQ(decode(line.substr(0, line.size() - 1))->text("z"), "here");
}

TEST(Message, RefusesWhatIsNotOfItsForm) {
  for (const char* line :
       {"", " ", "GET / HTTP/1.1", "start  a=1", "start a", "start a=%", "start a=%2",
        "start a=%g0", "start a=1 a=2", "start =1", "start a=b=c", "start a=\x01", "st%61rt"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(decode(line).status())) << line;
  }
}

TEST(Message, ReadsNumbersWithinBounds) {
  const Message message = *decode("x a=7 b=-1 c=99999999999999999999 d=7x e=");
  EXPECT_THAT(message.number("a", 0, 7), Optional(7));
  EXPECT_EQ(message.number("a", 0, 6), std::nullopt);
  for (const char* name : {"b", "c", "d", "e", "none"}) {
    EXPECT_EQ(message.number(name, 0, 100), std::nullopt) << name;
  }
}

TEST(Message, CarriesOrders) {
  const Order start = {.kind = Order::Kind::kStart,
                       .round = {.number = 3,
                                 .group_rank = 1,
                                 .group_count = 2,
                                 .first_rank = 4,
                                 .world_size = 8,
                                 .master_addr = "fe80::1%eth0",
                                 .master_port = 4000,
                                 .restarts = 2,
                                 .run_token = "1f"}};
  const std::string line = encode(to_message(start));
  const absl::StatusOr<Order> back = to_order(*decode(line.substr(0, line.size() - 1)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, Order::Kind::kStart);
  EXPECT_EQ(back->round.number, 3);
  EXPECT_EQ(back->round.group_rank, 1);
  EXPECT_EQ(back->round.group_count, 2);
  EXPECT_EQ(back->round.first_rank, 4);
  EXPECT_EQ(back->round.world_size, 8);
  EXPECT_EQ(back->round.master_addr, "fe80::1%eth0");
  EXPECT_EQ(back->round.master_port, 4000);
  EXPECT_EQ(back->round.restarts, 2);
  EXPECT_EQ(back->round.run_token, "1f");
  const absl::StatusOr<Order> end =
      to_order(to_message(Order{.kind = Order::Kind::kEnd, .exit_code = 137, .text = "a b"}));
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->exit_code, 137);
  EXPECT_EQ(end->text, "a b");
}

TEST(Message, RefusesAnOrderThatLacksAField) {
  const Order start = {.kind = Order::Kind::kStart,
                       .round = {.master_addr = "a", .master_port = 1, .run_token = "1f"}};
  const Message whole = to_message(start);
  EXPECT_TRUE(to_order(whole).ok());
  for (const auto& [name, value] : whole.fields) {
    if (name == "run_token") continue;  // a text that may be empty
    Message part = whole;
    part.fields.erase(name);
    EXPECT_FALSE(to_order(part).ok()) << name;
  }
  EXPECT_EQ(to_order(*decode("end text=x exit_code=255"))->exit_code, 255);
  EXPECT_FALSE(to_order(*decode("end text=x")).ok());
}

Handshake handshake() {
  return {.version = "1.2",
          .run_id = "night 7",
          .min_nodes = 2,
          .max_nodes = 3,
          .max_restarts = 4,
          .clock = absl::FromUnixMicros(-5),
          .machine = {.host = "h", .address = "fd77::1", .processes = 8, .node_rank = 1}};
}

TEST(Handshake, ComesBackFromItsMessage) {
  const std::string line = encode(to_message(handshake()));
  absl::StatusOr<Handshake> back = to_handshake(*decode(line.substr(0, line.size() - 1)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->version, "1.2");
  EXPECT_EQ(back->run_id, "night 7");
  EXPECT_EQ(back->min_nodes, 2);
  EXPECT_EQ(back->max_nodes, 3);
  EXPECT_EQ(back->max_restarts, 4);
  EXPECT_EQ(back->clock, absl::FromUnixMicros(-5));
  EXPECT_EQ(back->machine.host, "h");
  EXPECT_EQ(back->machine.address, "fd77::1");
  EXPECT_EQ(back->machine.processes, 8);
  EXPECT_EQ(back->machine.node_rank, 1);
  back->machine.node_rank.reset();
  EXPECT_EQ(to_handshake(to_message(*back))->machine.node_rank, std::nullopt);
}

// Everything that has to be the same, each by itself.
TEST(Handshake, FitsOneOfTheSameRun) {
  EXPECT_TRUE(check_handshake(handshake(), handshake()).ok());
  const auto refusal = [](auto change) {
    Handshake theirs = handshake();
    change(theirs);
    return std::string(check_handshake(theirs, handshake()).message());
  };
  EXPECT_THAT(refusal([](Handshake& h) { h.version = "1.3"; }), HasSubstr("version 1.3"));
  EXPECT_THAT(refusal([](Handshake& h) { h.run_id = "x"; }), HasSubstr("its run is 'x'"));
  EXPECT_THAT(refusal([](Handshake& h) { h.min_nodes = 1; }), HasSubstr("it expects 1 to 3"));
  EXPECT_THAT(refusal([](Handshake& h) { h.max_nodes = 4; }), HasSubstr("it expects 2 to 4"));
  EXPECT_THAT(refusal([](Handshake& h) { h.max_restarts = 5; }), HasSubstr("5 restarts"));
  // Machines differ in these.
  EXPECT_EQ(refusal([](Handshake& h) {
              h.machine = {.host = "other", .address = "b", .processes = 1, .node_rank = 0};
            }),
            "");
}

TEST(Handshake, AllowsClocksToDifferByTheTolerance) {
  const auto verdict = [](absl::Duration ahead) {
    Handshake theirs = handshake();
    theirs.clock += ahead;
    return std::string(check_handshake(theirs, handshake()).message());
  };
  for (const int sign : {1, -1}) {
    EXPECT_EQ(verdict(sign * absl::Seconds(10)), "") << sign;
    EXPECT_THAT(verdict(sign * absl::Milliseconds(10'001)),
                HasSubstr(sign > 0 ? "its clock is 10s ahead of that of h"
                                   : "its clock is 10s behind that of h"));
  }
}

TEST(Message, RefusesBrokenOrders) {
  for (const char* line : {"start number=0", "end text=x exit_code=256", "dance exit_code=0",
                           "start number=0 group_rank=0 group_count=1 first_rank=0 world_size=1 "
                           "master_addr=a master_port=65536 restarts=0"}) {
    EXPECT_FALSE(to_order(*decode(line)).ok()) << line;
  }
}

TEST(LineReader, CutsPiecesIntoLines) {
  LineReader reader;
  ASSERT_TRUE(reader.append("one\ntw").ok());
  EXPECT_EQ(reader.next(), "one");
  EXPECT_EQ(reader.next(), std::nullopt);
  ASSERT_TRUE(reader.append("o\n\n").ok());
  EXPECT_EQ(reader.next(), "two");
  EXPECT_EQ(reader.next(), "");
}

TEST(LineReader, RefusesALineWithoutEnd) {
  LineReader reader;
  absl::Status ok;
  size_t sent = 0;
  while (ok.ok() && sent < 10 * kMaxMessageBytes) {
    ok = reader.append(std::string(1024, 'x'));
    sent += 1024;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(ok));
  EXPECT_LE(sent, kMaxMessageBytes + 1024);
}

TEST(LineReader, LimitsALineAndNotTheirNumber) {
  LineReader reader;
  EXPECT_TRUE(reader.append(std::string(kMaxMessageBytes, 'x')).ok());
  EXPECT_TRUE(reader.append("\n").ok());
  EXPECT_EQ(reader.next()->size(), kMaxMessageBytes);
  const std::string lines = std::string(2 * kMaxMessageBytes, '\n') + "rest";
  EXPECT_TRUE(reader.append(lines).ok());
  LineReader other;
  EXPECT_FALSE(other.append(std::string(kMaxMessageBytes + 1, 'x')).ok());
}

}  // namespace
}  // namespace accelerate::launcher::agent
