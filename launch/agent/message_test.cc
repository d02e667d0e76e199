#include "launch/agent/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace accelerate::launcher::agent {
namespace {

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

}  // namespace
}  // namespace accelerate::launcher::agent
