/// Any object's tensors and values as one file, and back.
///
/// An object with tensors becomes a safetensors file, with its other values as JSON text under the
/// metadata key "values"; an object without tensors becomes a JSON file. A file appears complete
/// and durable, or not at all, and then the file before stays.
///
/// Errors:  c10::ValueError naming a value that cannot be saved; CheckpointError, naming the file,
///          if it is damaged or of an unknown format, and if the disk fails.
/// Threads: any.
/// Mirrors: accelerate utils/other.py, save and load.
/// Differs: pickle is read, and never written.
#pragma once

#include <string>

#include <ATen/core/ivalue.h>

#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct SaveOptions {
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
};

/// Local, for one rank; missing folders are made. Of tied tensors only the first is saved, with a
/// warning.
void save(FileSystem& files, const StateDict& obj, const std::string& path,
          const SaveOptions& options = {});
void save(FileSystem& files, const NamedTensors& obj, const std::string& path,
          const SaveOptions& options = {});
/// A dict with names as keys, of tensors, numbers, texts, None, and lists, tuples and dicts of
/// them; see state_dict_of.
void save(FileSystem& files, const c10::IValue& obj, const std::string& path,
          const SaveOptions& options = {});

/// Reads a safetensors or JSON file, or a torch.save zip (see torch_file.h). Tensors are on the
/// CPU. Local.
StateDict load(FileSystem& files, const std::string& path);

/// A nested value as a StateDict: tensors have the names of the dicts' keys and the lists'
/// positions on the way to them, with dots between; in lists of the values null has their place,
/// in dicts nothing. Local.
StateDict state_dict_of(const c10::IValue& value);

}  // namespace accelerate
