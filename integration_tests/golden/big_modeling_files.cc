#include "integration_tests/golden/big_modeling_files.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/big_model/load_checkpoint_in_model.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/platform/host_files.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// ---- Folders.

std::string decoded(const std::string& base64) {
  std::string bytes;
  if (!absl::Base64Unescape(base64, &bytes)) throw CaseError("no base64");
  return bytes;
}

}  // namespace

json listing_of(FileSystem& files, const std::string& folder) {
  if (!internal::value_or_throw(exists(files, folder))) return nullptr;
  json listing = json::object();
  for (const std::string& name : internal::value_or_throw(files.list(folder))) {
    const std::string bytes = internal::value_or_throw(read_file(files, join_path(folder, name)));
    listing[name] =
        absl::EndsWith(name, ".json") ? json::parse(bytes) : json(absl::Base64Escape(bytes));
  }
  return listing;
}

void write_weights(FileSystem& files, const std::string& path, const json& file) {
  expect_fields(file, {"tensors", "metadata"});
  const NamedTensors tensors = tensors_of(field(file, "tensors"));
  if (!file.contains("metadata")) {
    c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
    for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
    const std::vector<char> bytes = torch::jit::pickle_save(dict);
    return internal::check_ok(write_file(files, path, std::string(bytes.begin(), bytes.end())));
  }
  std::optional<SafetensorsMetadata> metadata;
  if (!file["metadata"].is_null()) metadata = file["metadata"].get<SafetensorsMetadata>();
  internal::value_or_throw(write_safetensors(files, path, tensors, metadata));
}

void write_checkpoint(FileSystem& files, const std::string& folder, const json& contents) {
  internal::check_ok(files.make_directories(folder));
  for (const auto& [name, file] : contents.items()) {
    const std::string path = join_path(folder, name);
    if (file.is_string()) {
      internal::check_ok(write_file(files, path, file.get<std::string>()));
    } else {
      write_weights(files, path, file);
    }
  }
}

