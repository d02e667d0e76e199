/// The expected contents of files with weights, worked out from a case by the rules of the format
/// and of save_model, without the library, for cases where we differ from HF Accelerate.
///
/// Errors:  CaseError for what the family does not describe.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

struct StoredTensor {
  std::string name;
  /// As cases say it: "float32", ...
  std::string dtype;
  std::vector<int64_t> shape;
  /// In a save_model case: the tensor that owns the storage, and the first element in it.
  std::string owner;
  int64_t offset = 0;
  /// Row by row, little endian.
  std::string bytes;
};

/// The tensors of a case of kind save_model, with their values.
std::vector<StoredTensor> tensors_of_model(const nlohmann::json& in);

/// The tensors of a case of kind safetensors_file.
std::vector<StoredTensor> tensors_of_file(const nlohmann::json& in);

/// A safetensors file, to the byte. Metadata in the order of its keys.
std::string safetensors_bytes(std::vector<StoredTensor> tensors,
                              const std::optional<std::map<std::string, std::string>>& metadata);

/// A golden file's description of a file: all but the data of a safetensors file, the text of JSON,
/// the size of any other.
nlohmann::json description_of(const std::string& name, const std::string& bytes);

/// The whole folder after a save, as a golden file has it: only identical views count as one
/// tensor, safetensors always, and nothing of earlier saves. Null for a size that is an error.
nlohmann::json expected_folder(const nlohmann::json& in);

/// The format's name of a dtype.
std::string format_name(const std::string& dtype);

}  // namespace accelerate::golden
