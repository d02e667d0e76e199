#include "accelerate/big_model/load_checkpoint_in_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/big_model/load_plan.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/checkpoint/formats/weight_files.h"
#include "accelerate/checkpoint/tensor_files/safetensors.h"
#include "accelerate/checkpoint/tensor_files/torch_file.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/operations.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/progress_bar.h"
#include "accelerate/tensors/portable.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using internal::Destination;
using internal::LoadPlan;
using internal::OffloadWriter;
using internal::StoredTensor;

constexpr char kAction[] = "load_checkpoint_in_model";

// Tensors that are read at once, so that threads share them, and the bar moves in between.
constexpr int64_t kBatchBytes = int64_t{64} << 20;

// ---- The checkpoint's files.

// A file of a checkpoint. A pickled one is in memory from its first use until close().
class OpenFile {
 public:
  OpenFile(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {
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

  std::vector<StoredTensor> list() {
    std::vector<StoredTensor> tensors;
    if (safetensors_) {
      for (const SafetensorsEntry& entry : safetensors_->header().tensors) {
        tensors.push_back(
            {entry.name, entry.shape, internal::value_or_throw(scalar_type_of(entry.dtype))});
      }
      return tensors;
    }
    for (const auto& [name, tensor] : pickled()) {
      tensors.push_back({name, tensor.sizes().vec(), tensor.scalar_type()});
    }
    return tensors;
  }

  // Into tensors of the same sizes, of any device and dtype.
  void read_into(const NamedTensors& destinations) {
    if (safetensors_) return internal::check_ok(safetensors_->read_into(destinations));
    for (const auto& [name, destination] : destinations) destination.copy_(find(name));
  }

  // Elements from number `first` on, into a vector on the CPU of the tensor's dtype.
  absl::Status read_elements(const std::string& name, int64_t first, const at::Tensor& out) {
    if (safetensors_) return safetensors_->read_elements(name, first, out);
    out.copy_(find(name).reshape({-1}).narrow(0, first, out.numel()));
    return absl::OkStatus();
  }

  NamedTensors read_all() {
    return safetensors_ ? internal::value_or_throw(safetensors_->read_all()) : pickled();
  }

  void close() { pickled_.reset(); }

 private:
  const NamedTensors& pickled() {
    if (!pickled_) pickled_ = read_torch_state_dict(files_, path_);
    return *pickled_;
  }
  const at::Tensor& find(const std::string& name) {
    for (const auto& [stored, tensor] : pickled()) {
      if (stored == name) return tensor;
    }
    throw CheckpointError(absl::StrCat(path_, ": '", name, "' is gone; was the file replaced?"));
  }

  FileSystem& files_;
  const std::string path_;
  std::optional<SafetensorsFile> safetensors_;
  std::optional<NamedTensors> pickled_;
};

struct OpenCheckpoint {
  std::vector<OpenFile> files;
  std::vector<StoredTensor> tensors;
};

OpenCheckpoint open_checkpoint(FileSystem& files, const std::string& checkpoint) {
  OpenCheckpoint opened;
  const absl::StatusOr<WeightFiles> found = find_weight_files(files, checkpoint);
  TORCH_CHECK_VALUE(!absl::IsNotFound(found.status()) && !absl::IsInvalidArgument(found.status()),
                    "cannot load a checkpoint: ", std::string(found.status().message()));
  internal::check_ok(found.status());
  for (const WeightFile& file : found->files) {
    OpenFile& open = opened.files.emplace_back(files, file.path);
    std::vector<std::string> names;
    for (StoredTensor& tensor : open.list()) {
      names.push_back(tensor.name);
      tensor.file = opened.files.size() - 1;
      opened.tensors.push_back(std::move(tensor));
    }
    if (found->has_index) internal::check_ok(check_weight_file(file, names));
    // A single file is not read a second time.
    if (found->files.size() > 1) open.close();
  }
  return opened;
}

// ---- Reading.

constexpr char kNowhere = static_cast<char>(Destination::Kind::kNowhere);
constexpr char kAccelerator = static_cast<char>(Destination::Kind::kAccelerator);
constexpr char kDisk = static_cast<char>(Destination::Kind::kDisk);

// The bar of a load, where there is a Runtime to draw it.
class Progress {
 public:
  Progress(const std::string& checkpoint, const std::vector<StoredTensor>& tensors,
           const LoadPlan& plan) {
    Runtime* const runtime = Runtime::find_current();
    if (runtime == nullptr) return;
    int64_t total = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (plan.destinations[i].kind != Destination::Kind::kNowhere) total += tensors[i].bytes();
    }
    // The last name of the path, because a line is short.
    const size_t end = checkpoint.find_last_not_of('/') + 1;
    const size_t slash = end > 0 ? checkpoint.find_last_of('/', end - 1) : std::string::npos;
    const size_t begin = slash == std::string::npos ? 0 : slash + 1;
    bar_.emplace(*runtime,
                 ProgressBarOptions{
                     .total = total,
                     .description = absl::StrCat("Loading ", checkpoint.substr(begin, end - begin)),
                     .counts_bytes = true});
  }
  void advance(int64_t bytes) {
    if (bar_) bar_->advance(bytes);
  }

 private:
  std::optional<ProgressBar> bar_;
};

// Puts the elements of one tensor after another into its place, in order.
class Sink {
 public:
  Sink(const Destination& destination, const StoredTensor& stored, OffloadWriter& writer)
      : destination_(destination), writer_(writer) {
    if (destination_.kind == Destination::Kind::kDisk) {
      internal::check_ok(writer_.begin(destination_.name, destination_.dtype, stored.sizes));
      return;
    }
    const at::Tensor& memory = destination_.memory;
    flat_ = memory.is_contiguous() ? memory.detach().view({-1})
                                   : at::empty({memory.numel()}, memory.options());
  }

