// Environment variables, small helpers, and retrying with smaller batches.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "accelerate/platform/environment.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/runtime/host.h"
#include "accelerate/state/memory.h"
#include "accelerate/step/executable_batch_size.h"
#include "accelerate/values/byte_sizes.h"
#include "accelerate/values/json_values.h"
#include "accelerate/values/versions.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/call_notes.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/local_socket.h"
#include "launch/estimate/architecture.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr int kDefaultPort = 29500;

const json& argument(const json& in, size_t i) {
  const json& arguments = field(in, "args");
  if (!arguments.is_array() || i >= arguments.size()) throw CaseError("args: too few");
  return arguments[i];
}

std::string text_argument(const json& in, size_t i) {
  const json& value = argument(in, i);
  if (!value.is_string()) throw CaseError("args: expected a text, the case has " + value.dump());
  return value.get<std::string>();
}

EnvironmentValue environment_value(const json& value) {
  if (value.is_null()) return nullptr;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_number()) return to_int(value, "value");
  if (value.is_string()) return value.get<std::string>();
  throw CaseError("no value of a variable: " + value.dump());
}

// Nothing else is set.
Environment environment_field(const json& in) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) environment.unset(name);
  for (const auto& [name, value] : field(in, "env").items()) {
    environment.set(name, value.get<std::string>());
  }
  return environment;
}

json value_of(json value) { return {{"value", std::move(value)}}; }

// ---- Parsing.

json run_str_to_bool(const json& in) {
  expect_fields(in, {"fn", "args", "to_bool"});
  const bool result = str_to_bool(text_argument(in, 0));
  if (in.contains("to_bool") && bool_field(in, "to_bool")) return value_of(result);
  return value_of(result ? 1 : 0);
}

json run_parse_flag(const json& in) {
  expect_fields(in, {"fn", "args", "env"});
  const Environment environment = environment_field(in);
  const json& default_value = argument(in, 1);
  if (!default_value.is_boolean()) throw CaseError("args: expected true or false");
  return value_of(
      parse_flag_from_env(text_argument(in, 0), default_value.get<bool>(), environment));
}

template <typename Default>
concept IsChoice = requires(Default value) { parse_choice_from_env("K", value); };

json run_parse_choice(const json& in) {
  expect_fields(in, {"fn", "args", "env"});
  static_assert(IsChoice<std::string> && !IsChoice<int64_t>);
  if (argument(in, 1).is_number_integer()) return refused_by_compiler();
  return value_of(
      parse_choice_from_env(text_argument(in, 0), text_argument(in, 1), environment_field(in)));
}

json run_get_int(const json& in) {
  expect_fields(in, {"fn", "args", "env"});
  const auto keys = argument(in, 0).get<std::vector<std::string>>();
  const Environment environment = environment_field(in);
  const json& default_value = argument(in, 1);
  if (!default_value.is_null()) {
    return value_of(get_int_from_env(keys, to_int(default_value, "args"), environment));
  }
  const std::optional<int64_t> value = get_int_from_env(keys, std::nullopt, environment);
  return value_of(value ? json(*value) : json());
}

// ---- Amounts of memory.

template <typename Number>
concept IsSize = requires(Number number) { convert_file_size_to_int(number); };

json run_convert_file_size(const json& in) {
  expect_fields(in, {"fn", "args"});
  const json& size = argument(in, 0);
  if (size.is_string()) return value_of(convert_file_size_to_int(size.get<std::string>()));
  if (size.is_boolean()) return value_of(convert_file_size_to_int(size.get<bool>()));
  if (size.is_number_integer()) return value_of(convert_file_size_to_int(to_int(size, "args")));
  if (!size.is_number_float()) throw CaseError("args: not a size: " + size.dump());
  static_assert(!IsSize<double> && IsSize<int64_t>);
  return refused_by_compiler();
}

json run_convert_bytes(const json& in) {
  expect_fields(in, {"fn", "args"});
  const json& size = argument(in, 0);
  if (size.is_number_float()) return value_of(convert_bytes(size.get<double>()));
  return value_of(convert_bytes(to_int(size, "args")));
}

