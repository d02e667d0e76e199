/// A key of a DeepSpeed configuration: how its value is read and what the documentation says about
/// it.
///
/// Threads: values.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/enum_text.h"
#include "accelerate/config/zero_settings.h"

namespace accelerate {

/// What becomes of a key.
enum class DeepSpeedKeyState {
  kHonoured,
  kWithoutEffect,  ///< accepted; training is the same
  kRefused,        ///< an error, unless its value turns it off
};
ACCELERATE_ENUM_TEXTS(DeepSpeedKeyState, "DeepSpeedKeyState", "honoured", "without effect",
                      "refused")

struct DeepSpeedKeyInfo {
  /// Dotted.
  std::string key;
  /// "boolean", "whole number", "number", "text", "list", "object", or the texts that it may be.
  std::string type;
  /// Empty: none.
  std::string default_value;
  DeepSpeedKeyState state = DeepSpeedKeyState::kHonoured;
  /// What it does, or why it does nothing or is refused.
  std::string what;
};

namespace internal {

struct ZeroKey {
  DeepSpeedKeyInfo info;
  /// Takes the value of an honoured key; returns what it should have been, empty if it fits.
  std::string (*take)(ZeroConfig& zero, const nlohmann::ordered_json& value) = nullptr;
  /// Whether the value of a refused key asks for nothing.
  bool (*is_off)(const nlohmann::ordered_json& value) = nullptr;
  /// Whether the field of an honoured key has its default, or that of a block that is missing.
  bool (*is_default)(ZeroConfig& zero) = nullptr;
  /// The range of a number.
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  /// A parameter of an optimizer or schedule: the types that have it.
  std::vector<std::string> types = {};
};

}  // namespace internal
}  // namespace accelerate
