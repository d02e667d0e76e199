#include "accelerate/dispatch/weight_sources.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::internal {
namespace {

c10::DataPtr take_memory(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->set_data_ptr(
      c10::DataPtr(nullptr, tensor.device()));
}

std::vector<c10::DataPtr> take_memory(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::DataPtr> memory;
  memory.reserve(tensors.size());
  for (const at::Tensor& each : tensors) memory.push_back(take_memory(each));
  return memory;
}

// Copies to the device that are on their way.
class CopiesUnderWay {
 public:
  explicit CopiesUnderWay(const SourcePlace& place) : place_(place) {}

  // Errors: c10::OutOfMemoryError; nothing has begun then.
  void begin(const std::vector<at::Tensor>& from, const std::vector<at::ScalarType>& dtypes) {
    std::vector<at::Tensor> values;
    try {
      values = allocate(from, dtypes);
    } catch (const c10::OutOfMemoryError&) {
      place_.free_unused();
      values = allocate(from, dtypes);
    }
    {
      const SideStream::Scope side(*place_.copies);
      for (size_t i = 0; i < from.size(); ++i) {
        values[i].copy_(from[i], /*non_blocking=*/true);
      }
    }
    done_.emplace(*place_.copies);
    values_ = std::move(values);
  }

  std::vector<at::Tensor> end() {
    if (done_) done_->block_current_stream();
    done_.reset();
    return std::exchange(values_, {});
  }

  SideStream::Mark mark() const { return SideStream::Mark(*place_.copies); }

 private:
  // For the current stream, which also frees it; the side stream begins behind what that has been
  // given.
  std::vector<at::Tensor> allocate(const std::vector<at::Tensor>& from,
                                   const std::vector<at::ScalarType>& dtypes) const {
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < from.size(); ++i) {
      values.push_back(
          at::empty(from[i].sizes(), at::TensorOptions(place_.device).dtype(dtypes[i])));
      tag_memory(values.back(), MemoryKind::kGatheredParameter);
    }
    return values;
  }

  const SourcePlace place_;
  std::vector<at::Tensor> values_;
  std::optional<SideStream::Mark> done_;
};

class HostSource final : public ParameterSource {
 public:
  HostSource(std::vector<at::Tensor> homes, SourcePlace place)
      : homes_(std::move(homes)), make_room_(std::move(place.make_room)), copies_(place) {
    for (const at::Tensor& home : homes_) dtypes_.push_back(home.scalar_type());
  }

  void begin() override {
    versions_.clear();
    for (const at::Tensor& home : homes_) versions_.push_back(version(home));
    make_room_();
    try {
      copies_.begin(homes_, dtypes_);
      waits_for_room_ = false;
    } catch (const c10::OutOfMemoryError&) {
      waits_for_room_ = true;
    }
  }
  std::vector<c10::DataPtr> finish() override {
    // The group that was in use before is not any more.
    if (std::exchange(waits_for_room_, false)) copies_.begin(homes_, dtypes_);
    return take_memory(copies_.end());
  }
  void drop() override {
    waits_for_room_ = false;
    copies_.end();
  }
  bool is_current() const override {
    for (size_t i = 0; i < homes_.size(); ++i) {
      if (i >= versions_.size() || version(homes_[i]) != versions_[i]) return false;
    }
    return true;
  }

 private:
  static int64_t version(const at::Tensor& home) {
    return home.is_inference() ? 0 : home._version();
  }

  const std::vector<at::Tensor> homes_;  // what optimizers change
  const std::function<void()> make_room_;
  std::vector<at::ScalarType> dtypes_;
  std::vector<int64_t> versions_;
  CopiesUnderWay copies_;
  bool waits_for_room_ = false;
};

