#include "accelerate/checkpoint/folder/load_checkpoint_in_model.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/checkpoint/formats/weight_files.h"
#include "accelerate/checkpoint/tensor_files/safetensors.h"
#include "accelerate/checkpoint/tensor_files/torch_file.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/operations.h"
#include "accelerate/tensors/portable.h"

namespace accelerate {
namespace {

using internal::StateDictMatch;

// An open file of a checkpoint.
struct OpenFile {
  std::string path;
  std::optional<SafetensorsFile> safetensors;
  NamedTensors pickled;
};

struct StoredTensor {
  std::string name;
  std::vector<int64_t> sizes;
  size_t file = 0;
};

struct OpenCheckpoint {
  std::vector<OpenFile> files;
  std::vector<StoredTensor> tensors;
};

std::vector<std::string> add_tensors(const OpenFile& file, size_t number,
                                     std::vector<StoredTensor>& tensors) {
  std::vector<std::string> names;
  if (file.safetensors) {
    for (const SafetensorsEntry& entry : file.safetensors->header().tensors) {
      names.push_back(entry.name);
      tensors.push_back({entry.name, entry.shape, number});
    }
  } else {
    for (const auto& [name, tensor] : file.pickled) {
      names.push_back(name);
      tensors.push_back({name, tensor.sizes().vec(), number});
    }
  }
  return names;
}

OpenFile open_file(FileSystem& files, const std::string& path) {
  OpenFile file{.path = path};
  if (is_torch_file(files, path)) {
    file.pickled = read_torch_state_dict(files, path);
  } else {
    file.safetensors = internal::value_or_throw(SafetensorsFile::open(files, path));
  }
  return file;
}

OpenCheckpoint open_checkpoint(FileSystem& files, const std::string& checkpoint) {
  OpenCheckpoint opened;
  const absl::StatusOr<WeightFiles> found = find_weight_files(files, checkpoint);
  TORCH_CHECK_VALUE(!absl::IsNotFound(found.status()) && !absl::IsInvalidArgument(found.status()),
                    "cannot load a checkpoint: ", std::string(found.status().message()));
  internal::check_ok(found.status());
  for (const WeightFile& file : found->files) {
    opened.files.push_back(open_file(files, file.path));
    const std::vector<std::string> names =
        add_tensors(opened.files.back(), opened.files.size() - 1, opened.tensors);
    if (found->has_index) internal::check_ok(check_weight_file(file, names));
  }
  return opened;
}

void read_tensor(const OpenFile& file, const std::string& name, const at::Tensor& destination) {
  if (file.safetensors) {
    internal::check_ok(file.safetensors->read_into({{name, destination}}));
    return;
  }
  for (const auto& [stored, tensor] : file.pickled) {
    if (stored == name) destination.copy_(tensor);
  }
}

void read_file_into(const OpenFile& file, const NamedTensors& destinations) {
  if (file.safetensors) {
    internal::check_ok(file.safetensors->read_into(destinations));
    return;
  }
  for (const auto& [name, destination] : destinations) read_tensor(file, name, destination);
}

// The destination of each stored tensor; undefined for one that the model does not have.
std::vector<at::Tensor> match(const torch::nn::Module& model,
                              const std::vector<StoredTensor>& tensors, bool strict,
                              IncompatibleKeys* keys = nullptr) {
  StateDictMatch match(model);
  std::vector<at::Tensor> destinations;
  for (const StoredTensor& tensor : tensors) {
    destinations.push_back(match.find(tensor.name, tensor.sizes));
  }
  IncompatibleKeys found = match.finish(strict);
  if (keys != nullptr) *keys = std::move(found);
  return destinations;
}

// Converts those of the module's own tensors that are `destinations` and floating.
void convert(torch::nn::Module& model, const std::vector<at::Tensor>& destinations,
             c10::ScalarType dtype) {
  std::set<const c10::StorageImpl*> storages;  // only looked up
  for (const at::Tensor& tensor : destinations) {
    if (tensor.defined()) storages.insert(tensor.storage().unsafeGetStorageImpl());
  }
  const auto convert_all = [&](auto named_tensors) {
    for (auto& item : named_tensors) {
      at::Tensor& tensor = item.value();
      if (!tensor.defined() || !tensor.is_floating_point()) continue;
      if (storages.count(tensor.storage().unsafeGetStorageImpl()) == 0) continue;
      if (tensor.scalar_type() != dtype) tensor.set_data(tensor.detach().to(dtype));
    }
  };
  convert_all(model.named_parameters());
  convert_all(model.named_buffers());
}

std::vector<at::Tensor> place(torch::nn::Module& model, const std::vector<StoredTensor>& tensors,
                              const LoadCheckpointInModelOptions& options, IncompatibleKeys& keys) {
  std::vector<at::Tensor> destinations = match(model, tensors, options.strict, &keys);
  if (!options.dtype) return destinations;
  convert(model, destinations, *options.dtype);
  return match(model, tensors, /*strict=*/false);
}

IncompatibleKeys load_alone(FileSystem& files, torch::nn::Module& model,
                            const std::string& checkpoint,
                            const LoadCheckpointInModelOptions& options) {
  const OpenCheckpoint opened = open_checkpoint(files, checkpoint);
  IncompatibleKeys keys;
  const std::vector<at::Tensor> destinations = place(model, opened.tensors, options, keys);
  std::vector<NamedTensors> by_file(opened.files.size());
  for (size_t i = 0; i < destinations.size(); ++i) {
    const StoredTensor& tensor = opened.tensors[i];
    if (destinations[i].defined()) by_file[tensor.file].emplace_back(tensor.name, destinations[i]);
  }
  for (size_t i = 0; i < by_file.size(); ++i) read_file_into(opened.files[i], by_file[i]);
  return keys;
}

// Names and sizes of the stored tensors, which rank 0 sends to the others.
using Listing = std::vector<std::pair<std::string, std::vector<int64_t>>>;

IncompatibleKeys load_from_rank0(FileSystem& files, torch::nn::Module& model,
                                 const std::string& checkpoint,
                                 const LoadCheckpointInModelOptions& options) {
  const ProcessGroupPtr& group = options.process_group;
  const bool reads = group->getRank() == 0;
  OpenCheckpoint opened;
  const std::string bytes = internal::agree_with_rank0(group, "", [&] {
    opened = open_checkpoint(files, checkpoint);
    Listing listing;
    for (const StoredTensor& tensor : opened.tensors) {
      listing.emplace_back(tensor.name, tensor.sizes);
    }
    return to_bytes(listing);
  });
  if (!reads) {
    for (auto& [name, sizes] : from_bytes<Listing>(bytes)) opened.tensors.push_back({name, sizes});
  }
  IncompatibleKeys keys;
  std::vector<at::Tensor> destinations;
  // Ranks whose models differ would broadcast different tensors.
  const auto placed =
      exchange_outcomes(group, "load_checkpoint_in_model", internal::outcome_of([&] {
                          destinations = place(model, opened.tensors, options, keys);
                          return "";
                        }));
  if (const std::string failed = failures(placed); !failed.empty()) throw CheckpointError(failed);
  // After an error the other ranks still wait for their tensors.
  internal::RankOutcome read;
  for (size_t i = 0; i < destinations.size(); ++i) {
    if (!destinations[i].defined()) continue;
    const StoredTensor& tensor = opened.tensors[i];
    if (reads && read.ok()) {
      read = internal::outcome_of([&] {
        read_tensor(opened.files[tensor.file], tensor.name, destinations[i]);
        return "";
      });
    }
    broadcast_tensor(group, destinations[i]);
  }
  internal::agree_with_rank0(group, "", [&] {
    if (read.error) std::rethrow_exception(read.error);
    return "";
  });
  return keys;
}

}  // namespace

IncompatibleKeys load_checkpoint_in_model(FileSystem& files, torch::nn::Module& model,
                                          const std::string& checkpoint,
                                          const LoadCheckpointInModelOptions& options) {
  TORCH_CHECK_VALUE(!options.dtype || c10::isFloatingType(*options.dtype),
                    "load_checkpoint_in_model: dtype=", *options.dtype,
                    " is not a floating-point dtype, and weights are converted to no other");
  torch::NoGradGuard no_grad;
  return options.broadcast_from_rank0 && options.process_group
             ? load_from_rank0(files, model, checkpoint, options)
             : load_alone(files, model, checkpoint, options);
}

NamedTensors load_state_dict(FileSystem& files, const std::string& checkpoint_file) {
  if (is_torch_file(files, checkpoint_file)) return read_torch_state_dict(files, checkpoint_file);
  return internal::value_or_throw(
      internal::value_or_throw(SafetensorsFile::open(files, checkpoint_file)).read_all());
}

}  // namespace accelerate
