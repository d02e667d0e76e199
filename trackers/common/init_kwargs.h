/// Reads what `init_trackers` got for a tracker: by name and type, and nothing else may be there.
///
///   InitKwargs kwargs("dvclive", setup.init_kwargs);
///   folder_ = kwargs.text("dir").value_or("dvclive");
///   resume_ = kwargs.boolean("resume").value_or(false);
///   kwargs.finish();
///
/// A value of None is as good as none. Ask for every name that is known before `finish`: the names
/// that were asked for are the known ones.
/// Errors:  std::invalid_argument naming the tracker, the name, what it must be and what it is.
///          Values whose names say that they are secret are not shown.
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
  /// `kwargs` must outlive this; `what` is what errors call them.
  InitKwargs(std::string_view tracker, const TrackerDict& kwargs,
             std::string_view what = "init_kwargs");

  std::optional<bool> boolean(std::string_view name);
  /// A bool is none.
  std::optional<int64_t> integer(std::string_view name);
  /// Of an int or a float.
  std::optional<double> number(std::string_view name);
  std::optional<std::string> text(std::string_view name);
  /// Of a list of texts, or of one text.
  std::optional<std::vector<std::string>> texts(std::string_view name);
  std::optional<TrackerDict> dict(std::string_view name);
  /// Whatever it is.
  std::optional<TrackerValue> any(std::string_view name);

  /// Says that a value must be something else: "between 1 and 65535".
  [[noreturn]] void refuse(std::string_view name, std::string_view wanted) const;

  /// Errors: also where there is a name that nobody asked for.
  void finish() const;

 private:
  // The value, or null for none; the name is known from now on.
  const TrackerValue* take(std::string_view name);
  template <typename T>
  std::optional<T> typed(std::string_view name, std::string_view wanted);

  const std::string tracker_;
  const TrackerDict& kwargs_;
  const std::string what_;
  std::vector<std::string> known_;
};

/// For trackers that know none of what comes with `log`. Errors: std::invalid_argument where there
/// is some.
void refuse_log_kwargs(std::string_view tracker, const TrackerDict& kwargs);

/// y yes t true on 1 / n no f false off 0, in any case; nothing for another text.
std::optional<bool> yes_or_no(std::string_view text);

}  // namespace accelerate::trackers