json run_dtype_byte_size(const json& in) {
  expect_fields(in, {"fn", "args"});
  std::string name = text_argument(in, 0);
  for (const char* prefix : {"torch.", "CustomDtype."}) {
    if (name.starts_with(prefix)) name = name.substr(std::string(prefix).size());
  }
  if (name == "fp8" || name == "FP8") return value_of(dtype_byte_size(CustomDtype::kFp8));
  if (name == "int4" || name == "INT4") return value_of(dtype_byte_size(CustomDtype::kInt4));
  if (name == "int2" || name == "INT2") return value_of(dtype_byte_size(CustomDtype::kInt2));
  const auto& types = c10::getStringToDtypeMap();
  const auto type = types.find(name);
  if (type == types.end()) throw CaseError("no dtype " + name);
  return value_of(dtype_byte_size(type->second));
}

// ---- Scopes.

struct Raised {};

// Runs `inside` in the scope that `open` opens, and looks at the environment there and afterwards.
template <typename Open, typename Inside>
json run_scope(const json& in, Open&& open, Inside&& inside) {
  Environment environment = environment_field(in);
  json out;
  try {
    const auto scope = open(environment);
    out["inside"] = environment.variables();
    inside(environment);
    if (in.contains("raises") && bool_field(in, "raises")) throw Raised();
  } catch (const Raised&) {
    out["raised"] = true;
  }
  out["after"] = environment.variables();
  return out;
}

void act_inside(const json& in, const std::string& name, Environment& environment) {
  const json& action = field(in, "inside_action");
  if (action == "set") {
    environment.set(name, "changed inside");
  } else if (action == "del" || action == "delete" || action == "unset") {
    environment.unset(name);
  } else if (!action.is_null()) {
    throw CaseError("inside_action: unknown action " + action.dump());
  }
}

json run_patch_environment(const json& in) {
  expect_fields(in, {"fn", "env", "kwargs", "inside_action", "raises"});
  std::vector<std::pair<std::string, EnvironmentValue>> variables;
  for (const auto& [key, value] : entries_in_order(field(in, "kwargs"))) {
    variables.emplace_back(key, environment_value(value));
  }
  return run_scope(
      in, [&](Environment& environment) { return patch_environment(variables, environment); },
      [&](Environment& environment) {
        std::string name = variables.empty() ? "A" : variables.front().first;
        std::transform(name.begin(), name.end(), name.begin(), ::toupper);
        act_inside(in, name, environment);
      });
}

json run_clear_environment(const json& in) {
  expect_fields(in, {"fn", "env", "inside_action", "raises"});
  return run_scope(
      in, [](Environment& environment) { return clear_environment(environment); },
      [&](Environment& environment) { act_inside(in, "NEW", environment); });
}

// The variables that the case sets in it are always the same.
json run_purge_environment(const json& in) {
  expect_fields(in, {"fn", "env", "raises"});
  json inside;
  json out = run_scope(
      in, [](Environment& environment) { return purge_accelerate_environment(environment); },
      [&](Environment& environment) {
        environment.set("ACCELERATE_MIXED_PRECISION", "fp16");
        environment.set("ACCELERATE_NEW", "1");
        environment.set("OTHER", "kept");
        inside = environment.variables();
      });
  out["inside"] = inside;
  return out;
}

// ---- Memory.

struct PeerError {
  std::string type;
  std::vector<std::string> texts;
};

// As the C++ exception that stands for it in LibTorch. One stands for all that are not runtime
// errors or have more to say than one text.
[[noreturn]] void raise(const PeerError& error) {
  const std::string text = error.texts.empty() ? "" : error.texts[0];
  if (error.texts.size() <= 1) {
    TORCH_CHECK_WITH(OutOfMemoryError, !error.type.ends_with("OutOfMemoryError"), text);
    TORCH_CHECK(error.type != "RuntimeError", text);
    TORCH_CHECK_NOT_IMPLEMENTED(error.type != "NotImplementedError", text);
    TORCH_CHECK_VALUE(error.type != "ValueError", text);
  }
  TORCH_CHECK_TYPE(false, text);
}