  void take(const at::Tensor& elements) {
    if (destination_.kind == Destination::Kind::kDisk) {
      return internal::check_ok(writer_.write(elements.cpu().to(destination_.dtype)));
    }
    flat_.narrow(0, taken_, elements.numel()).copy_(elements);
    taken_ += elements.numel();
  }

  void end() {
    if (destination_.kind == Destination::Kind::kDisk) return internal::check_ok(writer_.end());
    const at::Tensor& memory = destination_.memory;
    if (!memory.is_contiguous()) memory.detach().copy_(flat_.view(memory.sizes()));
  }

 private:
  const Destination& destination_;
  OffloadWriter& writer_;
  at::Tensor flat_;
  int64_t taken_ = 0;
};

void install(const LoadPlan& plan) {
  for (const auto& [tensor, memory] : plan.installs) internal::rebind(tensor, memory);
}

void warn_of_unexpected(const torch::nn::Module& model, const std::string& checkpoint,
                        const IncompatibleKeys& keys, const LoadCheckpointInModelOptions& options) {
  if (!options.device_map || keys.unexpected_keys.empty()) return;
  internal::warn_of_load(
      absl::StrCat("tensors of ", checkpoint, " are not in ", model.name(),
                   " and were not loaded: ", absl::StrJoin(keys.unexpected_keys, ", ")));
}

// Reads the tensors of one file that go to memory together, and the others in pieces.
class FileReader {
 public:
  FileReader(OpenFile& file, OffloadWriter& writer, Progress& progress)
      : file_(file), writer_(writer), progress_(progress) {}

  void read(const StoredTensor& stored, const Destination& destination) {
    if (destination.kind == Destination::Kind::kNowhere) return;
    if (destination.kind == Destination::Kind::kDisk) return copy_to_disk(stored, destination);
    batch_.emplace_back(stored.name, destination.memory);
    batch_bytes_ += stored.bytes();
    if (batch_bytes_ >= kBatchBytes) flush();
  }

  void flush() {
    if (!batch_.empty()) file_.read_into(batch_);
    progress_.advance(batch_bytes_);
    batch_.clear();
    batch_bytes_ = 0;
  }

 private:
  void copy_to_disk(const StoredTensor& stored, const Destination& destination) {
    Sink sink(destination, stored, writer_);
    const int64_t count = c10::multiply_integers(stored.sizes);
    const int64_t at_once = std::min(count, internal::elements_at_once(stored.dtype));
    const at::Tensor buffer = at::empty({at_once}, stored.dtype);
    for (int64_t first = 0; first < count; first += at_once) {
      const at::Tensor piece = buffer.narrow(0, 0, std::min(at_once, count - first));
      internal::check_ok(file_.read_elements(stored.name, first, piece));
      sink.take(piece);
      progress_.advance(static_cast<int64_t>(piece.nbytes()));
    }
    sink.end();
  }

