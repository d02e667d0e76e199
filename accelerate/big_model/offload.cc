#include "accelerate/big_model/offload.h"

#include <algorithm>
#include <set>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/status.h"
#include "accelerate/big_model/offloaded_file.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/state/logger.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

void check_offloadable(const at::Tensor& weight, const std::string& name) {
  const char* objection = !weight.defined()                 ? "it is undefined"
                          : weight.layout() != at::kStrided ? "it is not a dense tensor"
                          : weight.is_meta() ? "it is on the meta device and has no values"
                                             : nullptr;
  TORCH_CHECK_VALUE(objection == nullptr, "cannot offload \"", name, "\": ", objection);
  internal::offload_dtype(weight.scalar_type(), name);
  const absl::StatusOr<std::string> file = offload_file_name(name);
  TORCH_CHECK_VALUE(file.ok(), std::string(file.status().message()));
}

// Those of the index that the folder's has already.
absl::StatusOr<std::vector<std::string>> replaced_names(FileSystem& files,
                                                        const OffloadIndex& index,
                                                        const std::string& folder) {
  const absl::StatusOr<OffloadIndex> before = read_offload_index(files, folder);
  std::vector<std::string> names;
  if (absl::IsNotFound(before.status())) return names;
  if (!before.ok()) return before.status();
  std::set<std::string> there;
  for (const auto& [name, entry] : *before) there.insert(name);
  for (const auto& [name, entry] : index) {
    if (there.contains(name)) names.push_back(name);
  }
  return names;
}

void warn_of_replaced(std::vector<std::string> names, const std::string& folder) {
  if (names.empty()) return;
  constexpr size_t kShown = 5;
  const size_t count = names.size();
  names.resize(std::min(count, kShown));
  log_in_job("accelerate.big_model", LogLevel::kWarning,
             absl::StrCat(folder, " had offloaded weights of these names, which are ",
                          "replaced now: ", absl::StrJoin(names, ", "),
                          count > kShown ? absl::StrCat(", ... (", count, ")") : ""));
}

}  // namespace

OffloadedTensor offload_weight(FileSystem& files, const at::Tensor& weight,
                               const std::string& weight_name, const std::string& offload_folder) {
  check_offloadable(weight, weight_name);
  const at::NoGradGuard no_grad;
  internal::OffloadWriter writer(files, offload_folder);
  internal::check_ok(writer.write_tensor(weight_name, weight));
  internal::check_ok(writer.commit_files());
  OffloadedTensor entry = writer.index().front().second;
  entry.crc32c.reset();
  return entry;
}

at::Tensor load_offloaded_weight(FileSystem& files, const std::string& weight_file,
                                 const OffloadedTensor& weight_info) {
  return internal::OffloadedFile(files, weight_file, weight_info).map();
}

void offload_state_dict(FileSystem& files, const std::string& save_dir,
                        const NamedTensors& state_dict) {
  internal::offload_tensors(files, save_dir, state_dict);
}

