#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "integration_tests/golden/device_map_model.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/quantization_by_hand.h"
#include "integration_tests/golden/quantization_config.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFamily[] = "quantization_config";

json arguments_of(const json& in) { return in.value("kwargs", json::object()); }

bool is_dtype(const json& value) { return value.is_object() && value.contains("$dtype"); }

bool is_list_or_null(const json& value) { return value.is_array() || value.is_null(); }

bool is_of_its_type(const std::string& name, const json& value) {
  if (name == "llm_int8_threshold") return is_number(value);
  if (name == "bnb_4bit_quant_type") return value.is_string();
  if (name == "bnb_4bit_compute_dtype") return value.is_string() || is_dtype(value);
  if (name == "torch_dtype") return value.is_string() || is_dtype(value) || value.is_null();
  if (name == "skip_modules" || name == "keep_in_fp32_modules") return is_list_or_null(value);
  return value.is_boolean();
}

bool has_a_value_of_another_type(const json& in) {
  const json arguments = arguments_of(in);
  for (const auto& [name, value] : arguments.items()) {
    if (!is_of_its_type(name, value)) return true;
  }
  return false;
}

void leave_it_to_the_compiler(const json& /*in*/, json& out) {
  out = {{"refused_by_compiler", true}};
}

bool is_one_of(const json& dtype, const std::vector<std::string>& names) {
  return std::ranges::find(names, dtype.at("$dtype").get<std::string>()) != names.end();
}

bool has_a_dtype_that_cannot_be_computed_in(const json& in) {
  const json arguments = arguments_of(in);
  const json compute = arguments.value("bnb_4bit_compute_dtype", json());
  const json rest = arguments.value("torch_dtype", json());
  if (is_dtype(compute) && !is_one_of(compute, {"float32", "float16", "bfloat16"})) return true;
  return is_dtype(rest) && !is_one_of(rest, {"float32", "float16", "bfloat16", "float64"});
}

void refuse_the_dtype(const json& /*in*/, json& out) {
  if (!out.contains("fields")) return;
  out = our_error({"ValueError"},
                  {"bnb_4bit_compute_dtype must be in", "torch_dtype must be a floating-point"});
  out["warnings"] = json::array();
}

// The options of a case, whatever it does with them.
json options_of(const json& in) {
  const json config = in.value("config", json());
  return config.is_object() ? config : arguments_of(in);
}

bool has_a_threshold_below_0(const json& in) {
  const json threshold = options_of(in).value("llm_int8_threshold", json());
  if (threshold.is_number()) return threshold.get<double>() < 0;
  return threshold == json{{"$float", "-inf"}} || threshold == json{{"$float", "nan"}};
}

void refuse_the_threshold(const json& in, json& out) {
  if (out.contains("error")) return;
  out = our_error({"ValueError"}, {"llm_int8_threshold must be at least 0"});
  out[string_field(in, "kind") == "config" ? "warnings" : "log"] = json::array();
}

// ---- Models.

bool is_kind(const json& in, const char* kind) { return string_field(in, "kind") == kind; }

bool is_loading(const json& in) { return is_kind(in, "quantize") || is_kind(in, "load"); }

bool says(const json& out, const char* text) {
  return out.contains("error") && absl::StrContains(out["error"].value("message", ""), text);
}

void quantize_without_bitsandbytes(const json& in, json& out) {
  if (says(out, "You have a version of `bitsandbytes`")) out = quantize_by_hand(in);
}

bool has_no_accelerator(const json& in) {
  if (is_kind(in, "device_map")) return !bool_field(in, "gpus");
  return is_loading(in) && !in.value("accelerator", false);
}