// The errors that a case of retrying refers to by name.
PeerError named_error(const std::string& name) {
  static const std::string kCuda = "CUDA out of memory. Tried to allocate 2 GiB";
  static const std::pair<const char*, PeerError> kErrors[] = {
      {"oom", {"RuntimeError", {kCuda}}},
      {"prefixless", {"RuntimeError", {"out of memory."}}},
      {"oom_class", {"OutOfMemoryError", {kCuda}}},
      {"xpu", {"RuntimeError", {"XPU out of memory. Tried to allocate 2 GiB"}}},
      {"npu", {"RuntimeError", {"NPU out of memory. Tried to allocate 2 GiB"}}},
      {"mps", {"RuntimeError", {"MPS backend out of memory (MPS allocated: 1 GB)"}}},
      {"cudnn",
       {"RuntimeError", {"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear"}}},
      {"cudnn_nodot", {"RuntimeError", {"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"}}},
      {"cpu", {"RuntimeError", {"DefaultCPUAllocator: can't allocate memory: you tried"}}},
      {"hpu", {"RuntimeError", {"FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size"}}},
      {"no_period", {"RuntimeError", {"CUDA out of memory: x"}}},
      {"lower", {"RuntimeError", {"cuda OUT OF MEMORY."}}},
      {"noargs", {"RuntimeError", {}}},
      {"twoargs", {"RuntimeError", {kCuda, "and more"}}},
      {"two_args", {"RuntimeError", {kCuda, "more"}}},
      {"other", {"RuntimeError", {"shape mismatch"}}},
      {"value", {"ValueError", {kCuda}}},
      {"type", {"TypeError", {kCuda}}},
      {"memory", {"MemoryError", {kCuda}}},
      {"memoryerror", {"MemoryError", {kCuda}}},
  };
  for (const auto& [known, error] : kErrors) {
    if (name == known) return error;
  }
  throw CaseError("raises: unknown error \"" + name + "\"");
}

json run_should_reduce(const json& in) {
  expect_fields(in, {"fn", "exception"});
  const json& exception = field(in, "exception");
  PeerError error{.type = string_field(exception, "type")};
  for (const json& text : field(exception, "args")) {
    error.texts.push_back(text.is_string() ? text.get<std::string>() : text.dump());
  }
  try {
    raise(error);
  } catch (const std::exception& raised) {
    return value_of(should_reduce_batch_size(raised));
  }
}

// Python's text of an error with several texts.
std::string peer_text(const PeerError& error) {
  if (error.texts.size() == 1) return error.texts[0];
  std::string list;
  for (const std::string& text : error.texts) list += (list.empty() ? "'" : ", '") + text + "'";
  return list.empty() ? "" : "(" + list + ")";
}

json answer_to_raised(const PeerError& error) {
  try {
    raise(error);
  } catch (...) {
    return current_error().at("error");
  }
}

// The exception of a call. The error that the case's function raised must come through as it is,
// type and
// text; the case has it as Python calls it. \pre An exception is being handled.
json call_error(const PeerError& raised) {
  json error = current_error().at("error");
  if (error != answer_to_raised(raised)) return error;
  return {{"type", raised.type}, {"message", peer_text(raised)}};
}

// Empty for the built-in rule.
std::function<int64_t(int64_t)> reduce_field(const json& in) {
  if (!in.contains("reduce") || in["reduce"].is_null()) return {};
  const std::string rule = string_field(in, "reduce");
  if (rule == "halve") return [](int64_t batch_size) { return batch_size / 2; };
  const size_t colon = rule.find(':');
  if (colon == std::string::npos) throw CaseError("reduce: unknown rule " + rule);
  const int64_t k = std::stoll(rule.substr(colon + 1));
  if (rule.starts_with("minus:")) return [k](int64_t batch_size) { return batch_size - k; };
  if (rule.starts_with("const:")) return [k](int64_t) { return k; };
  throw CaseError("reduce: unknown rule " + rule);
}