void load_offloaded_weights(FileSystem& files, torch::nn::Module& model, const OffloadIndex& index,
                            const std::string& offload_folder) {
  const at::NoGradGuard no_grad;
  const OffloadedWeightsLoader weights(files, {.save_folder = offload_folder, .index = index});
  std::unordered_map<std::string, at::Tensor> tensors;
  for (const internal::ModuleSlot& slot : internal::module_slots(model)) {
    tensors.emplace(slot.name, slot.tensor);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> loaded;
  for (const auto& [name, entry] : index) {
    const auto found = tensors.find(name);
    TORCH_CHECK_VALUE(found != tensors.end(), "cannot load the offloaded weight \"", name,
                      "\": the model has no such tensor");
    const at::Tensor& tensor = found->second;
    const at::Tensor mapped = weights.get(name);
    TORCH_CHECK_VALUE(mapped.sizes() == tensor.sizes(), "cannot load the offloaded weight \"", name,
                      "\": its shape is ", mapped.sizes(), ", and ", tensor.sizes(),
                      " in the model");
    const at::Tensor memory = internal::fresh_tensor(
        tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
    memory.copy_(mapped);
    loaded.emplace_back(tensor, memory);
  }
  for (const auto& [tensor, memory] : loaded) internal::rebind(tensor, memory);
}

OffloadedWeightsLoader::OffloadedWeightsLoader(FileSystem& files,
                                               OffloadedWeightsLoaderOptions options)
    : files_(files), folder_(std::move(options.save_folder)), device_(options.device) {
  TORCH_CHECK_VALUE(!options.state_dict.empty() || !folder_.empty() || options.index,
                    "offloaded weights need a state_dict, a save_folder or an index");
  for (auto& [name, tensor] : options.state_dict) {
    TORCH_CHECK_VALUE(tensor.defined(), "the offloaded weight \"", name, "\" is undefined");
    if (in_memory_.emplace(name, tensor).second) keys_.push_back(name);
  }
  OffloadIndex index = options.index ? *std::move(options.index)
                       : folder_.empty()
                           ? OffloadIndex()
                           : internal::value_or_throw(read_offload_index(files_, folder_));
  for (auto& [name, tensor] : index) {
    if (tensor.safetensors_file.empty() && !folder_.empty()) {
      dat_files_.emplace(name, internal::OffloadedFile::make(files_, folder_, name, tensor));
    }
    if (in_files_.emplace(name, std::move(tensor)).second && !in_memory_.contains(name)) {
      keys_.push_back(name);
    }
  }
}

OffloadedWeightsLoader::~OffloadedWeightsLoader() = default;

at::Tensor OffloadedWeightsLoader::get(const std::string& key) const {
  if (const auto found = in_memory_.find(key); found != in_memory_.end()) return found->second;
  const auto found = in_files_.find(key);
  TORCH_CHECK_VALUE(found != in_files_.end(), "there is no offloaded weight \"", key, "\"");
  const OffloadedTensor& tensor = found->second;
  if (tensor.safetensors_file.empty()) {
    TORCH_CHECK_VALUE(!folder_.empty(), "the offloaded weight \"", key,
                      "\" is in a .dat file according to the index, and there is no save_folder");
    return dat_files_.at(key)->map();
  }
  const absl::MutexLock lock(&mutex_);
  auto open = open_.find(tensor.safetensors_file);
  if (open == open_.end()) {
    open = open_
               .emplace(tensor.safetensors_file, internal::value_or_throw(SafetensorsFile::open(
                                                     files_, tensor.safetensors_file)))
               .first;
  }
  at::Tensor value = internal::value_or_throw(
      open->second.map(tensor.weight_name.empty() ? key : tensor.weight_name));
  if (!tensor.dtype.empty()) value = value.to(internal::scalar_type_of_offloaded(tensor.dtype));
  return device_ ? value.to(*device_) : value;
}

bool OffloadedWeightsLoader::contains(const std::string& key) const {
  return in_memory_.contains(key) || in_files_.contains(key);
}

PrefixedDataset::PrefixedDataset(std::shared_ptr<const WeightsMap> dataset, std::string prefix)
    : dataset_(std::move(dataset)), prefix_(std::move(prefix)) {
  for (const std::string& key : dataset_->keys()) {
    if (absl::StartsWith(key, prefix_)) keys_.push_back(key);
  }
}

at::Tensor PrefixedDataset::get(const std::string& key) const {
  return dataset_->get(prefix_ + key);
}

bool PrefixedDataset::contains(const std::string& key) const {
  return dataset_->contains(prefix_ + key);
}

namespace internal {

OffloadIndex offload_tensors(FileSystem& files, const std::string& save_dir,
                             const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    check_offloadable(tensor, name);
    TORCH_CHECK_VALUE(names.insert(name).second, "cannot offload \"", name, "\": it comes twice");
  }
  OffloadWriter writer(files, save_dir);
  for (const auto& [name, tensor] : tensors) check_ok(writer.write_tensor(name, tensor));
  check_ok(writer.commit());
  return writer.index();
}

int64_t elements_at_once(at::ScalarType dtype) {
  constexpr int64_t kBytes = int64_t{4} << 20;
  return kBytes / static_cast<int64_t>(c10::elementSize(dtype));
}

OffloadWriter::OffloadWriter(FileSystem& files, std::string folder)
    : files_(files), folder_(std::move(folder)) {}

OffloadWriter::~OffloadWriter() {
  file_.reset();
  for (size_t i = committed_; i < temporary_.size(); ++i)
    files_.remove(temporary_[i]).IgnoreError();
}

absl::Status OffloadWriter::begin(const std::string& name, at::ScalarType dtype,
                                  at::IntArrayRef sizes) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::string file, offload_file_name(name));
  if (index_.empty()) {
    ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files_, folder_));
  }
  const std::string path = files_.temporary_name(join_path(folder_, file));
  ACCELERATE_ASSIGN_OR_RETURN(file_, files_.create(path));
  written_ = 0;
  temporary_.push_back(path);
  index_.emplace_back(name, OffloadedTensor{.dtype = offload_dtype(dtype, name),
                                            .shape = sizes.vec(),
                                            .crc32c = crc32c(absl::string_view())});
  return absl::OkStatus();
}

