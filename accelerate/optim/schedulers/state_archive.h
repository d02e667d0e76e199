/// The state of a scheduler as JSON: one function of a kind lists its fields, for both directions.
///
///   void StepLR::archive(StateArchive& state) {
///     state("step_size", options_.step_size);
///     ...
///   }
///
/// Errors: while loading, c10::ValueError naming the field that is missing or of another type.
#pragma once

#include <concepts>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/json_text.h"
#include "accelerate/values/texts.h"

namespace accelerate::optim {

class StateArchive {
 public:
  /// Saves into an object of its own.
  StateArchive() = default;
  /// Loads from `source`, which must outlive it.
  explicit StateArchive(const nlohmann::ordered_json& source) : source_(&source) {
    TORCH_CHECK_VALUE(source.is_object(), "a scheduler's state is an object, got ",
                      json_text(source));
  }

  bool loads() const { return source_ != nullptr; }
  nlohmann::ordered_json take() && { return std::move(saved_); }

  /// The source's value of `name`. \pre It loads.
  const nlohmann::ordered_json& at(const char* name) const {
    const auto found = source_->find(name);
    TORCH_CHECK_VALUE(found != source_->end(), "a scheduler's state lacks \"", name, "\"");
    return *found;
  }

  /// Saves the field, or gives it the value that was saved.
  template <typename T>
  void operator()(const char* name, T& value) {
    if constexpr (EnumWithText<T>) {
      if (loads()) {
        value = from_string<T>(convert<std::string>(name));
      } else {
        saved_[name] = to_string(value);
      }
    } else if (loads()) {
      value = convert<T>(name);
    } else {
      saved_[name] = value;
    }
  }

  /// Saves a value that is not loaded, because it follows from others.
  template <typename T>
  void save(const char* name, const T& value) {
    if (!loads()) saved_[name] = value;
  }

 private:
  template <typename T>
  T convert(const char* name) const {
    const nlohmann::ordered_json& value = at(name);
    // The library's own conversion would cut a fraction off, and take true for 1.
    const bool numbers_fit =
        !std::integral<T> || std::same_as<T, bool> || value.is_number_integer();
    try {
      if (numbers_fit) return value.get<T>();
    } catch (const nlohmann::json::exception&) {
    }
    TORCH_CHECK_VALUE(false, "a scheduler's state has ", json_text(value), " for \"", name,
                      "\", which is of another type");
  }

  const nlohmann::ordered_json* source_ = nullptr;
  nlohmann::ordered_json saved_ = nlohmann::ordered_json::object();
};

}  // namespace accelerate::optim
