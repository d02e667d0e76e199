#include "accelerate/files/safetensors.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/base/json_text.h"
#include "accelerate/comm/checkpoint_error.h"

namespace accelerate::internal {
namespace {

using testing::HasSubstr;

std::string lists(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

std::string error_of(const std::string& text) {
  try {
    parse_state_values(text, "folder/custom_checkpoint_0.json");
  } catch (const CheckpointError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(StateDictFile, ReadsWhatMayBeWritten) {
  const auto values = parse_state_values(R"({"b": [1, {"text": "]["}], "a": null})", "x.json");
  EXPECT_EQ(values.dump(), R"({"b":[1,{"text":"]["}],"a":null})");
  EXPECT_EQ(parse_state_values(lists(kMaxJsonDepth), "x.json").dump(), lists(kMaxJsonDepth));
}

TEST(StateDictFile, IsNotTrusted) {
  // Walking through a value of that depth would overflow the stack.
  for (const std::string& text :
       {lists(kMaxJsonDepth + 1), lists(1000000), std::string(1000000, '['),
        R"({"a":")" + std::string(300, '[') + "\"," + R"("b":)" + lists(kMaxJsonDepth) + "}"}) {
    EXPECT_THAT(error_of(text),
                HasSubstr("folder/custom_checkpoint_0.json: it is nested too deeply"));
  }
  EXPECT_THAT(error_of("{"), HasSubstr("custom_checkpoint_0.json: it is not JSON"));
}

}  // namespace
}  // namespace accelerate::internal