json run_batch_sizes(const json& in) {
  expect_fields(in, {"fn", "start", "fits", "raises", "reduce", "form", "calls"});
  const std::optional<int64_t> fits = optional_int_field(in, "fits");
  const PeerError error = named_error(string_field(in, "raises"));
  std::vector<int64_t> tried;
  // The decorator's forms are one function here.
  auto function = find_executable_batch_size(
      [&](int64_t batch_size) {
        tried.push_back(batch_size);
        if (!fits || batch_size > *fits) raise(error);
        return batch_size;
      },
      {.starting_batch_size = optional_int_field(in, "start")
                                  .value_or(FindExecutableBatchSizeOptions().starting_batch_size),
       .reduce_batch_size_fn = reduce_field(in)});
  json calls = json::array();
  for (int64_t i = in.contains("calls") ? count_field(in, "calls") : 1; i > 0; --i) {
    tried.clear();
    json call;
    try {
      call["value"] = function();
    } catch (const c10::Error&) {
      call["error"] = call_error(error);
    }
    call["tried"] = tried;
    calls.push_back(std::move(call));
  }
  return {{"calls", std::move(calls)}};
}

json run_find_executable_batch_size(const json& in) {
  return ask_ranks(1, [&](int /*rank*/) {
    if (!in.contains("note")) return run_batch_sizes(in);
    expect_fields(in, {"fn", "note", "start"});
    return run_noted_call(string_field(in, "note"), int_field(in, "start"));
  })[0];
}

// ---- The rest.

json run_is_port_in_use(const json& in) {
  expect_fields(in, {"fn", "state"});
  const std::string state = string_field(in, "state");
  // Without an argument it asks for the port that HF Accelerate launches on.
  if (state == "argument null: only port 29500 listening") {
    const LocalSocket socket("listening", kDefaultPort);
    return value_of(is_port_in_use());
  }
  const LocalSocket socket(state);
  return value_of(is_port_in_use(socket.port()));
}

json run_merge_dicts(const json& in) {
  expect_fields(in, {"fn", "args"});
  return value_of(merge_dicts(argument(in, 0), argument(in, 1)));
}

json run_compare_versions(const json& in) {
  expect_fields(in, {"fn", "args"});
  return value_of(
      compare_versions(text_argument(in, 0), text_argument(in, 1), text_argument(in, 2)));
}

json run_is_torch_version(const json& in) {
  expect_fields(in, {"fn", "args"});
  return value_of(is_torch_version(text_argument(in, 0), text_argument(in, 1)));
}

json run_timm_prefix(const json& in) {
  expect_fields(in, {"fn", "args"});
  return value_of(launcher::estimate::add_timm_hub_prefix(text_argument(in, 0)));
}

json run_case(const json& in) {
  static constexpr std::pair<const char*, json (*)(const json&)> kFunctions[] = {
      {"str_to_bool", &run_str_to_bool},
      {"parse_flag_from_env", &run_parse_flag},
      {"parse_choice_from_env", &run_parse_choice},
      {"get_int_from_env", &run_get_int},
      {"convert_file_size_to_int", &run_convert_file_size},
      {"convert_bytes", &run_convert_bytes},
      {"dtype_byte_size", &run_dtype_byte_size},
      {"patch_environment", &run_patch_environment},
      {"clear_environment", &run_clear_environment},
      {"purge_accelerate_environment", &run_purge_environment},
      {"is_port_in_use", &run_is_port_in_use},
      {"should_reduce_batch_size", &run_should_reduce},
      {"find_executable_batch_size", &run_find_executable_batch_size},
      {"merge_dicts", &run_merge_dicts},
      {"compare_versions", &run_compare_versions},
      {"is_torch_version", &run_is_torch_version},
      {"add_timm_hub_prefix", &run_timm_prefix},
  };
  const std::string name = string_field(in, "fn");
  for (const auto& [known, run] : kFunctions) {
    if (name == known) return run(in);
  }
  throw CaseError("unknown function \"" + name + "\"");
}

const FamilyRegistration kRegistration("env_parsing", &run_case,
                                       [](const json& /*in*/) { return Tolerance(); }, {"kwargs"});

}  // namespace
}  // namespace accelerate::golden