int64_t padded(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

using Hook = torch::autograd::PostAccumulateGradHook;

class GradientHook final : public Hook {
 public:
  // `first`: the parameter's own hook; may be null.
  GradientHook(std::string name, at::Tensor home, std::unique_ptr<Hook> first)
      : name_(std::move(name)), home_(std::move(home)), first_(std::move(first)) {}

  void operator()(const at::Tensor& parameter) override {
    if (first_ != nullptr) (*first_)(parameter);
    const at::NoGradGuard no_grad;
    const at::Tensor gradient = parameter.grad();
    parameter.mutable_grad() = at::Tensor();
    TORCH_CHECK_VALUE(home_.defined(), "the backward pass has made a gradient of parameter \"",
                      name_,
                      "\", whose values are in a file: a model is not trained there. Let it not "
                      "require gradients, put it on \"cpu\" in the device map, or train with "
                      "ZeRO's offload (accelerate/docs/deepspeed.md)");
    if (!gradient.defined()) return;
    at::Tensor& sum = home_.mutable_grad();
    if (sum.defined()) {
      sum.add_(gradient.to(at::kCPU));
    } else {
      sum = gradient.to(at::kCPU);
    }
  }

  std::unique_ptr<Hook> take_first() { return std::move(first_); }

 private:
  const std::string name_;
  const at::Tensor home_;
  std::unique_ptr<Hook> first_;
};

}  // namespace

StoredWeight::StoredWeight(FileSystem& files, const std::string& folder, std::string name,
                           const OffloadedTensor& entry, at::IntArrayRef sizes)
    : name_(std::move(name)) {
  if (entry.safetensors_file.empty()) {
    TORCH_CHECK_VALUE(!folder.empty(), "dispatch_model: \"", name_,
                      "\" is in a .dat file according to the index, and there is no offload_dir");
    *this = StoredWeight(OffloadedFile::make(files, folder, name_, entry), name_, sizes);
    return;
  }
  path_ = entry.safetensors_file;
  name_in_file_ = entry.weight_name.empty() ? name_ : entry.weight_name;
  safetensors_ = internal::value_or_throw(SafetensorsFile::open(files, path_));
  const auto& tensors = safetensors_->header().tensors;
  const auto found = std::ranges::find(tensors, name_in_file_, &SafetensorsEntry::name);
  if (found == tensors.end()) {
    throw CheckpointError(absl::StrCat(path_, ": it has no tensor '", name_in_file_, "'"));
  }
  dtype_ = internal::value_or_throw(scalar_type_of(found->dtype));
  check_sizes(found->shape, sizes);
}

StoredWeight::StoredWeight(std::shared_ptr<OffloadedFile> file, std::string name,
                           at::IntArrayRef sizes)
    : name_(std::move(name)), path_(file->path()), file_(std::move(file)) {
  dtype_ = scalar_type_of_offloaded(file_->entry().dtype);
  internal::check_ok(file_->check());
  check_sizes(file_->entry().shape, sizes);
}

std::optional<StoredWeight> StoredWeight::find(const at::Tensor& tensor, const std::string& name,
                                               const std::string& folder) {
  std::shared_ptr<OffloadedFile> file = find_offloaded_file(tensor);
  if (file == nullptr || !file->is_in(folder)) return std::nullopt;
  return StoredWeight(std::move(file), name, tensor.sizes());
}

void StoredWeight::check_becomes(at::ScalarType dtype) const {
  if (dtype_ == dtype) return;
  TORCH_CHECK_VALUE(at::isFloatingType(dtype_) && at::isFloatingType(dtype),
                    "dispatch_model: ", path_, " has \"", name_, "\" as ", dtype_,
                    ", and the model has it as ", dtype,
                    ": the folder was written for another model. Remove it, or name another "
                    "offload_dir");
}

void StoredWeight::check_sizes(at::IntArrayRef stored, at::IntArrayRef sizes) const {
  TORCH_CHECK_VALUE(sizes == stored, "cannot use the offloaded weight \"", name_,
                    "\": its shape is ", stored, " in ", path_, ", and ", sizes, " in the model");
}

