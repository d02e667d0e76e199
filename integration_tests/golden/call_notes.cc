#include "integration_tests/golden/call_notes.h"

#include <algorithm>
#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "accelerate/step/executable_batch_size.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// Arguments, and parameters after the batch size.
constexpr int kMost = 3;

// NAME, NAME=NUMBER or NUMBER.
struct Item {
  std::string name;
  std::optional<int64_t> value;
};

std::vector<Item> items_of(const std::string& list) {
  std::vector<Item> items;
  for (const auto piece : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    std::string text(piece);
    absl::StripAsciiWhitespace(&text);
    const std::pair<std::string, std::string> sides = absl::StrSplit(text, absl::MaxSplits('=', 1));
    const bool is_number = absl::ascii_isdigit(static_cast<unsigned char>(text[0]));
    Item item{.name = is_number ? "" : sides.first};
    if (is_number) item.value = std::stoll(text);
    if (!sides.second.empty()) item.value = std::stoll(sides.second);
    items.push_back(std::move(item));
  }
  return items;
}

// The text in the first parentheses after `from`, and the place behind them.
std::pair<std::string, size_t> parenthesised(const std::string& note, size_t from) {
  const size_t open = note.find('(', from);
  const size_t close = note.find(')', from);
  if (open == std::string::npos || close == std::string::npos || close < open) {
    throw CaseError("note: cannot read \"" + note + "\"");
  }
  return {note.substr(open + 1, close - open - 1), close + 1};
}

struct Call {
  bool takes_batch_size = false;
  int required = 0;               // parameters after the batch size
  std::vector<int64_t> defaults;  // of the optional ones after those
  bool variadic = false;
  std::vector<int64_t> arguments;  // by position
};

// Nothing for a call with arguments that the function does not have: in C++ it cannot be written.
std::optional<Call> parse(const std::string& note) {
  const auto [parameter_list, behind] = parenthesised(note, 0);
  const bool has_arguments = note.find(" called with ", behind) != std::string::npos;
  std::vector<Item> parameters = items_of(parameter_list);
  Call call;
  call.takes_batch_size = !parameters.empty();
  if (parameters.empty()) return call;
  call.variadic = parameters.back().name == "*args";
  if (call.variadic) parameters.pop_back();
  parameters.erase(parameters.begin());
  for (const Item& parameter : parameters) {
    if (parameter.value) {
      call.defaults.push_back(*parameter.value);
    } else {
      ++call.required;
    }
  }
  if (!has_arguments) return call;
  for (const Item& item : items_of(parenthesised(note, behind).first)) {
    size_t place = call.arguments.size();
    if (!item.name.empty()) {
      const auto known = std::find_if(parameters.begin(), parameters.end(),
                                      [&](const Item& one) { return one.name == item.name; });
      if (known == parameters.end()) return std::nullopt;
      place = static_cast<size_t>(known - parameters.begin());
    }
    while (call.arguments.size() < place) {
      const auto& skipped = parameters[call.arguments.size()];
      if (!skipped.value) return std::nullopt;
      call.arguments.push_back(*skipped.value);
    }
    if (place < call.arguments.size()) return std::nullopt;
    call.arguments.push_back(item.value.value());
  }
  return call;
}

// As `parse` has it; kMost optional parameters stand for any number of them.
template <int kRequired, int kOptional>
struct Train {
  std::vector<int64_t> defaults;

  template <std::same_as<int64_t>... Arguments>
    requires(sizeof...(Arguments) >= kRequired &&
             (kOptional == kMost || sizeof...(Arguments) <= kRequired + kOptional))
  json operator()(int64_t batch_size, Arguments... arguments) const {
    json values = json::array({batch_size, arguments...});
    for (size_t i = sizeof...(Arguments) - kRequired; i < defaults.size(); ++i) {
      values.push_back(defaults[i]);
    }
    return values.size() == 1 && kOptional != kMost ? json(batch_size) : values;
  }
};

// fn(std::integral_constant<int, value>()).
template <typename Fn>
json with_constant(int value, const Fn& fn) {
  switch (value) {
    case 0: return fn(std::integral_constant<int, 0>());
    case 1: return fn(std::integral_constant<int, 1>());
    case 2: return fn(std::integral_constant<int, 2>());
    case kMost: return fn(std::integral_constant<int, kMost>());
    default: throw CaseError("note: too many parameters");
  }
}

template <typename Function, size_t... kIndices>
json call_with(Function& function, const std::vector<int64_t>& arguments,
               std::index_sequence<kIndices...>) {
  if constexpr (requires { function(int64_t{kIndices}...); }) {
    return {{"value", function(int64_t{arguments[kIndices]}...)}};
  } else {
    return refused_by_compiler();
  }
}

template <typename Function>
concept CanBeRetried = requires(Function function) {
  find_executable_batch_size(function, FindExecutableBatchSizeOptions());
};

}  // namespace

json run_noted_call(const std::string& note, int64_t starting_batch_size) {
  const std::optional<Call> call = parse(note);
  if (!call) return refused_by_compiler();
  if (!call->takes_batch_size) {
    static_assert(!CanBeRetried<void (*)()>);
    return refused_by_compiler();
  }
  const int optional = call->variadic ? kMost : static_cast<int>(call->defaults.size());
  return with_constant(call->required, [&](auto required) {
    return with_constant(optional, [&](auto optional) {
      return with_constant(static_cast<int>(call->arguments.size()), [&](auto count) {
        auto function = find_executable_batch_size(Train<required, optional>{call->defaults},
                                                   {.starting_batch_size = starting_batch_size});
        return call_with(function, call->arguments, std::make_index_sequence<count>());
      });
    });
  });
}

}  // namespace accelerate::golden