absl::Status OffloadWriter::write(const at::Tensor& elements) {
  if (elements.numel() == 0) return absl::OkStatus();
  const auto bytes = absl::MakeConstSpan(static_cast<const std::byte*>(elements.const_data_ptr()),
                                         elements.nbytes());
  ACCELERATE_RETURN_IF_ERROR(file_->write_at(written_, bytes));
  const auto size = static_cast<int64_t>(bytes.size());
  file_->begin_sync(written_, size);
  written_ += size;
  std::optional<uint32_t>& checksum = index_.back().second.crc32c;
  checksum = concat_crc32c(*checksum, crc32c(bytes), size);
  return absl::OkStatus();
}

absl::Status OffloadWriter::end() {
  constexpr std::byte kNothing[1] = {};
  absl::Status status = written_ > 0 ? absl::OkStatus() : file_->write_at(0, kNothing);
  status.Update(file_->sync());
  status.Update(file_->close());
  file_.reset();
  return status;
}

absl::Status OffloadWriter::commit_files() {
  std::vector<std::string> paths;
  for (const auto& [name, entry] : index_) {
    paths.push_back(join_path(folder_, *offload_file_name(name)));
  }
  ACCELERATE_RETURN_IF_ERROR(pin_offloaded_files(paths));
  for (; committed_ < temporary_.size(); ++committed_) {
    ACCELERATE_RETURN_IF_ERROR(files_.rename(temporary_[committed_], paths[committed_]));
  }
  return temporary_.empty() ? absl::OkStatus() : files_.sync_directory(folder_);
}

absl::Status OffloadWriter::write_tensor(const std::string& name, const at::Tensor& tensor) {
  absl::Status status = begin(name, tensor.scalar_type(), tensor.sizes());
  const at::Tensor flat = without_flags(tensor).contiguous().view({-1});
  const int64_t at_once = elements_at_once(tensor.scalar_type());
  for (int64_t first = 0; status.ok() && first < flat.numel(); first += at_once) {
    status = write(flat.narrow(0, first, std::min(at_once, flat.numel() - first)).cpu());
  }
  return status.ok() ? end() : status;
}

absl::Status OffloadWriter::commit() {
  if (index_.empty()) return absl::OkStatus();
  ACCELERATE_ASSIGN_OR_RETURN(const std::string text,
                              merged_offload_index(files_, index_, folder_));
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> replaced,
                              replaced_names(files_, index_, folder_));
  const std::string path = join_path(folder_, kOffloadIndexName);
  const std::string temporary = files_.temporary_name(path);
  absl::Status status = write_durably(files_, temporary, text);
  if (status.ok()) status = commit_files();
  if (status.ok()) status = files_.rename(temporary, path);
  if (!status.ok()) {
    files_.remove(temporary).IgnoreError();
    return status;
  }
  warn_of_replaced(replaced, folder_);
  return files_.sync_directory(folder_);
}

}  // namespace internal
}  // namespace accelerate
