#include "trackers/bridge/bridge_process.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "absl/base/no_destructor.h"
#include "absl/functional/overload.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trackers/common/png.h"

namespace accelerate::trackers {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kVersion = 1;
// Of a line that the package prints.
constexpr size_t kMaxLine = 1000;

// bridge.py without its first line, which opens the literal.
constexpr std::string_view kBridge =
#include "trackers/bridge/bridge.py"
    ;

std::string bridge_program() { return std::string(kBridge.substr(kBridge.find('\n'))); }

// Fails where the module is none, or a mere folder of that name.
constexpr char kFindModule[] = R"(
import importlib.util, sys
try:
    spec = importlib.util.find_spec(sys.argv[1])
except ImportError:  # of a package that it would be in
    spec = None
sys.exit(0 if spec is not None and spec.origin is not None else 3)
)";
constexpr absl::Duration kFindLimit = absl::Seconds(10);

std::string find_module(const TrackerServices& services, const std::string& module) {
  try {
    PythonProcess process(services.environment, kFindModule, {module});
    if (!process.join(kFindLimit)) {
      return absl::StrCat(find_python(services.environment), " did not answer for ",
                          absl::FormatDuration(kFindLimit));
    }
    if (process.how_it_ended() == "exit status 0") return "";
    if (process.how_it_ended() == "exit status 3") {
      return absl::StrCat("the Python package ", module, " is not installed for ",
                          find_python(services.environment), ": pip install ", module,
                          ", or let ACCELERATE_PYTHON name an interpreter that has it");
    }
    return absl::StrCat(find_python(services.environment), " ended with ", process.how_it_ended(),
                        ": ", Secrets(services.environment, {}).mask(process.last_words()));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

// Values and calls as bridge.py reads them. None, booleans, numbers, texts and lists are as in
// JSON. The rest are objects that name their kind: {"float": "nan"}, {"dict": [[name, value],
// ...]},
// {"tensor": sizes, "dtype", "values"}, {"png": base64} and {"call": ...}.

json to_json(const TrackerValue& value);
json to_json(const PythonValue& value);
json to_json(const PythonCall& call);

json number(double value) {
  if (std::isnan(value)) return {{"float", "nan"}};
  if (std::isinf(value)) return {{"float", value > 0 ? "inf" : "-inf"}};
  return value;
}

template <typename List>
json list(const List& values) {
  json result = json::array();
  for (const auto& value : values) result.push_back(to_json(value));
  return result;
}

template <typename Dict>
json pairs(const Dict& dict) {
  json result = json::array();
  for (const auto& [name, value] : dict) result.push_back(json::array({name, to_json(value)}));
  return result;
}

json tensor(const TensorValue& value) {
  json values = json::array();
  for (const double element : value.values) values.push_back(number(element));
  return {{"tensor", value.sizes}, {"dtype", value.dtype}, {"values", std::move(values)}};
}

json to_json(const TrackerValue& value) {
  return std::visit(
      absl::Overload(
          [](std::monostate) -> json { return nullptr; }, [](bool truth) -> json { return truth; },
          [](int64_t integer) -> json { return integer; }, [](double real) { return number(real); },
          [](const std::string& text) -> json { return text; },
          [](const TensorValue& elements) { return tensor(elements); },
          [](const TrackerList& values) { return list(values); },
          [](const TrackerDict& dict) -> json { return {{"dict", pairs(dict)}}; }),
      value.variant());
}

json to_json(const PythonValue& value) {
  return std::visit(
      absl::Overload([](const TrackerValue& plain) { return to_json(plain); },
                     [](const TrackerImage& image) -> json {
                       return {{"png", absl::Base64Escape(encode_png(image))}};
                     },
                     [](const std::shared_ptr<const PythonCall>& made) { return to_json(*made); },
                     [](const PythonList& values) { return list(values); },
                     [](const PythonDict& dict) -> json { return {{"dict", pairs(dict)}}; }),
      value.variant());
}

json to_json(const PythonCall& call) {
  json result = {{"call", call.path}};
  if (!call.args.empty()) result["args"] = list(call.args);
  if (!call.kwargs.empty()) result["kwargs"] = pairs(call.kwargs);
  if (!call.if_none.empty()) result["if_none"] = call.if_none;
  if (call.optional) result["optional"] = true;
  return result;
}

}  // namespace

BridgeProcess::BridgeProcess(std::string name, const TrackerServices& services,
                             const TrackerDict& kwargs, const BridgeLimits& limits)
    : name_(std::move(name)),
      services_(services),
      secrets_(services.environment, kwargs),
      limits_(limits) {}

void BridgeProcess::start() {
  if (!services_.is_real) fail("there are no other programs in a simulation");
  process_ = std::make_unique<PythonProcess>(services_.environment, bridge_program(),
                                             std::vector<std::string>{std::to_string(getpid())});
}

void BridgeProcess::call(const PythonCall& call) { request(to_json(call), call.path); }

void BridgeProcess::set(const std::string& path, const TrackerValue& value) {
  request({{"set", path}, {"value", to_json(value)}}, path);
}

void BridgeProcess::set_item(const std::string& path, const std::string& key,
                             const TrackerValue& value) {
  request({{"setitem", path}, {"key", key}, {"value", to_json(value)}}, path);
}

void BridgeProcess::load(const std::string& file) { request({{"load", file}}, file); }

void BridgeProcess::request(json line, const std::string& what) {
  if (process_ == nullptr) fail("it was not started");
  if (finished_) fail("it has ended");
  const auto has_room = [&] {
    return unsent_.size() - sent_ < limits_.unsent || process_->is_gone();
  };
  const bool room = wait_until(limits_.call, has_room);
  if (process_->is_gone()) fail(that_it_died());
  if (!room) {
    fail(absl::StrCat(what, " is dropped: ", (unsent_.size() - sent_) >> 20,
                      " MiB wait already for the process to take them"));
  }
  line["id"] = ++requests_;
  unanswered_.emplace(requests_, what);
  absl::StrAppend(&unsent_, line.dump(-1, ' ', false, json::error_handler_t::replace), "\n");
  pump();
  throw_failure();
}

void BridgeProcess::pump() {
  sent_ += process_->write_some(std::string_view(unsent_).substr(sent_));
  if (sent_ * 2 >= unsent_.size()) unsent_.erase(0, std::exchange(sent_, 0));
  partial_answer_ += process_->read_some();
  size_t begin = 0;
  for (size_t end; (end = partial_answer_.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    take(partial_answer_.substr(begin, end - begin));
  }
  partial_answer_.erase(0, begin);
  for (const std::string& line : process_->new_lines()) {
    services_.info(absl::StrCat(name_, ": ", secrets_.mask(line).substr(0, kMaxLine)));
  }
}

void BridgeProcess::take(const std::string& answer) {
  const json fields = json::parse(answer, nullptr, false);
  if (fields.is_discarded() || (fields.contains("bridge") && fields["bridge"] != kVersion)) {
    failure_ = absl::StrCat("its bridge answers ", answer.substr(0, kMaxLine));
    return;
  }
  ++answers_;
  stuck_ = false;
  if (fields.contains("bridge")) return;
  const bool ok = fields.contains("ok");
  const auto asked = unanswered_.find(fields.value(ok ? "ok" : "id", uint64_t{0}));
  if (asked == unanswered_.end()) return;
  if (!ok && failure_.empty()) {
    failure_ = absl::StrCat(asked->second, " raised ", fields.value("error", ""), ": ",
                            fields.value("message", ""));
  }
  unanswered_.erase(asked);
}

template <typename Condition>
bool BridgeProcess::wait_until(absl::Duration limit, const Condition& condition) {
  const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(limit);
  const uint64_t answers = answers_;
  for (;;) {
    pump();
    if (condition()) return true;
    const absl::Duration left = absl::FromChrono(end - Clock::now());
    if (left <= absl::ZeroDuration()) {
      stuck_ = answers_ == answers;
      return false;
    }
    if (stuck_) return false;
    process_->wait(left, !unsent_.empty());
  }
}

void BridgeProcess::flush() {
  if (process_ == nullptr || finished_) return;
  const uint64_t answers = answers_;
  const bool was_stuck = stuck_;
  const bool done =
      wait_until(limits_.call, [&] { return unanswered_.empty() || process_->is_gone(); });
  throw_failure();
  if (process_->is_gone()) fail(that_it_died());
  // One that is slow goes on while the next calls come.
  if (!done && !was_stuck && answers_ == answers) {
    fail(absl::StrCat(unanswered_.begin()->second, " has not returned for ",
                      absl::FormatDuration(limits_.call), "; ", unanswered_.size() - 1,
                      " calls wait for it"));
  }
}

void BridgeProcess::finish() {
  if (process_ == nullptr || std::exchange(finished_, true)) return;
  const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(limits_.finish);
  const auto left = [&] { return absl::FromChrono(end - Clock::now()); };
  stuck_ = false;
  absl::StrAppend(&unsent_, "{\"finish\": true}\n");
  bool ended = wait_until(left(), [&] { return unsent_.empty() || process_->is_gone(); });
  if (ended) {
    // Now it ends by itself, after what packages do at the end of a program.
    process_->close_input();
    stuck_ = false;
    ended = wait_until(left(), [&] { return unanswered_.empty() || process_->is_gone(); }) &&
            process_->join(left());
  }
  pump();
  if (!ended) {
    process_->kill();
    throw_failure();
    fail(absl::StrCat("it did not end within ", absl::FormatDuration(limits_.finish),
                      " and was killed; ", unanswered_.size(), " calls had not returned"));
  }
  throw_failure();
  if (!unanswered_.empty() || process_->how_it_ended() != "exit status 0") fail(that_it_died());
}

void BridgeProcess::throw_failure() {
  if (!failure_.empty()) fail(std::exchange(failure_, ""));
}

void BridgeProcess::fail(std::string_view text) const {
  throw std::runtime_error(absl::StrCat(name_, ": ", secrets_.mask(text)));
}

std::string BridgeProcess::that_it_died() {
  process_->join(absl::Seconds(1));
  const std::string words = process_->last_words();
  return absl::StrCat("its process ended with ", process_->how_it_ended(), "; ", unanswered_.size(),
                      " calls had not returned; it is not started again",
                      words.empty() ? "" : "; it printed last: ", words);
}

std::string why_unavailable(const TrackerServices& services, const std::string& module) {
  if (!services.is_real) return "not in a simulation";
  static std::mutex mutex;
  static absl::NoDestructor<std::map<std::string, std::string>> answers;
  const auto variable = [&](const char* name) { return services.environment.get_or(name, ""); };
  const std::string question = absl::StrJoin({std::string(module), variable("ACCELERATE_PYTHON"),
                                              variable("PATH"), variable("PYTHONPATH")},
                                             "\n");
  const std::lock_guard lock(mutex);
  const auto known = answers->find(question);
  if (known != answers->end()) return known->second;
  return (*answers)[question] = find_module(services, module);
}

}  // namespace accelerate::trackers