  OpenFile& file_;
  OffloadWriter& writer_;
  Progress& progress_;
  NamedTensors batch_;
  int64_t batch_bytes_ = 0;
};

IncompatibleKeys load_alone(FileSystem& files, torch::nn::Module& model,
                            const std::string& checkpoint,
                            const LoadCheckpointInModelOptions& options) {
  OpenCheckpoint opened = open_checkpoint(files, checkpoint);
  const LoadPlan plan = internal::plan_load(model, opened.tensors, options);
  OffloadWriter writer(files, options.offload_folder);
  {
    Progress progress(checkpoint, opened.tensors, plan);
    // The tensors of a file follow each other.
    for (size_t i = 0; i < opened.tensors.size();) {
      OpenFile& file = opened.files[opened.tensors[i].file];
      FileReader reader(file, writer, progress);
      const size_t number = opened.tensors[i].file;
      for (; i < opened.tensors.size() && opened.tensors[i].file == number; ++i) {
        reader.read(opened.tensors[i], plan.destinations[i]);
      }
      reader.flush();
      file.close();
    }
  }
  internal::check_ok(writer.commit());
  install(plan);
  warn_of_unexpected(model, checkpoint, plan.keys, options);
  return plan.keys;
}

// ---- One rank reads for all.

// Names, sizes and dtypes of the stored tensors, which rank 0 sends to the others.
using Listing = std::vector<std::tuple<std::string, std::vector<int64_t>, at::ScalarType>>;

std::string listing_of(const std::vector<StoredTensor>& tensors) {
  Listing listing;
  for (const StoredTensor& tensor : tensors) {
    listing.emplace_back(tensor.name, tensor.sizes, tensor.dtype);
  }
  return to_bytes(listing);
}

// Ranks whose models differ would wait for different tensors.
void check_kinds(const std::vector<StoredTensor>& stored,
                 const std::vector<internal::RankOutcome>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < stored.size(); ++i) {
      const bool here = ranks[0].text.at(i) != kNowhere;
      if (here == (ranks[rank].text.at(i) != kNowhere)) continue;
      throw CheckpointError(absl::StrCat(kAction, ": the models differ: rank ", here ? 0 : rank,
                                         " loads '", stored[i].name, "', and rank ",
                                         here ? rank : 0, " does not"));
    }
  }
}

bool is_on_all(const std::vector<internal::RankOutcome>& ranks, size_t tensor, char kind) {
  return std::ranges::all_of(ranks, [&](const auto& rank) { return rank.text[tensor] == kind; });
}

// Hands tensors from rank 0 to all. After an error, the others still get theirs.
class Handover {
 public:
  Handover(const ProcessGroupPtr& group, OpenCheckpoint& opened, OffloadWriter& writer)
      : group_(group), reads_(group->getRank() == 0), opened_(opened), writer_(writer) {}

  // Straight from one destination to the others, which have its dtype.
  void whole(const StoredTensor& stored, const Destination& destination) {
    if (reads_) attempt([&] { file_of(stored).read_into({{stored.name, destination.memory}}); });
    broadcast_tensor(group_, destination.memory);
  }

  // In pieces of the checkpoint's dtype, on `carrier`.
  void in_pieces(const StoredTensor& stored, const Destination& destination, c10::Device carrier) {
    std::optional<Sink> sink;
    attempt([&] { sink.emplace(destination, stored, writer_); });
    const int64_t count = c10::multiply_integers(stored.sizes);
    const int64_t at_once = std::min(count, internal::elements_at_once(stored.dtype));
    const at::Tensor host = at::empty({at_once}, stored.dtype);
    const at::Tensor carried = carrier.is_cpu() ? host : at::empty_like(host, carrier);
    for (int64_t first = 0; first < count; first += at_once) {
      const int64_t size = std::min(at_once, count - first);
      const at::Tensor piece = carried.narrow(0, 0, size);
      if (reads_) {
        attempt([&] {
          const at::Tensor read = host.narrow(0, 0, size);
          internal::check_ok(file_of(stored).read_elements(stored.name, first, read));
          if (!piece.is_same(read)) piece.copy_(read);
        });
      }
      broadcast_tensor(group_, piece);
      attempt([&] { sink->take(piece); });
    }
    attempt([&] { sink->end(); });
  }

  // Runs `body` unless something failed before.
  template <typename Body>
  void attempt(const Body& body) {
    if (!outcome_.ok()) return;
    outcome_ = internal::outcome_of([&] {
      body();
      return "";
    });
  }

  // Throws on all ranks if one failed. Collective.
  void agree() const {
    internal::throw_failures(internal::exchange_outcomes(group_, kAction, outcome_), kAction,
                             outcome_);
  }

 private:
  OpenFile& file_of(const StoredTensor& stored) {
    // One pickled file at a time.
    if (last_ != stored.file) {
      if (last_) opened_.files[*last_].close();
      last_ = stored.file;
    }
    return opened_.files[stored.file];
  }

  const ProcessGroupPtr& group_;
  const bool reads_;
  OpenCheckpoint& opened_;
  OffloadWriter& writer_;
  std::optional<size_t> last_;
  internal::RankOutcome outcome_;
};

