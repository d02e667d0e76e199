// Files with weights: what save_model makes of a state dict, and safetensors good and bad.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/weight_files.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/platform/host_files.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/checkpoint_sharding_model.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// ---- save_model

at::Tensor fresh_tensor(const std::vector<int64_t>& shape, const std::string& dtype, int64_t t) {
  const at::Tensor mixed = at::arange(c10::multiply_integers(shape), at::kLong) * 7 + 13 * t;
  at::Tensor values;
  if (dtype == "bool") {
    values = mixed.remainder(2).eq(0);
  } else {
    values = mixed.remainder(23) - (absl::StartsWith(dtype, "uint") ? 0 : 11);
  }
  return values.view(shape).to(dtype_of(dtype)).contiguous();
}

NamedTensors state_dict_of(const json& in) {
  std::map<std::string, at::Tensor> tensors;
  NamedTensors state;
  for (const json& entry : field(in, "tensors")) {
    const std::string name = entry.at(0);
    const std::vector<int64_t> shape = entry.at(1);
    const json& alias = entry.at(3);
    at::Tensor tensor;
    if (alias.is_null()) {
      tensor = fresh_tensor(shape, entry.at(2), static_cast<int64_t>(state.size()));
    } else {
      expect_fields(alias, {"of", "offset"});
      tensor = tensors.at(alias.at("of"));
      if (alias.contains("offset")) {
        const at::Tensor own = at::empty(shape);
        tensor = tensor.as_strided(shape, own.strides(), int_field(alias, "offset"));
      }
    }
    tensors[name] = tensor;
    state.emplace_back(name, tensor);
  }
  return state;
}

json list_folder(FileSystem& files, const TemporaryFolder& folder) {
  json listed = json::object();
  for (const std::string& name : internal::value_or_throw(files.list(folder.path()))) {
    listed[name] =
        description_of(name, internal::value_or_throw(read_file(files, folder.path(name))));
  }
  return listed;
}

SaveModelOptions options_of(const json& in) {
  SaveModelOptions options{.safe_serialization = bool_field(in, "safe_serialization")};
  const json& size = field(in, "max_shard_size");
  static_assert(!std::is_assignable_v<decltype(options.max_shard_size)&, double>);
  if (size.is_number_float()) throw DoesNotCompile();
  if (size.is_string()) {
    options.max_shard_size = size.get<std::string>();
  } else {
    options.max_shard_size = to_int(size, "max_shard_size");
  }
  return options;
}

// Into a folder that is a file.
json run_save_model_to_a_file(const json& in) {
  expect_fields(in, {"kind", "note"});
  if (string_field(in, "note") != "save_directory is an existing regular file") {
    throw CaseError("note: unknown note " + in["note"].dump());
  }
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  const std::string path = folder.path("taken");
  internal::check_ok(write_file(files, path, "old"));
  json out = part([&]() -> json {
    save_model(files, {{"x", at::zeros({2})}}, path);
    return {{"returned", nullptr}};
  });
  const auto text = read_file(files, path);
  out["file_unchanged"] = text.ok() && *text == "old";
  return out;
}

json run_save_model(const json& in) {
  if (in.contains("note")) return run_save_model_to_a_file(in);
  expect_fields(in, {"kind", "tensors", "max_shard_size", "safe_serialization", "existing_files"});
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  if (in.contains("existing_files")) {
    for (const std::string name : in["existing_files"]) {
      internal::check_ok(write_file(files, folder.path(name), "old"));
    }
  }
  json out = json::object();
  try {
    save_model(files, state_dict_of(in), folder.path(), options_of(in));
  } catch (const c10::ValueError&) {
    out = current_error();
  }
  out["files"] = list_folder(files, folder);
  return out;
}

json run_size_parse(const json& in) {
  expect_fields(in, {"kind", "text"});
  const auto bytes = parse_shard_size(string_field(in, "text"));
  if (!bytes.ok()) return status_error(bytes.status());
  return {{"bytes", *bytes}};
}

// ---- safetensors

// Equal contents become one tensor under both names: such a case does not say which are shared.
NamedTensors tensors_of_bytes(const json& in) {
  NamedTensors tensors;
  std::map<std::string, at::Tensor> by_contents;
  for (const json& entry : field(in, "tensors")) {
    std::string bytes;
    if (!absl::HexStringToBytes(entry.at(3).get<std::string>(), &bytes)) {
      throw CaseError("bytes that are not hexadecimal");
    }
    const std::vector<int64_t> shape = entry.at(1);
    at::Tensor& tensor = by_contents[json{entry[1], entry[2], entry[3]}.dump()];
    if (!tensor.defined()) {
      tensor = at::empty(shape, dtype_of(entry.at(2)));
      if (tensor.nbytes() != bytes.size()) throw CaseError("bytes of another length");
      std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
    }
    tensors.emplace_back(entry.at(0), tensor);
  }
  return tensors;
}

json run_safetensors_file(const json& in) {
  expect_fields(in, {"kind", "metadata", "tensors"});
  std::optional<SafetensorsMetadata> metadata;
  if (!field(in, "metadata").is_null()) metadata = in["metadata"].get<SafetensorsMetadata>();
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  const std::string path = folder.path("x.safetensors");
  internal::value_or_throw(write_safetensors(files, path, tensors_of_bytes(in), metadata));
  return {{"base64", absl::Base64Escape(internal::value_or_throw(read_file(files, path)))}};
}

// As nested lists of numbers, or a number.
json values_of(const at::Tensor& tensor) {
  if (tensor.dim() > 0) {
    json rows = json::array();
    for (int64_t i = 0; i < tensor.size(0); ++i) rows.push_back(values_of(tensor[i]));
    return rows;
  }
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (tensor.is_floating_point()) return tensor.to(at::kDouble).item<double>();
  return tensor.to(at::kLong).item<int64_t>();
}

json run_safetensors_bad(const json& in) {
  expect_fields(in, {"kind", "base64"});
  std::string bytes;
  if (!absl::Base64Unescape(string_field(in, "base64"), &bytes)) throw CaseError("no base64");
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  const std::string path = folder.path("x.safetensors");
  internal::check_ok(write_file(files, path, bytes));
  const SafetensorsFile file = internal::value_or_throw(SafetensorsFile::open(files, path));
  json tensors = json::object();
  for (const auto& [name, tensor] : internal::value_or_throw(file.read_all())) {
    tensors[name] = {name_of(tensor.scalar_type()), tensor.sizes().vec(), values_of(tensor)};
  }
  json metadata;
  if (file.header().metadata) metadata = *file.header().metadata;
  return {{"ok", std::move(tensors)}, {"metadata", std::move(metadata)}};
}

json run_case(const json& in) {
  static constexpr std::pair<const char*, json (*)(const json&)> kKinds[] = {
      {"save_model", &run_save_model},
      {"size_parse", &run_size_parse},
      {"safetensors_file", &run_safetensors_file},
      {"safetensors_bad", &run_safetensors_bad},
  };
  const std::string kind = string_field(in, "kind");
  for (const auto& [known, run] : kKinds) {
    if (kind == known) return part([&] { return run(in); });
  }
  throw CaseError("unknown kind \"" + kind + "\"");
}

const FamilyRegistration kRegistration("checkpoint_sharding", &run_case);

}  // namespace
}  // namespace accelerate::golden
