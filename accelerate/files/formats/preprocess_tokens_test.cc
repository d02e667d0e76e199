#include "accelerate/files/formats/preprocess_tokens.h"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PreprocessTokens : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = join_path(folder_.path(), name);
    EXPECT_TRUE(write_file(files_, path, text).ok());
    return path;
  }

  absl::StatusOr<PreprocessedTokens> run(const std::string& lines, TokenOptions options = {}) {
    options.output_prefix = join_path(folder_.path(), "out");
    return preprocess_tokens(files_, write("in.jsonl", lines), options);
  }

  std::string problem(const std::string& lines, TokenOptions options = {}) {
    const auto result = run(lines, std::move(options));
    return result.ok() ? "none" : std::string(result.status().message());
  }

  const TemporaryFolder folder_;
  HostFiles files_;
};

TEST_F(PreprocessTokens, MakesADocumentOfEachLine) {
  const auto result = run("{\"text\": \"ab\"}\n\n{\"text\": \"\"}\n{\"id\": 1, \"text\": \"c\"}",
                          {.append_end = true});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->documents, 2);
  EXPECT_EQ(result->tokens, 5);
  EXPECT_EQ(result->empty_lines, 2);
  EXPECT_EQ(result->end_token, 256);
  EXPECT_EQ(result->bin_path, join_path(folder_.path(), "out_text_document.bin"));
  const TokenIndex index = *read_token_index(files_, result->idx_path);
  EXPECT_EQ(index.dtype, TokenDtype::kUint16);
  EXPECT_THAT(index.lengths, ElementsAre(3, 2));
  EXPECT_THAT(index.offsets, ElementsAre(0, 6));
  EXPECT_THAT(index.documents, ElementsAre(0, 1, 2));
  EXPECT_EQ(*read_file(files_, result->bin_path), std::string("a\0b\0\0\1c\0\0\1", 10));
}

TEST_F(PreprocessTokens, TakesTheLongestEntryOfTheVocabulary) {
  const std::string vocabulary = write("vocabulary", "a\nab\n \\n\nb\n");
  const auto result = run(R"({"text": "abba \nab"})",
                          {.tokenizer = TokenizerKind::kVocabulary, .vocabulary_file = vocabulary});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*read_file(files_, result->bin_path), std::string("\1\0\3\0\0\0\2\0\1\0", 10));
  EXPECT_THAT(problem("{\"text\": \"ab\"}\n{\"text\": \"abc\"}",
                      {.tokenizer = TokenizerKind::kVocabulary, .vocabulary_file = vocabulary}),
              AllOf(HasSubstr("in.jsonl:2: \"text\""), HasSubstr("byte 2: \"c\"")));
}

TEST_F(PreprocessTokens, RefusesAVocabularyThatIsNone) {
  const auto with = [&](const std::string& text) {
    return problem("{}", {.tokenizer = TokenizerKind::kVocabulary,
                          .vocabulary_file = write("vocabulary", text)});
  };
  EXPECT_THAT(with("a\nb\na\n"), HasSubstr("vocabulary: line 3"));
  EXPECT_THAT(with("a\n\nb\n"), HasSubstr("line 2: an empty entry"));
  EXPECT_THAT(with("\\q\n"), HasSubstr("line 1"));
}

