#include "accelerate/big_model/checkpoint_files.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/weight_files.h"

namespace accelerate::internal {

OpenFile::OpenFile(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {
  if (is_torch_file(files_, path_)) return;
  safetensors_ = internal::value_or_throw(SafetensorsFile::open(files_, path_));
  const auto& metadata = safetensors_->header().metadata;
  if (!metadata) return;
  const auto format = metadata->find("format");
  static constexpr const char* kOthers[] = {"tf", "flax", "mlx"};
  const bool is_other =
      format != metadata->end() && std::ranges::count(kOthers, format->second) > 0;
  TORCH_CHECK_VALUE(!is_other, path_, ": it was saved by ", is_other ? format->second : "",
                    ", and only weights of PyTorch (\"format\": \"pt\") are loaded");
}

std::vector<StoredTensor> OpenFile::list() {
  std::vector<StoredTensor> tensors;
  if (safetensors_) {
    for (const SafetensorsEntry& entry : safetensors_->header().tensors) {
      StoredTensor tensor{.name = entry.name, .sizes = entry.shape};
      const absl::StatusOr<at::ScalarType> dtype = scalar_type_of(entry.dtype);
      if (dtype.ok()) {
        tensor.dtype = *dtype;
      } else {
        tensor.unreadable = std::string(dtype.status().message());
      }
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }
  for (const auto& [name, tensor] : pickled().tensors) {
    tensors.push_back({name, tensor.sizes().vec(), tensor.scalar_type()});
  }
  for (const TorchStateDict::Other& other : pickled().others) {
    tensors.push_back({.name = other.name, .unreadable = other.why, .is_tensor = other.is_tensor});
  }
  return tensors;
}

void OpenFile::read_into(const NamedTensors& destinations) {
  if (safetensors_) return check_ok(safetensors_->read_into(destinations));
  for (const auto& [name, destination] : destinations) destination.copy_(find(name));
}

absl::Status OpenFile::read_elements(const std::string& name, int64_t first,
                                     const at::Tensor& out) {
  if (safetensors_) return safetensors_->read_elements(name, first, out);
  out.copy_(find(name).reshape({-1}).narrow(0, first, out.numel()));
  return absl::OkStatus();
}

NamedTensors OpenFile::read_all() {
  check_all_readable();
  return safetensors_ ? internal::value_or_throw(safetensors_->read_all()) : pickled().tensors;
}

void OpenFile::check_all_readable() {
  for (const StoredTensor& each : list()) {
    if (!each.is_tensor || each.unreadable.empty()) continue;
    throw CheckpointError(absl::StrCat(path_, ": '", each.name, "': ", each.unreadable));
  }
}

const TorchStateDict& OpenFile::pickled() {
  if (!pickled_) pickled_ = read_torch_state_dict(files_, path_);
  return *pickled_;
}

const at::Tensor& OpenFile::find(const std::string& name) {
  for (const auto& [stored, tensor] : pickled().tensors) {
    if (stored == name) return tensor;
  }
  throw CheckpointError(absl::StrCat(path_, ": '", name, "' is gone; was the file replaced?"));
}

OpenFile& OpenCheckpoint::file_of(const StoredTensor& stored) {
  if (last != stored.file) {
    if (last) files[*last].close();
    last = stored.file;
  }
  return files[stored.file];
}

at::Tensor OpenCheckpoint::read(const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  TORCH_INTERNAL_ASSERT(found != tensors.end() && found->unreadable.empty());
  const at::Tensor values = at::empty(found->sizes, found->dtype);
  file_of(*found).read_into({{name, values}});
  return values;
}

OpenCheckpoint open_checkpoint(FileSystem& files, const std::string& checkpoint) {
  OpenCheckpoint opened;
  const absl::StatusOr<WeightFiles> found = find_weight_files(files, checkpoint);
  TORCH_CHECK_VALUE(!absl::IsNotFound(found.status()) && !absl::IsInvalidArgument(found.status()),
                    "cannot load a checkpoint: ", std::string(found.status().message()));
  check_ok(found.status());
  for (const WeightFile& file : found->files) {
    OpenFile& open = opened.files.emplace_back(files, file.path);
    // What an index lists.
    std::vector<std::string> names;
    for (StoredTensor& tensor : open.list()) {
      if (tensor.is_tensor) names.push_back(tensor.name);
      tensor.file = opened.files.size() - 1;
      opened.tensors.push_back(std::move(tensor));
    }
    if (found->has_index) check_ok(check_weight_file(file, names));
    // A single file is not read a second time.
    if (found->files.size() > 1) open.close();
  }
  return opened;
}

}  // namespace accelerate::internal