void StoredWeight::read(const at::Tensor& into) const {
  if (into.numel() == 0) return;
  absl::Status status;
  if (safetensors_) {
    status = safetensors_->read_elements(name_in_file_, 0, into.view({-1}));
  } else {
    status = file_->read(absl::MakeSpan(static_cast<std::byte*>(into.data_ptr()), into.nbytes()));
  }
  if (status.ok()) return;
  throw CheckpointError(absl::Status(
      status.code(),
      absl::StrCat("cannot read the offloaded weight \"", name_, "\": ", status.message())));
}

at::Tensor StoredWeight::values(const at::Tensor& like) const {
  const at::Tensor values = fresh_tensor(like.sizes(), at::TensorOptions(dtype_));
  read(values);
  return values.to(like.scalar_type());
}

at::Tensor StoredWeight::map() const {
  return safetensors_ ? internal::value_or_throw(safetensors_->map(name_in_file_)) : file_->map();
}

std::unique_ptr<ParameterSource> make_host_source(std::vector<at::Tensor> homes,
                                                  SourcePlace place) {
  return std::make_unique<HostSource>(std::move(homes), std::move(place));
}

// One group's tensors that are being read, or were.
class FileReading::Read {
 public:
  Read(std::vector<at::Tensor> tensors, at::Tensor buffer)
      : tensors(std::move(tensors)), buffer(std::move(buffer)) {}

  void wait() {
    if (task != nullptr) std::exchange(task, nullptr)->wait();
  }

  const std::vector<at::Tensor> tensors;  // on the CPU, as in the files
  at::Tensor buffer;                      // undefined: they have memory of their own
  std::unique_ptr<BackgroundTask> task;
};

class FileSource final : public ParameterSource {
 public:
  FileSource(FileReading& reading, std::vector<StoredWeight> weights,
             std::vector<OffloadedTensorPlan> tensors)
      : weights(std::make_shared<std::vector<StoredWeight>>(std::move(weights))),
        tensors(std::move(tensors)),
        reading_(reading),
        copies_(reading.place_) {
    for (const OffloadedTensorPlan& each : this->tensors) dtypes_.push_back(each.dtype);
  }

  void begin() override {
    reading_.place_.make_room();
    read_ = reading_.start_read(*this);
    if (reading_.place_.device.is_cpu()) return;
    // So that the copy goes on while the group before it is used.
    try {
      copy();
    } catch (const c10::OutOfMemoryError&) {
      return;
    }
    reading_.read_ahead(next);
  }

  std::vector<c10::DataPtr> finish() override {
    if (!reading_.place_.device.is_cpu()) {
      // The group that was in use before is not any more.
      if (read_ != nullptr) {
        copy();
        reading_.read_ahead(next);
      }
      return take_memory(copies_.end());
    }
    const std::unique_ptr<FileReading::Read> read = std::move(read_);
    read->wait();
    std::vector<at::Tensor> values = read->tensors;
    for (size_t i = 0; i < values.size(); ++i) values[i] = values[i].to(dtypes_[i]);
    return take_memory(values);
  }

  void drop() override {
    copies_.end();
    if (read_ != nullptr) reading_.stop(std::move(read_));
  }

  int64_t bytes() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      bytes += padded(c10::multiply_integers(tensors[i].sizes) *
                      static_cast<int64_t>(c10::elementSize((*weights)[i].dtype())));
    }
    return bytes;
  }

  const std::shared_ptr<std::vector<StoredWeight>> weights;
  const std::vector<OffloadedTensorPlan> tensors;
  FileSource* next = nullptr;  // the source that was begun after this one

 private:
  // If the device has no room, the values wait where they were read.
  void copy() {
    try {
      read_->wait();
    } catch (...) {
      reading_.stop(std::move(read_));
      throw;
    }
    copies_.begin(read_->tensors, dtypes_);
    reading_.buffers_.push_back({read_->buffer, copies_.mark()});
    read_.reset();
  }

  FileReading& reading_;
  std::vector<at::ScalarType> dtypes_;
  CopiesUnderWay copies_;
  std::unique_ptr<FileReading::Read> read_;
};

FileReading::FileReading(Runtime& runtime, SourcePlace place)
    : runtime_(runtime), place_(std::move(place)) {}