TEST_F(PreprocessTokens, TakesNumbersOfOtherTokenizers) {
  TokenOptions options = {.tokenizer = TokenizerKind::kNumbers, .json_key = "ids"};
  const auto result = run(R"({"ids": [1, 70000]})", options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(read_token_index(files_, result->idx_path)->dtype, TokenDtype::kInt32);
  EXPECT_EQ(*read_file(files_, result->bin_path), std::string("\1\0\0\0\x70\x11\1\0", 8));
  EXPECT_THAT(problem(R"({"ids": [1.5]})", options), HasSubstr("found 1.5"));
  EXPECT_THAT(problem(R"({"ids": "a"})", options), HasSubstr("a list of numbers"));
  options.append_end = true;
  EXPECT_THAT(problem(R"({"ids": [1]})", options), HasSubstr("end_token"));
  options.end_token = 2;
  options.dtype = TokenDtype::kUint8;
  EXPECT_THAT(problem(R"({"ids": [256]})", options),
              HasSubstr("in.jsonl:1: token 256 is not from 0 to 255"));
}

TEST_F(PreprocessTokens, TakesTokensOfTheWholeRangeOfADtype) {
  for (const auto& [dtype, least, most] :
       {std::tuple(TokenDtype::kUint8, 0, 255), std::tuple(TokenDtype::kInt8, -128, 127),
        std::tuple(TokenDtype::kInt16, -32768, 32767), std::tuple(TokenDtype::kUint16, 0, 65535)}) {
    const TokenOptions options = {
        .tokenizer = TokenizerKind::kNumbers, .json_key = "ids", .dtype = dtype};
    const auto line = [](int first, int second) {
      return absl::StrCat("{\"ids\": [", first, ", ", second, "]}");
    };
    EXPECT_EQ(problem(line(least, most), options), "none");
    for (const int outside : {least - 1, most + 1}) {
      EXPECT_THAT(problem(line(0, outside), options),
                  HasSubstr(absl::StrCat("token ", outside, " is not from ", least, " to ", most)));
    }
  }
}

TEST_F(PreprocessTokens, TakesLinesOfOtherSystemsAndBytesOfOtherLanguages) {
  const auto result = run("{\"text\": \"\u00e9\"}\r\n\r\n");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->documents, 1);
  EXPECT_EQ(result->empty_lines, 1);
  EXPECT_EQ(result->end_token, std::nullopt);
  EXPECT_EQ(*read_file(files_, result->bin_path), std::string("\xC3\0\xA9\0", 4));
}

TEST_F(PreprocessTokens, TakesADtypeThatHoldsTheTokenAtTheEnd) {
  const auto dtype_with = [&](int64_t end_token, bool append_end) {
    const auto result =
        run("{\"text\": \"a\"}", {.append_end = append_end, .end_token = end_token});
    EXPECT_TRUE(result.ok()) << result.status();
    return read_token_index(files_, result->idx_path)->dtype;
  };
  EXPECT_EQ(dtype_with(65498, true), TokenDtype::kUint16);
  EXPECT_EQ(dtype_with(65499, true), TokenDtype::kInt32);
  EXPECT_EQ(dtype_with(70000, true), TokenDtype::kInt32);
  EXPECT_EQ(dtype_with(70000, false), TokenDtype::kUint16) << "which is not written";
}

TEST_F(PreprocessTokens, NamesTheLineThatCannotBeRead) {
  EXPECT_THAT(problem("{\"text\": \"a\"}\n{\"text\": "),
              HasSubstr("in.jsonl:2: expected an object"));
  EXPECT_THAT(problem("[1]"), HasSubstr("in.jsonl:1: expected an object"));
  EXPECT_THAT(problem(R"({"txt": "a"})"), HasSubstr("in.jsonl:1: the object has no \"text\""));
  EXPECT_THAT(problem(R"({"text": 1})"), HasSubstr("\"text\": expected a text"));
}

TEST_F(PreprocessTokens, LeavesNothingWhereItFails) {
  EXPECT_NE(problem("{\"text\": \"a\"}\n{"), "none");
  EXPECT_THAT(*files_.list(folder_.path()), ElementsAre("in.jsonl"));
}

TEST_F(PreprocessTokens, ReadsLinesThatAreLongerThanAPiece) {
  const std::string text(3 << 20, 'x');
  const auto result = run(absl::StrCat("{\"text\": \"", text, "\"}\n{\"text\": \"y\"}\n"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(read_token_index(files_, result->idx_path)->lengths,
              ElementsAre(static_cast<int64_t>(text.size()), 1));
  EXPECT_EQ(files_.info(result->bin_path)->size, 2 * (static_cast<int64_t>(text.size()) + 1));
}

}  // namespace
}  // namespace accelerate
