#include "accelerate/state/logger.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/log/absl_log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/state/log_line.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace internal {

struct LoggerNode {
  std::string name;
  const LoggerNode* parent = nullptr;  // null for the root
  std::optional<LogLevel> level;       // the root has one
};

// The state of one Runtime.
struct LoggingState {
  LoggerNode root{.level = LogLevel::kWarning};
  std::map<std::string, LoggerNode, std::less<>> nodes;
  std::set<std::string, std::less<>> warned;
  std::vector<std::shared_ptr<absl::LogSink>> sinks;

  LoggerNode& node(std::string_view name) {
    if (name.empty()) return root;
    const auto found = nodes.find(name);
    if (found != nodes.end()) return found->second;
    const size_t dot = name.rfind('.');
    const LoggerNode& parent = node(dot == name.npos ? std::string_view() : name.substr(0, dot));
    return nodes.emplace(name, LoggerNode{.name = std::string(name), .parent = &parent})
        .first->second;
  }
};

}  // namespace internal

namespace {

using internal::LoggerNode;
using internal::LoggingState;

constexpr char kLogLevel[] = "ACCELERATE_LOG_LEVEL";

// A Runtime's shared objects go before it does; loggers that are left keep theirs.
std::shared_ptr<LoggingState> logging_state(Runtime& runtime) {
  using Shared = std::shared_ptr<LoggingState>;
  return runtime.shared<Shared>(
      [] { return std::make_unique<Shared>(std::make_shared<LoggingState>()); });
}

const PartialState& state_of(const Runtime& runtime) {
  const PartialState* state = PartialState::find(runtime);
  TORCH_CHECK_VALUE(state != nullptr,
                    "logging tells ranks apart, and this one does not know yet which it is: make a "
                    "PartialState or an Accelerator before the first line is logged");
  return *state;
}

void send(absl::LogSink& sink, LogLevel level, std::string_view name, std::string_view text,
          absl::Time time) {
  const absl::LogSeverity severity = level >= LogLevel::kError     ? absl::LogSeverity::kError
                                     : level == LogLevel::kWarning ? absl::LogSeverity::kWarning
                                                                   : absl::LogSeverity::kInfo;
  ABSL_LOG(LEVEL(severity))
          .ToSinkOnly(&sink)
          .AtLocation(absl::string_view(name.data(), name.size()), 0)
          .WithTimestamp(time)
          .WithVerbosity(level == LogLevel::kDebug ? 1 : absl::LogEntry::kNoVerbosityLevel)
      << absl::string_view(text.data(), text.size());
}

}  // namespace

Logger::Logger(Runtime& runtime, std::shared_ptr<LoggingState> state, LoggerNode& node)
    : runtime_(runtime), state_(std::move(state)), node_(&node) {}

const std::string& Logger::name() const { return node_->name; }

LogLevel Logger::level() const {
  const LoggerNode* node = node_;
  while (!node->level) node = node->parent;
  return *node->level;
}

void Logger::set_level(LogLevel level) { node_->level = level; }

void Logger::log(LogLevel level, const LogMessage& message, const LogOptions& options) const {
  const PartialState& state = state_of(runtime_);
  if (!is_enabled_for(level)) return;
  if (options.main_process_only) {
    if (state.is_main_process()) write(level, message, /*with_rank=*/false);
    return;
  }
  if (!options.in_order) return write(level, message, /*with_rank=*/true);
  for (int rank = 0; rank < state.num_processes(); ++rank) {
    if (rank == state.process_index()) write(level, message, /*with_rank=*/true);
    state.wait_for_everyone();
  }
}

void Logger::warning_once(const LogMessage& message, const LogOptions& options) const {
  state_of(runtime_);
  if (!is_enabled_for(LogLevel::kWarning)) return;
  const std::string text = message.text();
  if (state_->warned.insert(text).second) warning(text, options);
}

void Logger::write(LogLevel level, const LogMessage& message, bool with_rank) const {
  const std::string text =
      with_rank ? absl::StrCat("[RANK ", runtime_.topology().rank, "] ", message.text())
                : message.text();
  const absl::Time time = runtime_.now();
  runtime_.write_console(
      ConsoleStream::kErr,
      absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E3S ", time, absl::UTCTimeZone()),
                   to_string(level), " ", name(), name().empty() ? "" : ": ", text, "\n"));
  for (const auto& sink : state_->sinks) send(*sink, level, name(), text, time);
}

Logger get_logger(std::string_view name, std::string_view log_level, Runtime& runtime) {
  std::shared_ptr<LoggingState> state = logging_state(runtime);
  LoggerNode& node = state->node(name);
  const std::string text =
      log_level.empty() ? runtime.environment().get_or(kLogLevel, "") : std::string(log_level);
  if (!text.empty()) {
    const auto level = from_string<LogLevel>(text);
    node.level = level;
    state->root.level = level;
  }
  return Logger(runtime, std::move(state), node);
}

void add_log_sink(std::shared_ptr<absl::LogSink> sink, Runtime& runtime) {
  TORCH_CHECK_VALUE(sink != nullptr, "add_log_sink: the sink is null");
  logging_state(runtime)->sinks.push_back(std::move(sink));
}

namespace internal {
namespace {

bool has_state() {
  const Runtime* const runtime = Runtime::find_current();
  return runtime != nullptr && PartialState::find(*runtime) != nullptr;
}

}  // namespace

void log_warning(std::string_view logger, const std::string& text) {
  if (has_state()) get_logger(logger).warning(text);
}

void log_info(std::string_view logger, const std::string& text) {
  if (has_state()) get_logger(logger).info(text);
}

}  // namespace internal
}  // namespace accelerate
