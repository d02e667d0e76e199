#include "accelerate/files/formats/token_index.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string number(uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  return bytes;
}

std::string numbers(const std::vector<uint64_t>& values, int size) {
  std::string bytes;
  for (const uint64_t value : values) bytes += number(value, size);
  return bytes;
}

std::string magic(const char* name, size_t size) {
  std::string bytes = name;
  bytes.resize(size, '\0');
  return bytes;
}

// Two documents, of 3 + 0 and of 2 tokens of two bytes.
std::string mapped(uint64_t version = 1, uint64_t code = 8) {
  return magic("MMIDIDX", 9) + number(version, 8) + number(code, 1) + number(3, 8) + number(3, 8) +
         numbers({3, 0, 2}, 4) + numbers({0, 6, 6}, 8) + numbers({0, 2, 3}, 8);
}

std::string first(uint64_t code = 8, uint64_t size = 2) {
  return magic("TNTIDX", 8) + numbers({1, code, size, 3, 3, 3}, 8) + numbers({0, 1, 2, 3}, 8) +
         numbers({0, 3, 3, 5}, 8) + numbers({3, 0, 2}, 8) + numbers({0, 2, 3}, 8);
}

TokenIndex expected() {
  return {.dtype = TokenDtype::kUint16,
          .lengths = {3, 0, 2},
          .offsets = {0, 6, 6},
          .documents = {0, 2, 3}};
}

std::string problem(const std::string& bytes) {
  const auto index = parse_token_index(bytes);
  if (index.ok()) return "none";
  EXPECT_TRUE(absl::IsDataLoss(index.status())) << index.status();
  return std::string(index.status().message());
}

std::string replaced(std::string bytes, size_t at, const std::string& with) {
  return bytes.replace(at, with.size(), with);
}

TEST(TokenIndex, IsReadInBothFormats) {
  EXPECT_EQ(*parse_token_index(mapped()), expected());
  EXPECT_EQ(*parse_token_index(first()), expected());
  EXPECT_EQ(token_bytes(expected()), 10);
  // Sequences may lie in any order.
  EXPECT_EQ(token_bytes({.dtype = TokenDtype::kUint16, .lengths = {3, 2}, .offsets = {100, 0}}),
            106);
}

TEST(TokenIndex, IsWrittenAsItIsRead) {
  EXPECT_EQ(*token_index_bytes(expected()), mapped());
  TokenIndex with_modes = expected();
  with_modes.modes = {0, 1, -1};
  EXPECT_EQ(*parse_token_index(*token_index_bytes(with_modes)), with_modes);
  TokenIndex wrong = expected();
  wrong.lengths[0] = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(token_index_bytes(wrong).status()));
  wrong.lengths[0] = int64_t{1} << 40;
  EXPECT_TRUE(absl::IsInvalidArgument(token_index_bytes(wrong).status()));
}

TEST(TokenIndex, KnowsEveryDtype) {
  std::vector<int64_t> sizes;
  for (uint64_t code = 1; code <= 8; ++code) {
    const auto index = parse_token_index(mapped(1, code));
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(static_cast<uint64_t>(index->dtype), code);
    sizes.push_back(token_size(index->dtype));
  }
  EXPECT_THAT(sizes, ElementsAre(1, 1, 2, 4, 8, 8, 4, 2));
  EXPECT_EQ(parse_token_index(first(6, 4))->dtype, TokenDtype::kFloat32);
  EXPECT_EQ(parse_token_index(first(7, 8))->dtype, TokenDtype::kFloat64);
}

TEST(TokenIndex, ChoosesTheDtypeByTheVocabulary) {
  EXPECT_EQ(token_dtype_for(65499), TokenDtype::kUint16);
  EXPECT_EQ(token_dtype_for(65500), TokenDtype::kInt32);
}

TEST(TokenIndex, SaysAtWhichByteItIsDamaged) {
  EXPECT_THAT(problem("hello"), AllOf(HasSubstr("byte 0"), HasSubstr("found \"hello\"")));
  EXPECT_THAT(problem(mapped(2)), HasSubstr("byte 9 of the index: expected version 1, found 2"));
  EXPECT_THAT(problem(mapped(1, 9)), HasSubstr("byte 17 of the index: expected the code of a "
                                               "dtype, from 1 to 8, found 9"));
  EXPECT_THAT(problem(mapped(1, 0)), HasSubstr("from 1 to 8, found 0"));
  EXPECT_THAT(problem(replaced(mapped(), 18, number(1000, 8))),
              AllOf(HasSubstr("byte 18"), HasSubstr("found 1000")));
  EXPECT_THAT(problem(replaced(mapped(), 38, number(0xFFFFFFFF, 4))),
              HasSubstr("byte 38 of the index: expected the length of a sequence from 0 to "
                        "2147483647, found -1"));
  EXPECT_THAT(problem(replaced(mapped(), 46, number(uint64_t{1} << 62, 8))), HasSubstr("byte 46"));
  EXPECT_EQ(problem(replaced(mapped(), 78, number(1, 8))), "none");
  EXPECT_THAT(problem(replaced(mapped(), 86, number(1, 8))),
              HasSubstr("byte 86 of the index: expected the first sequence of a document of at "
                        "least 2, found 1"));
  EXPECT_THAT(problem(replaced(mapped(), 86, number(4, 8))), HasSubstr("from 0 to 3, found 4"));
  EXPECT_THAT(problem(mapped() + "ab"), AllOf(HasSubstr("byte 94"), HasSubstr("2 bytes")));
}

TEST(TokenIndex, SaysWhereTheOlderFormatIsDamaged) {
  EXPECT_THAT(problem(first(8, 4)),
              HasSubstr("byte 24 of the index: expected a token's 2 bytes, found 4"));
  EXPECT_THAT(problem(replaced(first(), 8, number(2, 8))),
              HasSubstr("byte 8 of the index: expected version 1, found 2"));
  EXPECT_THAT(problem(first(0)), HasSubstr("byte 16 of the index: expected the code of a dtype"));
  EXPECT_THAT(problem(replaced(first(), 64, number(2, 8))),
              HasSubstr("byte 64 of the index: expected 1, found 2"));
  EXPECT_THAT(problem(replaced(first(), 40, number(2, 8))),
              HasSubstr("byte 40 of the index: expected one size for each of 3 sequences, found "
                        "2"));
  EXPECT_THAT(problem(replaced(first(), 120, number(4, 8))),
              HasSubstr("byte 120 of the index: expected 3 tokens, found 4"));
  EXPECT_THAT(problem(first() + "x"), HasSubstr("expected the end of the file, found 1 bytes"));
}

TEST(TokenIndex, IsRefusedWhereverItIsCutOff) {
  for (const std::string& whole : {mapped(), first()}) {
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(problem(whole.substr(0, size)), "none") << size;
    }
  }
}

TEST(TokenIndex, OfAFileNamesTheFile) {
  const TemporaryFolder folder;
  HostFiles files;
  const std::string path = folder.path() + "/data.idx";
  ASSERT_TRUE(write_file(files, path, mapped(3)).ok());
  EXPECT_THAT(read_token_index(files, path).status().message(),
              AllOf(HasSubstr(path), HasSubstr("byte 9")));
  EXPECT_TRUE(absl::IsNotFound(read_token_index(files, folder.path() + "/no.idx").status()));
}

}  // namespace
}  // namespace accelerate
