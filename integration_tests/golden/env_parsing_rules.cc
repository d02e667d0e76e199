#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <utility>

#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is(const json& in, const char* function) { return string_field(in, "fn") == function; }

json error(const char* message) { return {{"type", "RuntimeError"}, {"message", message}}; }

// ---- find_executable_batch_size

bool retries(const json& in) {
  return is(in, "find_executable_batch_size") && in.contains("raises") && in["raises"] == "oom";
}

std::string reduce_rule(const json& in) {
  return in.contains("reduce") && in["reduce"].is_string() ? in["reduce"].get<std::string>() : "";
}

bool may_pass_zero(const json& in) {
  return retries(in) && (reduce_rule(in).starts_with("minus:") ||
                         (in["start"].is_number() && in["start"].get<int64_t>() < 0));
}

int64_t reduced(const std::string& rule, int64_t batch_size) {
  if (rule.empty()) return static_cast<int64_t>(static_cast<double>(batch_size) * 0.9);
  if (rule == "halve") return batch_size / 2;
  const int64_t k = std::stoll(rule.substr(rule.find(':') + 1));
  return rule.starts_with("minus:") ? batch_size - k : k;
}

// The calls when the reduce function is asked and no batch size below one sample is tried.
void try_positive_batch_sizes(const json& in, json& out) {
  if (!out.contains("calls")) return;
  const auto fits = optional_int_field(in, "fits");
  int64_t batch_size = optional_int_field(in, "start").value_or(128);
  for (json& call : out["calls"]) {
    json tried = json::array();
    bool found = false;
    while (batch_size > 0 && !found) {
      tried.push_back(batch_size);
      found = fits && batch_size <= *fits;
      if (!found) batch_size = reduced(reduce_rule(in), batch_size);
    }
    call = {{"tried", std::move(tried)}};
    if (found) {
      call["value"] = batch_size;
    } else {
      call["error"] = error("No executable batch size found, reached zero.");
    }
  }
}

bool takes_any_number(const json& in) {
  return is(in, "find_executable_batch_size") && in.contains("note") &&
         string_field(in, "note").find("*args) called with (") != std::string::npos;
}

// The batch size and the numbers that the note says.
void pass_all_arguments(const json& in, json& out) {
  if (!out.contains("error")) return;
  json values = json::array({field(in, "start")});
  const std::string note = string_field(in, "note");
  const std::string arguments = note.substr(note.find("called with"));
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(arguments[i])) == 0) continue;
    size_t digits = 0;
    values.push_back(std::stoll(arguments.substr(i), &digits));
    i += digits - 1;
  }
  out = {{"value", std::move(values)}};
}

// ---- Calls that do not compile

bool has_a_number_for_a_choice(const json& in) {
  return is(in, "parse_choice_from_env") && in.at("args").at(1).is_number();
}

bool may_not_compile(const json& in) {
  if (has_a_number_for_a_choice(in)) return true;
  if (is(in, "find_executable_batch_size")) return in.contains("note");
  return is(in, "convert_file_size_to_int") && in.contains("args") && !in["args"].empty() &&
         in["args"][0].is_number_float();
}

void leave_it_to_the_compiler(const json& in, json& out) {
  if (out.contains("error") || has_a_number_for_a_choice(in)) out = {{"refused_by_compiler", true}};
}

// ---- should_reduce_batch_size

bool is_out_of_memory_by_type(const json& in) {
  return is(in, "should_reduce_batch_size") &&
         string_field(field(in, "exception"), "type").ends_with("OutOfMemoryError");
}

void reduce_it(const json& /*in*/, json& out) { out = {{"value", true}}; }

// ---- dtype_byte_size

double shared_byte(const json& in) {
  const std::string name = in.contains("args") ? in["args"].at(0).get<std::string>() : "";
  const std::string plain = name.substr(name.find('.') == std::string::npos ? 0 : 6);
  for (int bits = 1; bits < 8; ++bits) {
    if (plain == "uint" + std::to_string(bits)) return bits / 8.0;
  }
  if (plain == "quint4x2") return 0.5;
  if (plain == "quint2x4") return 0.25;
  return plain == "bits2x4" || plain == "bits4x2" ? 1 : 0;
}

bool shares_a_byte(const json& in) { return is(in, "dtype_byte_size") && shared_byte(in) > 0; }

void count_a_fraction(const json& in, json& out) { out = {{"value", shared_byte(in)}}; }

// ---- patch_environment

bool names_a_variable_twice(const json& in) {
  if (!is(in, "patch_environment")) return false;
  std::set<std::string> names;
  for (const auto& [key, value] : entries_in_order(field(in, "kwargs"))) {
    std::string name = key;
    std::transform(name.begin(), name.end(), name.begin(), ::toupper);
    if (!names.insert(name).second) return true;
  }
  return false;
}

void restore_all(const json& in, json& out) { out["after"] = field(in, "env"); }

// ---- convert_file_size_to_int

bool is_size(const json& in) { return is(in, "convert_file_size_to_int"); }

void refuse_beyond_64_bits(const json& /*in*/, json& out) {
  if (out.contains("value") && out["value"].is_number() && out["value"].get<double>() >= 0x1p63) {
    out = our_error({"ValueError"}, {"is not a size"});
  }
}

}  // namespace

std::vector<Decision> env_parsing_rules() {
  return {
      {"env_parsing", "batch sizes below zero",
       "HF Accelerate goes on with negative batch sizes where reducing skips zero; that is the end "
       "here",
       &may_pass_zero, &try_positive_batch_sizes},
      {"env_parsing", "functions with any number of parameters",
       "HF Accelerate counts *args as one parameter and takes a second argument for the batch "
       "size; here all are passed",
       &takes_any_number, &pass_all_arguments},
      {"env_parsing", "calls that do not compile",
       "HF Accelerate raises an error where a function is called with arguments that it does not "
       "take, or makes a text of a choice; here the compiler refuses the call",
       &may_not_compile, &leave_it_to_the_compiler},
      {"env_parsing", "out-of-memory errors with other texts",
       "HF Accelerate goes by an error's text alone; here an out-of-memory error is one by its "
       "type",
       &is_out_of_memory_by_type, &reduce_it},
      {"env_parsing", "elements that share a byte",
       "HF Accelerate reads a type's size from its name and finds none for those that share a "
       "byte; here they count a fraction",
       &shares_a_byte, &count_a_fraction},
      {"env_parsing", "a variable named twice",
       "HF Accelerate restores a variable that is given in both cases to the first of its new "
       "values; here it gets its old one",
       &names_a_variable_twice, &restore_all},
      {"env_parsing", "sizes beyond 64 bits",
       "HF Accelerate's sizes have no limit; here more than 2^63 - 1 bytes are an error", &is_size,
       &refuse_beyond_64_bits},
  };
}

}  // namespace accelerate::golden