namespace {

// ---- Offloaded weights.

json run_offload_weight(const json& in) {
  expect_fields(in, {"kind", "tensor", "name", "index", "note"});
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  const std::string name = string_field(in, "name");
  const OffloadedTensor entry =
      offload_weight(files, tensor_of(field(in, "tensor")), name, folder.path());
  json out = {{"files", listing_of(files, folder.path())}, {"index", nullptr}};
  if (bool_field(in, "index")) {
    out["index"] = json::parse(internal::value_or_throw(offload_index_text({{name, entry}})));
  }
  out["loaded"] = described(load_offloaded_weight(files, folder.path(name + ".dat"), entry));
  return out;
}

json run_offload_state_dict(const json& in) {
  expect_fields(in, {"kind", "calls", "index_before", "note"});
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  const std::string index = folder.path("index.json");
  if (!field(in, "index_before").is_null()) {
    internal::check_ok(write_file(files, index, string_field(in, "index_before")));
  }
  for (const json& call : field(in, "calls")) {
    offload_state_dict(files, folder.path(), tensors_of(call));
  }
  const std::string text = internal::value_or_throw(read_file(files, index));
  json listing = listing_of(files, folder.path());
  listing.erase("index.json");
  return {{"index_text", text}, {"files", listing}};
}

json run_load_offloaded(const json& in) {
  expect_fields(in, {"kind", "file", "info", "note"});
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  internal::check_ok(write_file(files, folder.path("w.dat"), decoded(string_field(in, "file"))));
  const OffloadIndex index =
      internal::value_or_throw(parse_offload_index(json{{"w", field(in, "info")}}.dump()));
  return {{"tensor",
           described(load_offloaded_weight(files, folder.path("w.dat"), index.front().second))}};
}

// An index that a program makes, whose files may be anywhere.
OffloadIndex index_of(const json& entries, const std::string& folder) {
  OffloadIndex index;
  for (const auto& [name, entry] : entries.items()) {
    expect_fields(entry, {"safetensors_file", "weight_name", "dtype", "shape"});
    OffloadedTensor tensor{.dtype = entry.value("dtype", ""),
                           .safetensors_file = absl::StrReplaceAll(
                               entry.value("safetensors_file", ""), {{"<DIR>", folder}}),
                           .weight_name = entry.value("weight_name", "")};
    if (entry.contains("shape")) tensor.shape = ints_field(entry, "shape");
    index.emplace_back(name, std::move(tensor));
  }
  return index;
}

json run_weights_loader(const json& in) {
  expect_fields(in,
                {"kind", "state_dict", "folder", "index", "safetensors", "get", "prefix", "note"});
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  OffloadedWeightsLoaderOptions options;
  if (!field(in, "state_dict").is_null()) options.state_dict = tensors_of(in["state_dict"]);
  if (!field(in, "folder").is_null()) {
    options.save_folder = folder.path("offload");
    offload_state_dict(files, options.save_folder, tensors_of(in["folder"]));
  }
  if (!field(in, "index").is_null()) options.index = index_of(in["index"], folder.path());
  if (!field(in, "safetensors").is_null()) {
    write_weights(files, folder.path("w.safetensors"),
                  {{"tensors", in["safetensors"]}, {"metadata", {{"format", "pt"}}}});
  }
  std::shared_ptr<const WeightsMap> weights =
      std::make_shared<OffloadedWeightsLoader>(files, std::move(options));
  if (!field(in, "prefix").is_null()) {
    weights = std::make_shared<PrefixedDataset>(weights, string_field(in, "prefix"));
  }
  json got = json::object();
  for (const std::string name : field(in, "get")) {
    got[name] = part([&] { return described(weights->get(name)); });
  }
  return {{"keys", weights->keys()}, {"length", weights->size()}, {"get", std::move(got)}};
}

// ---- Checkpoints.

DeviceMap map_of(const json& map) { return internal::value_or_throw(DeviceMap::parse(map.dump())); }

json run_load_file(const json& in) {
  expect_fields(in, {"kind", "file", "name", "device_map", "note"});
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  const std::string path = folder.path(string_field(in, "name"));
  write_weights(files, path, field(in, "file"));
  json out = with_accelerators([&] {
    const json& map = field(in, "device_map");
    json tensors = json::object();
    for (const auto& [name, tensor] :
         load_state_dict(files, path, map.is_null() ? DeviceMap() : map_of(map))) {
      tensors[name] = described(tensor);
      tensors[name]["device"] = device_text(tensor);
    }
    return json{{"tensors", std::move(tensors)}};
  });
  out["log"] = json::array();
  return out;
}

LoadCheckpointInModelOptions options_of(const json& in) {
  LoadCheckpointInModelOptions options;
  for (const auto& [name, value] : field(in, "options").items()) {
    if (value.is_null()) continue;  // as if it were not given
    if (name == "device_map") {
      options.device_map = map_of(value);
    } else if (name == "dtype") {
      options.dtype = dtype_of(value);
    } else if (name == "keep_in_fp32_modules") {
      options.keep_in_fp32_modules = value.get<std::vector<std::string>>();
    } else if (name == "strict") {
      options.strict = value;
    } else if (name == "offload_state_dict") {
      options.offload_state_dict = value;
    } else if (name == "offload_buffers") {
      options.offload_buffers = value;
    } else if (name == "full_state_dict") {
      options.full_state_dict = value;
    } else {
      throw CaseError("unknown option " + name);
    }
  }
  return options;
}

json state_of(const torch::nn::Module& model) {
  json tensors = json::object();
  for (const auto& [name, tensor] : module_state_dict(model)) {
    json& state =
        tensors[name] = {{"dtype", name_of(tensor.scalar_type())}, {"device", device_text(tensor)}};
    if (!tensor.is_meta()) state["data"] = data_of(tensor);
  }
  return tensors;
}

json run_load_checkpoint(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "files", "checkpoint", "empty", "offload_folder",
                     "options", "note"});
  HostFiles files(/*parallelism=*/1);
  const TemporaryFolder folder;
  const std::string checkpoint = folder.path("ckpt");
  write_checkpoint(files, checkpoint, field(in, "files"));
  LoadCheckpointInModelOptions options = options_of(in);
  const std::string offload = folder.path("offload");
  if (bool_field(in, "offload_folder")) options.offload_folder = offload;
  const std::string named = string_field(in, "checkpoint");
  json out = with_accelerators([&] {
    std::shared_ptr<torch::nn::Module> model;
    if (bool_field(in, "empty")) {
      const EmptyInit empty = init_empty_weights();
      model = model_of(in, /*is_filled=*/false);
    } else {
      model = model_of(in);
    }
    const IncompatibleKeys keys = load_checkpoint_in_model(
        files, *model, named.empty() ? checkpoint : join_path(checkpoint, named), options);
    return json{{"tensors", state_of(*model)},
                {"shared", shared_of(*model)},
                {"log", keys.unexpected_keys}};
  });
  if (out.contains("error")) {
    out["tensors"] = nullptr;
    out["shared"] = json::array();
    out["log"] = json::array();
  }
  out["offload"] = listing_of(files, offload);
  return out;
}

}  // namespace

std::optional<json> run_big_modeling_files(const json& in) {
  static constexpr std::pair<const char*, json (*)(const json&)> kKinds[] = {
      {"offload_weight", &run_offload_weight}, {"offload_state_dict", &run_offload_state_dict},
      {"load_offloaded", &run_load_offloaded}, {"weights_loader", &run_weights_loader},
      {"load_file", &run_load_file},           {"load_checkpoint", &run_load_checkpoint},
  };
  const std::string kind = string_field(in, "kind");
  for (const auto& [known, run] : kKinds) {
    if (kind == known) return part([&] { return run(in); });
  }
  return std::nullopt;
}

}  // namespace accelerate::golden
