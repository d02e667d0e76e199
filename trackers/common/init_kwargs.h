/// Reads a tracker's keyword arguments by name and type, and refuses unknown ones.
///
///   InitKwargs kwargs("dvclive", setup.init_kwargs);
///   folder_ = kwargs.text("dir").value_or("dvclive");
///   resume_ = kwargs.boolean("resume").value_or(false);
///   kwargs.finish();
///
/// None counts as absent. The names that were read before `finish` are the known ones.
/// Errors: std::invalid_argument naming the tracker, the argument, the expected type and the value.
///         Secret values are not shown, see secrets.h.
/// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

class InitKwargs {
 public:
  /// `kwargs` outlive this object. Errors call them `what`.
  InitKwargs(std::string_view tracker, const TrackerDict& kwargs,
             std::string_view what = "init_kwargs");

  std::optional<bool> boolean(std::string_view name) { return typed<bool>(name, "True or False"); }
  /// A bool is not an integer.
  std::optional<int64_t> integer(std::string_view name) {
    return typed<int64_t>(name, "a whole number");
  }
  /// An int or a float.
  std::optional<double> number(std::string_view name);
  std::optional<std::string> text(std::string_view name) {
    return typed<std::string>(name, "a text");
  }
  /// A list of texts, or one text.
  std::optional<std::vector<std::string>> texts(std::string_view name);
  std::optional<TrackerDict> dict(std::string_view name) {
    return typed<TrackerDict>(name, "a dictionary");
  }
  /// A value of any type.
  std::optional<TrackerValue> any(std::string_view name);

  /// Throws: the value must be `wanted`, such as "between 1 and 65535".
  [[noreturn]] void refuse(std::string_view name, std::string_view wanted) const;

  /// Errors: also if there is a name that was not read.
  void finish() const;

 private:
  // The value, or null if it is absent or None. Marks the name as known.
  const TrackerValue* read(std::string_view name);
  template <typename T>
  std::optional<T> typed(std::string_view name, std::string_view wanted) {
    const TrackerValue* const value = read(name);
    if (value == nullptr) return std::nullopt;
    const T* const typed = value->get_if<T>();
    if (typed == nullptr) refuse(name, wanted);
    return *typed;
  }

  const std::string tracker_;
  const TrackerDict& kwargs_;
  const std::string what_;
  std::vector<std::string> known_;
};

/// For trackers without log_kwargs. Errors: std::invalid_argument if `kwargs` are not empty.
void refuse_log_kwargs(std::string_view tracker, const TrackerDict& kwargs);

}  // namespace accelerate::trackers