IncompatibleKeys load_from_rank0(FileSystem& files, torch::nn::Module& model,
                                 const std::string& checkpoint,
                                 const LoadCheckpointInModelOptions& options) {
  const ProcessGroupPtr& group = options.process_group;
  OpenCheckpoint opened;
  const std::string bytes = internal::agree_with_rank0(group, "", [&] {
    opened = open_checkpoint(files, checkpoint);
    return listing_of(opened.tensors);
  });
  if (group->getRank() != 0) {
    for (auto& [name, sizes, dtype] : from_bytes<Listing>(bytes)) {
      opened.tensors.push_back({name, sizes, dtype});
    }
  }
  LoadPlan plan;
  const internal::RankOutcome planned = internal::outcome_of([&] {
    plan = internal::plan_load(model, opened.tensors, options);
    return plan.kinds();
  });
  const auto ranks = internal::exchange_outcomes(group, kAction, planned);
  internal::throw_failures(ranks, kAction, planned);
  check_kinds(opened.tensors, ranks);

  OffloadWriter writer(files, options.offload_folder);
  Handover handover(group, opened, writer);
  bool has_files = false;
  {
    Progress progress(checkpoint, opened.tensors, plan);
    const Runtime* const runtime = Runtime::find_current();
    for (size_t i = 0; i < opened.tensors.size(); ++i) {
      const StoredTensor& stored = opened.tensors[i];
      const Destination& destination = plan.destinations[i];
      if (destination.kind == Destination::Kind::kNowhere) continue;
      for (const auto& rank : ranks) has_files |= rank.text[i] == kDisk;
      if (!options.device_map) {
        handover.whole(stored, destination);
      } else {
        // Host memory is where all can have it, and the device's network is faster.
        const bool on_devices = runtime != nullptr && is_on_all(ranks, i, kAccelerator);
        handover.in_pieces(stored, destination,
                           on_devices ? runtime->device() : c10::Device(c10::kCPU));
      }
      progress.advance(stored.bytes());
    }
  }
  handover.agree();
  if (has_files) {
    // Some ranks may have no room for the index.
    handover.attempt([&] { internal::check_ok(writer.commit()); });
    handover.agree();
  }
  install(plan);
  warn_of_unexpected(model, checkpoint, plan.keys, options);
  return plan.keys;
}

void check_options(const LoadCheckpointInModelOptions& options) {
  TORCH_CHECK_VALUE(!options.dtype || c10::isFloatingType(*options.dtype),
                    "load_checkpoint_in_model: dtype=", *options.dtype,
                    " is not a floating-point dtype, and weights are converted to no other");
  TORCH_CHECK_VALUE(!options.offload_8bit_bnb,
                    "load_checkpoint_in_model: offload_8bit_bnb is not in this version");
  TORCH_CHECK_VALUE(options.full_state_dict || !options.broadcast_from_rank0,
                    "load_checkpoint_in_model: broadcast_from_rank0 needs full_state_dict");
}

}  // namespace

IncompatibleKeys load_checkpoint_in_model(FileSystem& files, torch::nn::Module& model,
                                          const std::string& checkpoint,
                                          const LoadCheckpointInModelOptions& options) {
  check_options(options);
  const at::NoGradGuard no_grad;
  return options.broadcast_from_rank0 && options.process_group
             ? load_from_rank0(files, model, checkpoint, options)
             : load_alone(files, model, checkpoint, options);
}

NamedTensors load_state_dict(FileSystem& files, const std::string& checkpoint_file,
                             const DeviceMap& device_map) {
  const at::NoGradGuard no_grad;
  OpenFile file(files, checkpoint_file);
  if (device_map.empty()) return file.read_all();
  const std::vector<DevicePlacement> placements = device_map.placements();
  std::map<DevicePlacement, c10::Device> devices;
  for (const DevicePlacement& placement : placements) {
    devices.emplace(placement, internal::device_of(placement).value_or(c10::Device(c10::kCPU)));
  }
  NamedTensors tensors;
  for (const StoredTensor& stored : file.list()) {
    const DevicePlacement* const placement =
        placements.size() == 1 ? &placements[0] : device_map.find(stored.name);
    const c10::Device device =
        placement == nullptr ? c10::Device(c10::kCPU) : devices.at(*placement);
    tensors.emplace_back(
        stored.name,
        internal::fresh_tensor(stored.sizes, at::TensorOptions(stored.dtype).device(device)));
  }
  file.read_into(tensors);
  return tensors;
}

}  // namespace accelerate
