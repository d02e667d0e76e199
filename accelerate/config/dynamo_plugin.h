/// How models are compiled: the options of torch.compile, from the program or from the variables
/// ACCELERATE_DYNAMO_*.
///
///     Accelerator accelerator({.dynamo_plugin = TorchDynamoPlugin{
///         .backend = DynamoBackend::kAotEager, .use_regional_compilation = true}});
///
/// A field that is given takes precedence over its variable, which stands beside it. resolve()
/// reads the variables and gives each field its final value; the Accelerator does that, and its
/// AcceleratorState keeps the result. The table of accelerate/base/compile_backends.h says what the
/// backends do.
///
/// Errors:  c10::ValueError naming the field or variable and what it has.
/// Threads: values.
/// Mirrors: accelerate utils/dataclasses.py, TorchDynamoPlugin.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

struct TorchDynamoPlugin {
  /// A member, or its name in any case: NO. ACCELERATE_DYNAMO_BACKEND. Resolved: a member.
  std::optional<std::variant<DynamoBackend, std::string>> backend = std::nullopt;
  /// "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs": what packages
  /// are made for: default. ACCELERATE_DYNAMO_MODE
  std::optional<std::string> mode = std::nullopt;
  /// Whether a region that cannot be compiled is an error, not a warning: false.
  /// ACCELERATE_DYNAMO_USE_FULLGRAPH
  std::optional<bool> fullgraph = std::nullopt;
  /// Whether sizes change. Each set of sizes is a region of its own in any case, so `true` has no
  /// effect but a warning. Absent by default. ACCELERATE_DYNAMO_USE_DYNAMIC
  std::optional<bool> dynamic = std::nullopt;
  /// Options of the compiler of packages, an object; instead of a mode. Those of TorchInductor, and
  /// two of this library's: "memory_budget", 0 to 1, the share of what a region would keep for its
  /// backward pass that it keeps, while the rest is computed again; "package", a folder of packages
  /// in place of the cache.
  std::optional<nlohmann::ordered_json> options = std::nullopt;
  /// Nothing is compiled, whatever the backend.
  bool disable = false;
  /// Whether regions are the blocks that the model calls by accelerate::block(); if not, the whole
  /// model is one: false. ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION
  std::optional<bool> use_regional_compilation = std::nullopt;
};
ACCELERATE_STRUCT(TorchDynamoPlugin, backend, mode, fullgraph, dynamic, options, disable,
                  use_regional_compilation)

/// With every field that has a default or a variable filled in, but nothing more is checked than
/// that the backend is one: a plug-in may name what this version does not have. Local.
TorchDynamoPlugin resolve(TorchDynamoPlugin plugin, const Environment& environment);

/// The backend of a resolved plug-in.
DynamoBackend backend_of(const TorchDynamoPlugin& plugin);

/// Whether models are compiled by a resolved plug-in.
bool compiles(const TorchDynamoPlugin& plugin);

/// That the fields of a resolved plug-in have a meaning together, if it compiles. Errors:
/// c10::ValueError for a mode that there is not, and for a mode beside options.
void check(const TorchDynamoPlugin& plugin);

/// All fields of a resolved plug-in by name, and those that differ from the defaults, which are the
/// arguments of torch.compile.
nlohmann::ordered_json to_dict(const TorchDynamoPlugin& plugin);
nlohmann::ordered_json to_kwargs(const TorchDynamoPlugin& plugin);

/// Its fields as a line for people.
std::string to_text(const TorchDynamoPlugin& plugin);

}  // namespace accelerate