FileReading::~FileReading() { stop_reading_ahead(); }

std::unique_ptr<ParameterSource> FileReading::make_source(
    std::vector<StoredWeight> weights, std::vector<OffloadedTensorPlan> tensors) {
  auto source = std::make_unique<FileSource>(*this, std::move(weights), std::move(tensors));
  buffer_bytes_ = std::max(buffer_bytes_, source->bytes());
  return source;
}

void FileReading::set_reads_ahead(bool reads_ahead) {
  reads_ahead_ = reads_ahead;
  pass_begins_ = true;
  if (!reads_ahead) stop_reading_ahead();
}

std::unique_ptr<FileReading::Read> FileReading::start_read(FileSource& source) {
  if (std::exchange(pass_begins_, false)) first_of_pass_ = &source;
  if (last_ != nullptr && last_ != &source) last_->next = &source;
  last_ = &source;
  if (coming_ == &source) {
    coming_ = nullptr;
    return std::move(coming_read_);
  }
  stop_reading_ahead();
  return start(source);
}

void FileReading::read_ahead(FileSource* next) {
  if (!reads_ahead_ || next == nullptr || coming_ != nullptr) return;
  coming_read_ = start(*next);
  coming_ = next;
}

void FileReading::stop_reading_ahead() {
  coming_ = nullptr;
  if (coming_read_ != nullptr) stop(std::move(coming_read_));
}

void FileReading::stop(std::unique_ptr<Read> read) {
  try {
    read->wait();
  } catch (const std::exception&) {
    // Whoever asks for the group reads it anew, and gets the error.
  }
  if (read->buffer.defined()) buffers_.push_back({read->buffer, std::nullopt});
}

// One buffer is read into while the device copies from the other.
at::Tensor FileReading::take_buffer() {
  constexpr int kBuffers = 2;
  if (num_buffers_ >= kBuffers && !buffers_.empty()) {
    Buffer buffer = std::move(buffers_.front());
    buffers_.erase(buffers_.begin());
    if (buffer.used_until) buffer.used_until->wait();
    return buffer.bytes;
  }
  ++num_buffers_;
  return at::empty({buffer_bytes_},
                   at::TensorOptions(at::kCPU).dtype(at::kByte).pinned_memory(true));
}

std::unique_ptr<FileReading::Read> FileReading::start(FileSource& source) {
  at::Tensor buffer;
  if (!place_.device.is_cpu()) buffer = take_buffer();
  std::vector<at::Tensor> tensors;
  int64_t begin = 0;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const at::IntArrayRef sizes = source.tensors[i].sizes;
    const at::ScalarType dtype = (*source.weights)[i].dtype();
    if (!buffer.defined()) {
      tensors.push_back(fresh_tensor(sizes, at::TensorOptions(dtype)));
      tag_memory(tensors.back(), MemoryKind::kGatheredParameter);
      continue;
    }
    const int64_t bytes =
        c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
    tensors.push_back(buffer.narrow(0, begin, bytes).view(dtype).view(sizes));
    begin += padded(bytes);
  }
  auto read = std::make_unique<Read>(std::move(tensors), std::move(buffer));
  read->task = runtime_.start_background(
      [weights = source.weights, tensors = read->tensors] {
        for (size_t i = 0; i < weights->size(); ++i) (*weights)[i].read(tensors[i]);
        return true;
      },
      BackgroundStart::kAtOnce);
  return read;
}

void set_gradient_home(const at::Tensor& parameter, std::string name, at::Tensor home) {
  auto first = std::move(torch::autograd::impl::post_acc_grad_hooks(parameter));
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter,
      std::make_unique<GradientHook>(std::move(name), std::move(home), std::move(first)));
}

void end_gradient_home(const at::Tensor& parameter) {
  auto hook = std::move(torch::autograd::impl::post_acc_grad_hooks(parameter));
  if (auto* own = dynamic_cast<GradientHook*>(hook.get())) hook = own->take_first();
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(hook));
}

}  // namespace accelerate::internal
