#include "simulator/report/output_file.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::HasSubstr;

// An empty folder of the test.
std::filesystem::path folder(const char* name) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

std::string text_of(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

size_t files_in(const std::filesystem::path& path) {
  return std::distance(std::filesystem::directory_iterator(path), {});
}

TEST(OutputFile, AppearsAsAWhole) {
  const std::filesystem::path directory = folder("whole");
  absl::StatusOr<OutputFile> file = OutputFile::create(directory / "a.txt");
  ASSERT_TRUE(file.ok()) << file.status();
  file->append("one ");
  file->append("two");
  EXPECT_FALSE(std::filesystem::exists(directory / "a.txt"));
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(text_of(directory / "a.txt"), "one two");
  EXPECT_EQ(files_in(directory), 1u);
}

TEST(OutputFile, LeavesAnEarlierFileAloneUnlessCommitted) {
  const std::filesystem::path directory = folder("abandoned");
  std::ofstream(directory / "a.txt") << "earlier";
  {
    absl::StatusOr<OutputFile> file = OutputFile::create(directory / "a.txt");
    ASSERT_TRUE(file.ok());
    file->append("later");
  }
  EXPECT_EQ(text_of(directory / "a.txt"), "earlier");
  EXPECT_EQ(files_in(directory), 1u);
}

TEST(OutputFile, NamesThePathThatCannotBeWritten) {
  const std::filesystem::path directory = folder("missing");
  const absl::Status status = OutputFile::create(directory / "not there" / "a.txt").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr((directory / "not there" / "a.txt").string()));
}

TEST(OutputFile, SaysThatThePathIsAFolder) {
  const std::filesystem::path directory = folder("taken");
  std::filesystem::create_directories(directory / "a.txt" / "below");
  absl::StatusOr<OutputFile> file = OutputFile::create(directory / "a.txt");
  ASSERT_TRUE(file.ok());
  const absl::Status status = file->commit();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr((directory / "a.txt").string()));
  EXPECT_EQ(files_in(directory), 1u);
}

// A test cannot fill the disk; a limit on the size of files makes the same calls fail.
TEST(OutputFile, ReportsAFailedWriteAndLeavesNothing) {
  const std::filesystem::path directory = folder("full");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  for (size_t size : {1001, 100'000}) {  // found by the last flush, and on the way
    absl::StatusOr<OutputFile> file = OutputFile::create(directory / "a.txt");
    ASSERT_TRUE(file.ok());
    file->append(std::string(size, 'x'));
    file->append("the end");
    const absl::Status status = file->commit();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr((directory / "a.txt").string()));
    EXPECT_EQ(files_in(directory), 0u);
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(HtmlJsonText, KeepsAStringFromEndingItsScriptElement) {
  EXPECT_EQ(html_json_text("a</script><!--"), "\"a\\u003c/script>\\u003c!--\"");
  EXPECT_EQ(html_json_text("\"\\\n"), "\"\\\"\\\\\\n\"");
}

TEST(HtmlJsonText, ReplacesWhatIsNoText) {
  EXPECT_EQ(html_json_text("a\xff"), "\"a\xEF\xBF\xBD\"");
}

TEST(Microseconds, KeepsTheNanosecondsOfMicroseconds) {
  EXPECT_EQ(microseconds(0), "0.000");
  EXPECT_EQ(microseconds(1'000'007), "1000.007");
  EXPECT_EQ(microseconds(9'007'199'254'740'993), "9007199254740.993");
}

}  // namespace
}  // namespace accelerate::simulator
