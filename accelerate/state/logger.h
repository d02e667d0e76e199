/// Log lines of a job with many ranks: by default the main process alone writes them.
///
///   Logger logger = get_logger("train");
///   logger.info("begins");                                         // rank 0 only
///   logger.debug([&] { return absl::StrCat("batch ", batch); });   // made only if it is written
///   logger.warning("lost a worker", {.main_process_only = false});  // "[RANK 3] lost a worker"
///   logger.info(table, {.main_process_only = false, .in_order = true});
///
/// A line goes to stderr through the Runtime, with the Runtime's time:
///
///   2026-01-31 12:00:00.250 WARNING train: [RANK 3] lost a worker
///
/// absl::LogSinks can have the entries as well (add_log_sink); Abseil's own logging is left alone,
/// because it belongs to the process, and in a simulation to all ranks.
///
/// Levels are those of a tree of names: "a.b" has the level of "a" unless it was given one, and
/// "a" that of the root. All loggers of a name are one, on their Runtime.
/// Errors:  c10::ValueError for logging before there is a PartialState.
/// Threads: the rank's thread.
/// Mirrors: accelerate logging.py, get_logger and MultiProcessAdapter (here Logger).
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/log/log_sink.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kCritical };

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(LogLevel, "log level", "DEBUG", "INFO", "WARNING", "ERROR",
                                  "CRITICAL")

struct LogOptions {
  /// Only rank 0 writes. Else every rank does, with its number in front.
  bool main_process_only = true;
  /// Together with main_process_only=false: rank 0 writes first, then rank 1, ... Every rank must
  /// make the call.
  bool in_order = false;
};

/// A text, or a function that makes one, which is called only if the line is written. For
/// parameters: it does not own what it was made from.
class LogMessage {
 public:
  template <typename T>
    requires std::convertible_to<const T&, std::string_view>
  LogMessage(const T& text) : text_(text) {}  // NOLINT: a parameter's type
  template <typename Make>
    requires std::is_invocable_r_v<std::string, const Make&>
  LogMessage(const Make& make)
      : make_(&make), call_([](const void* function) {  // NOLINT: as above
          return std::string((*static_cast<const Make*>(function))());
        }) {}

  std::string text() const { return call_ != nullptr ? call_(make_) : std::string(text_); }

 private:
  std::string_view text_;
  const void* make_ = nullptr;
  std::string (*call_)(const void*) = nullptr;
};

namespace internal {
struct LoggerNode;
struct LoggingState;
}  // namespace internal

/// A handle, cheap to copy. The Runtime must outlive it.
class Logger {
 public:
  const std::string& name() const;
  Runtime& runtime() const { return runtime_; }

  /// The level below which nothing is written.
  LogLevel level() const;
  void set_level(LogLevel level);
  bool is_enabled_for(LogLevel level) const { return level >= this->level(); }

  /// Writes a line. Local; collective with in_order, if the level is enabled, as it must be on all
  /// ranks alike.
  void log(LogLevel level, const LogMessage& message, const LogOptions& options = {}) const;

  void debug(const LogMessage& message, const LogOptions& options = {}) const {
    log(LogLevel::kDebug, message, options);
  }
  void info(const LogMessage& message, const LogOptions& options = {}) const {
    log(LogLevel::kInfo, message, options);
  }
  void warning(const LogMessage& message, const LogOptions& options = {}) const {
    log(LogLevel::kWarning, message, options);
  }
  void error(const LogMessage& message, const LogOptions& options = {}) const {
    log(LogLevel::kError, message, options);
  }
  void critical(const LogMessage& message, const LogOptions& options = {}) const {
    log(LogLevel::kCritical, message, options);
  }

  /// A warning whose text no logger of this Runtime warned of by this function before.
  void warning_once(const LogMessage& message, const LogOptions& options = {}) const;

 private:
  friend Logger get_logger(std::string_view name, std::string_view log_level, Runtime& runtime);
  Logger(Runtime& runtime, std::shared_ptr<internal::LoggingState> state,
         internal::LoggerNode& node);

  void write(LogLevel level, const LogMessage& message, bool with_rank) const;

  Runtime& runtime_;
  std::shared_ptr<internal::LoggingState> state_;
  internal::LoggerNode* node_;  // owned by the state
};

/// The Runtime's logger of that name, usually that of a source file's subject, with dots between
/// the parts. A `log_level` ("debug", "INFO", ...) becomes its level and the root's; empty:
/// ACCELERATE_LOG_LEVEL, if that is set. Without either the root's level is WARNING. Local, and
/// possible before there is a PartialState.
/// Errors: c10::ValueError naming the levels for a text that is none.
Logger get_logger(std::string_view name, std::string_view log_level = {},
                  Runtime& runtime = Runtime::current());

/// Logs a line by the logger of that name, for code that also runs without a job: does nothing
/// where no Runtime is current or it has no PartialState, without which it is unknown which rank
/// logs. Local.
void log_in_job(std::string_view name, LogLevel level, const LogMessage& message);

/// From now on the Runtime's log lines also go to `sink`, which must not throw, and of which
/// Abseil's limit for the length of a message holds. Errors and critical ones are errors there,
/// debug lines have verbosity 1. Local.
void add_log_sink(std::shared_ptr<absl::LogSink> sink, Runtime& runtime = Runtime::current());

}  // namespace accelerate
