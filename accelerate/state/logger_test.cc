#include "accelerate/state/logger.h"

#include <memory>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One rank alone, with a console that is kept, a quarter of a second after the epoch.
class LoggingRuntime : public FakeRuntime {
 public:
  LoggingRuntime() { environment().unset("ACCELERATE_LOG_LEVEL"); }
  ~LoggingRuntime() override { clear_shared(); }

  absl::Time now() override { return absl::UnixEpoch() + absl::Milliseconds(250); }
  void write_console(ConsoleStream stream, std::string_view text) override {
    EXPECT_EQ(stream, ConsoleStream::kErr);
    written += text;
  }

  std::string written;
};

class LoggerTest : public ::testing::Test {
 protected:
  void SetUp() override { PartialState::get(runtime_); }

  LoggingRuntime runtime_;
  RuntimeScope scope_{runtime_};
};

TEST_F(LoggerTest, WritesTimeLevelNameAndText) {
  get_logger("train").warning("slow");
  EXPECT_EQ(runtime_.written, "1970-01-01 00:00:00.250 WARNING train: slow\n");
  runtime_.written.clear();
  get_logger("").critical(std::string("down"), {.main_process_only = false});
  EXPECT_EQ(runtime_.written, "1970-01-01 00:00:00.250 CRITICAL [RANK 0] down\n");
}

TEST_F(LoggerTest, WritesFromItsLevelOn) {
  const Logger logger = get_logger("train", "info");
  logger.debug("debug");
  logger.info("info");
  logger.warning("warning");
  logger.error("error");
  logger.critical("critical");
  logger.log(LogLevel::kDebug, "debug");
  logger.log(LogLevel::kInfo, "log");
  const std::string time = "1970-01-01 00:00:00.250 ";
  EXPECT_EQ(runtime_.written,
            absl::StrCat(time, "INFO train: info\n", time, "WARNING train: warning\n", time,
                         "ERROR train: error\n", time, "CRITICAL train: critical\n", time,
                         "INFO train: log\n"));
}

TEST_F(LoggerTest, MakesNoTextThatIsNotWritten) {
  const Logger logger = get_logger("train", "info");
  int made = 0;
  auto text = [&made] { return absl::StrCat("text ", ++made); };
  logger.debug(text);
  EXPECT_EQ(made, 0);
  logger.info(text);
  EXPECT_THAT(runtime_.written, HasSubstr("INFO train: text 1\n"));
}

TEST_F(LoggerTest, TakesItsLevelFromTheNameAboveUnlessItHasOne) {
  Logger child = get_logger("a.b.c");
  EXPECT_EQ(child.level(), LogLevel::kWarning);
  Logger parent = get_logger("a");
  parent.set_level(LogLevel::kDebug);
  EXPECT_EQ(child.level(), LogLevel::kDebug);
  EXPECT_EQ(get_logger("ab").level(), LogLevel::kWarning);
  child.set_level(LogLevel::kError);
  EXPECT_EQ(get_logger("a.b.c").level(), LogLevel::kError) << "loggers of a name are one";
  EXPECT_EQ(get_logger("a.b").level(), LogLevel::kDebug);
}

TEST_F(LoggerTest, GivesItsLevelToTheRootAsWell) {
  get_logger("a", "ERROR");
  EXPECT_EQ(get_logger("b").level(), LogLevel::kError);
  runtime_.environment().set("ACCELERATE_LOG_LEVEL", "debug");
  EXPECT_EQ(get_logger("c").level(), LogLevel::kDebug);
  EXPECT_EQ(get_logger("b").level(), LogLevel::kDebug);
  EXPECT_EQ(get_logger("d", "info").level(), LogLevel::kInfo) << "the argument counts";
}

TEST_F(LoggerTest, RefusesALevelThatIsNone) {
  try {
    get_logger("a", "loud");
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("\"loud\""), HasSubstr("DEBUG, INFO, WARNING, ERROR, CRITICAL")));
  }
}

TEST_F(LoggerTest, WarnsOfATextOnce) {
  const Logger logger = get_logger("train");
  logger.warning_once("old");
  logger.warning_once("new");
  logger.warning_once("old");
  get_logger("other").warning_once([] { return std::string("old"); });
  EXPECT_EQ(runtime_.written,
            "1970-01-01 00:00:00.250 WARNING train: old\n"
            "1970-01-01 00:00:00.250 WARNING train: new\n");
  LoggingRuntime other;
  PartialState::get(other);
  get_logger("train", {}, other).warning_once("old");
  EXPECT_THAT(other.written, HasSubstr("old")) << "each Runtime counts for itself";
}

TEST_F(LoggerTest, HasNotWarnedWhileWarningsAreOff) {
  Logger logger = get_logger("train");
  logger.set_level(LogLevel::kError);
  logger.warning_once("old");
  EXPECT_EQ(runtime_.written, "");
  logger.set_level(LogLevel::kWarning);
  logger.warning_once("old");
  EXPECT_EQ(runtime_.written, "1970-01-01 00:00:00.250 WARNING train: old\n");
}

TEST(Logger, NeedsAStateToLogButNotToBeMade) {
  LoggingRuntime runtime;
  const Logger logger = get_logger("train", {}, runtime);
  EXPECT_THROW(logger.error("too early"), c10::ValueError);
  EXPECT_THROW(logger.debug("too early, and off"), c10::ValueError);
  EXPECT_THROW(logger.warning_once("too early"), c10::ValueError);
  EXPECT_EQ(runtime.written, "");
  PartialState::get(runtime);
  logger.warning_once("too early");
  EXPECT_THAT(runtime.written, HasSubstr("too early"));
}

struct KeptEntry {
  absl::LogSeverity severity;
  int verbosity;
  absl::Time time;
  std::string place;
  std::string text;
};

class KeepingSink : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override {
    entries.push_back({entry.log_severity(), entry.verbosity(), entry.timestamp(),
                       std::string(entry.source_filename()), std::string(entry.text_message())});
  }
  std::vector<KeptEntry> entries;
};

TEST_F(LoggerTest, HandsItsEntriesToSinks) {
  auto sink = std::make_shared<KeepingSink>();
  const Logger logger = get_logger("train", "debug");
  logger.error("before");
  add_log_sink(sink);
  logger.debug("a");
  logger.warning("b", {.main_process_only = false});
  logger.critical("c");
  ASSERT_EQ(sink->entries.size(), 3);
  EXPECT_EQ(sink->entries[0].text, "a");
  EXPECT_EQ(sink->entries[0].severity, absl::LogSeverity::kInfo);
  EXPECT_EQ(sink->entries[0].verbosity, 1);
  EXPECT_EQ(sink->entries[0].time, runtime_.now());
  EXPECT_EQ(sink->entries[0].place, "train");
  EXPECT_EQ(sink->entries[1].text, "[RANK 0] b");
  EXPECT_EQ(sink->entries[1].severity, absl::LogSeverity::kWarning);
  EXPECT_EQ(sink->entries[2].severity, absl::LogSeverity::kError);
  EXPECT_THAT(runtime_.written, HasSubstr("DEBUG train: a\n")) << "and still to the console";
}

TEST_F(LoggerTest, WritesLongTextsWhole) {
  const std::string text(100000, 'x');
  get_logger("train").warning(text);
  EXPECT_THAT(runtime_.written, HasSubstr(text + "\n"));
}

}  // namespace
}  // namespace accelerate
