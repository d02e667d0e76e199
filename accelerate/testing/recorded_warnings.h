/// Keeps the warnings of one thread instead of printing them.
///
/// Threads: the constructing thread, which must also call the destructor.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <c10/util/Exception.h>

namespace accelerate {

class RecordedWarnings {
 public:
  RecordedWarnings() : guard_(&recorder_) {}

  /// Each as "category: text".
  const std::vector<std::string>& texts() const { return recorder_.texts; }

 private:
  struct Recorder : c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      const bool deprecation = std::holds_alternative<c10::DeprecationWarning>(warning.type());
      texts.push_back((deprecation ? "DeprecationWarning: " : "UserWarning: ") + warning.msg());
    }
    std::vector<std::string> texts;
  };

  Recorder recorder_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace accelerate