// What was recorded otherwise is promised as well.
void compute_on_the_cpu(const json& in, json& out) {
  const json& map = field(in, "device_map");
  const bool lacks_it = says(out, "No GPU found");
  const bool refuses_cpus = says(out, "Some modules are dispatched on the CPU or the disk");
  if (is_loading(in)) {
    // HF Accelerate quantises nothing in 4 bits that a map puts on the CPU.
    json with_one = in;
    with_one["accelerator"] = true;
    const bool leaves_cpus = is_kind(in, "load") && map.is_object() &&
                             out.value("replaced", json()) == quantized_layers(with_one) &&
                             quantized_layers(with_one) != quantized_layers(in);
    if (lacks_it || refuses_cpus || leaves_cpus) {
      out = quantize_by_hand(in);
    } else if (out.contains("log") && map.is_object() && !offloads(in, map, "disk")) {
      std::erase_if(out["log"].get_ref<json::array_t&>(),
                    [](const json& line) { return line == "offloads"; });
    }
  } else if (map.is_null()) {
    if (lacks_it) out = {{"device_map", {{"", "cpu"}}}, {"log", {"one device"}}};
  } else if (map.is_object() && !offloads(in, map, "disk")) {
    if (lacks_it || refuses_cpus || out.value("device_map", json()) == map) {
      out = {{"device_map", map}, {"log", json::array()}};
    }
  }
}

bool is_used_in_another_dtype(const json& in) {
  return is_loading(in) && field(in, "config").value("load_in_4bit", false) &&
         compute_dtype(in) != remaining_dtype(in);
}

void show_the_compute_dtype(const json& in, json& out) {
  if (!out.contains("dtypes")) return;
  for (const std::string& name : quantized_weights(in)) out["dtypes"][name] = compute_dtype(in);
}

bool infers_a_map(const json& in) {
  return is_kind(in, "device_map") && field(in, "device_map").is_string() &&
         field(in, "max_memory").is_array();
}

void place_buffers(const json& in, json& out) {
  static const std::set<std::string> kKinds = {"auto", "balanced", "balanced_low_0", "sequential"};
  if (!kKinds.contains(string_field(in, "device_map"))) return;
  const json recorded = infer_by_hand(in, /*first_fault=*/0);
  const bool is_same = out.contains("error") ? recorded.contains("error") : out == recorded;
  if (is_same) out = infer_by_hand(in, kNumMapFaults);
}

}  // namespace

std::vector<Decision> quantization_config_rules() {
  return {
      {kFamily, "values of another type",
       "HF Accelerate raises an error for most of them, and takes a truth value for a threshold; "
       "here the compiler refuses them",
       &has_a_value_of_another_type, &leave_it_to_the_compiler},
      {kFamily, "dtypes that nothing is computed in",
       "HF Accelerate takes any dtype and fails when a layer is computed; here a compute dtype is "
       "fp32, fp16 or bf16, and torch_dtype is floating point",
       &has_a_dtype_that_cannot_be_computed_in, &refuse_the_dtype},
      {kFamily, "a threshold below 0",
       "HF Accelerate takes any number, which absolute values are compared with; here it is 0 or "
       "more",
       &has_a_threshold_below_0, &refuse_the_threshold},
      {kFamily, "versions of bitsandbytes",
       "HF Accelerate refuses versions of bitsandbytes; here it is not used", &is_loading,
       &quantize_without_bitsandbytes},
      {kFamily, "ranks without an accelerator",
       "HF Accelerate wants an accelerator, and takes the CPU for a place where nothing is "
       "computed; here a rank may compute there",
       &has_no_accelerator, &compute_on_the_cpu},
      {kFamily, "dtypes of weights in 4 bits",
       "HF Accelerate has them in torch_dtype until they are quantised; here they show the dtype "
       "in "
       "which they are used",
       &is_used_in_another_dtype, &show_the_compute_dtype},
      {kFamily, "buffers of divided modules",
       "HF Accelerate leaves the direct buffers of divided modules out of inferred maps; ours "
       "places them, as in device_map",
       &infers_a_map, &place_buffers},
  };
}

}  // namespace accelerate::golden
