#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/files/formats/token_index.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Preprocess : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_file(files_, input_, "{\"text\": \"ab\"}\n{\"text\": \"\"}\n").ok());
  }

  const TemporaryFolder folder_;
  const std::string input_ = folder_.path("in.jsonl");
  const std::string output_ = folder_.path("out");
  HostFiles files_;
};

TEST_F(Preprocess, WritesTokensAndSaysWhere) {
  const CommandResult result = run_command(kPreprocess, {input_, output_, "--append_eod"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "1 documents, 3 tokens, each document ends with 256: " + output_ +
                            "_text_document.bin, " + output_ + "_text_document.idx\n");
  EXPECT_THAT(result.err, HasSubstr("1 lines have no tokens"));
  EXPECT_THAT(read_token_index(files_, output_ + "_text_document.idx")->lengths, ElementsAre(3));
}

TEST_F(Preprocess, SaysWhatIsWrong) {
  CommandResult result = run_command(kPreprocess, {input_});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("a prefix for the output"));
  result = run_command(kPreprocess, {input_, output_, "--tokenizer", "words"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("bytes, vocabulary or numbers"));
  result = run_command(kPreprocess, {input_, output_, "--tokenizer", "vocabulary"});
  EXPECT_THAT(result.err, HasSubstr("need each other"));
  result = run_command(kPreprocess, {input_, output_, "--end_token", "3"});
  EXPECT_THAT(result.err, HasSubstr("--end_token needs --append_eod"));
  result = run_command(kPreprocess, {input_, output_, "--json_key", "body"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.jsonl:1: the object has no \"body\""));
}

}  // namespace
}  // namespace accelerate::launcher::commands
