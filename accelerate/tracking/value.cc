#include "accelerate/tracking/value.h"

#include <algorithm>

#include "absl/functional/overload.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/number_text.h"

namespace accelerate {
namespace {

// PyTorch leaves out the middle of larger tensors.
constexpr size_t kMaxPrinted = 1000;

std::string in_quotes(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    switch (c) {
      case '\n': result += "\\n"; break;
      case '\t': result += "\\t"; break;
      case '\r': result += "\\r"; break;
      case '\\': result += "\\\\"; break;
      default:
        if (c == quote) result += '\\';
        result += c;
    }
  }
  return result + quote;
}

// A whole number is "1." in a tensor of floats and "1" in others.
std::string element_text(const TensorValue& tensor, double value) {
  if (tensor.dtype == "bool") return value != 0 ? "True" : "False";
  std::string text = float_text(value);
  if (text.ends_with(".0")) text.pop_back();
  const bool floating = tensor.dtype.find("float") != std::string::npos;
  if (!floating && text.ends_with('.')) text.pop_back();
  return text;
}

// The elements below the first `depth` indices, beginning with element `*next`.
std::string nested_text(const TensorValue& tensor, size_t depth, size_t* next) {
  if (depth == tensor.sizes.size()) {
    return *next < tensor.values.size() ? element_text(tensor, tensor.values[(*next)++]) : "";
  }
  std::string text = "[";
  for (int64_t i = 0; i < tensor.sizes[depth]; ++i) {
    if (i > 0) text += ", ";
    text += nested_text(tensor, depth + 1, next);
  }
  return text + "]";
}

std::string tensor_text(const TensorValue& tensor) {
  if (tensor.values.size() > kMaxPrinted) {
    return absl::StrCat("tensor([...], size=(", absl::StrJoin(tensor.sizes, ", "),
                        "), dtype=torch.", tensor.dtype, ")");
  }
  size_t next = 0;
  return absl::StrCat("tensor(", nested_text(tensor, 0, &next), ")");
}

// The text of repr().
std::string representation(const TrackerValue& value) {
  const std::string* text = value.get_if<std::string>();
  return text != nullptr ? in_quotes(*text) : value_text(value);
}

}  // namespace

std::optional<double> TrackerValue::number() const {
  return std::visit(
      [](const auto& value) -> std::optional<double> {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
          return static_cast<double>(value);
        }
        return std::nullopt;
      },
      value_);
}

bool TrackerValue::operator==(const TrackerValue& other) const { return value_ == other.value_; }

std::string_view type_name(const TrackerValue& value) {
  static constexpr std::string_view kNames[] = {"NoneType", "bool",         "int",  "float",
                                                "str",      "torch.Tensor", "list", "dict"};
  static_assert(std::size(kNames) == std::variant_size_v<TrackerValue::Variant>);
  return kNames[value.variant().index()];
}

std::string value_text(const TrackerValue& value) {
  return std::visit(
      absl::Overload([](std::monostate) -> std::string { return "None"; },
                     [](bool truth) -> std::string { return truth ? "True" : "False"; },
                     [](int64_t number) { return absl::StrCat(number); },
                     [](double number) { return float_text(number); },
                     [](const std::string& text) { return text; },
                     [](const TensorValue& tensor) { return tensor_text(tensor); },
                     [](const TrackerList& list) {
                       return absl::StrCat("[",
                                           absl::StrJoin(list, ", ",
                                                         [](std::string* out, const auto& entry) {
                                                           out->append(representation(entry));
                                                         }),
                                           "]");
                     },
                     [](const TrackerDict& dict) {
                       return absl::StrCat("{",
                                           absl::StrJoin(dict, ", ",
                                                         [](std::string* out, const auto& entry) {
                                                           absl::StrAppend(
                                                               out, in_quotes(entry.first), ": ",
                                                               representation(entry.second));
                                                         }),
                                           "}");
                     }),
      value.variant());
}

const TrackerValue* find(const TrackerDict& dict, std::string_view name) {
  const auto found = std::find_if(dict.rbegin(), dict.rend(),
                                  [&](const auto& entry) { return entry.first == name; });
  return found == dict.rend() ? nullptr : &found->second;
}

}  // namespace accelerate
