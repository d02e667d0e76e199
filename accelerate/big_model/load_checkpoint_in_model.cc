#include "accelerate/big_model/load_checkpoint_in_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/big_model/checkpoint_files.h"
#include "accelerate/big_model/load_plan.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/big_model/offloaded_file.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/operations.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/progress_bar.h"
#include "accelerate/tensors/portable.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using internal::Destination;
using internal::LoadedCheckpoint;
using internal::LoadPlan;
using internal::OffloadWriter;
using internal::OpenCheckpoint;
using internal::OpenFile;
using internal::StoredTensor;

constexpr char kAction[] = "load_checkpoint_in_model";

// Tensors that are read at once, so that threads share them, and the bar moves in between.
constexpr int64_t kBatchBytes = int64_t{64} << 20;

// ---- Reading.

bool is_read_now(const Destination& destination) {
  return destination.kind != Destination::Kind::kNowhere &&
         destination.kind != Destination::Kind::kLater;
}

// The bar of a load, where there is a Runtime to draw it.
class Progress {
 public:
  Progress(const std::string& checkpoint, const std::vector<StoredTensor>& tensors,
           const LoadPlan& plan) {
    Runtime* const runtime = Runtime::find_current();
    if (runtime == nullptr) return;
    int64_t total = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (is_read_now(plan.destinations[i])) total += tensors[i].bytes();
    }
    // The last name of the path, because a line is short.
    const std::string path = checkpoint.substr(0, checkpoint.find_last_not_of('/') + 1);
    bar_.emplace(*runtime,
                 ProgressBarOptions{.total = total,
                                    .description = absl::StrCat(
                                        "Loading ", path.substr(path.find_last_of('/') + 1)),
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
    memory_ = destination_.memory_to_fill();
    flat_ = memory_.is_contiguous() ? memory_.detach().view({-1})
                                    : at::empty({memory_.numel()}, memory_.options());
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
    if (!memory_.is_contiguous()) memory_.detach().copy_(flat_.view(memory_.sizes()));
    destination_.filled(memory_, writer_);
  }

 private:
  const Destination& destination_;
  OffloadWriter& writer_;
  at::Tensor memory_;
  at::Tensor flat_;
  int64_t taken_ = 0;
};

void install(const LoadPlan& plan) {
  for (const auto& [tensor, memory] : plan.installs) internal::rebind(tensor, memory);
  for (const Destination& each : plan.destinations) {
    if (each.conversion != nullptr) each.conversion->install();
  }
  // Quantised weights that came as they are kept.
  for (const at::Tensor& parameter : plan.made_parameters) update_device_from_kept(parameter);
}

// So that a model which is not dispatched yet keeps these values, whatever is offloaded meanwhile.
void remember_files(FileSystem& files, const std::string& folder, const OffloadIndex& written,
                    const torch::nn::Module& model) {
  if (written.empty()) return;
  const std::map<std::string, OffloadedTensor> entries(written.begin(), written.end());
  for (const internal::ModuleSlot& slot : internal::module_slots(model)) {
    const auto found = entries.find(slot.name);
    if (found == entries.end() || !slot.tensor.is_meta()) continue;
    internal::register_offloaded(
        slot.tensor, internal::OffloadedFile::make(files, folder, slot.name, found->second));
  }
}

// The end of a load, whose values are read.
LoadedCheckpoint finish(FileSystem& files, const torch::nn::Module& model,
                        const std::string& checkpoint, const LoadCheckpointInModelOptions& options,
                        LoadPlan& plan, const OffloadIndex& written) {
  install(plan);
  remember_files(files, options.offload_folder, written, model);
  const std::vector<std::string>& unexpected = plan.keys.unexpected_keys;
  if (options.device_map && !unexpected.empty()) {
    log_in_job("accelerate.big_model", LogLevel::kWarning,
               absl::StrCat("tensors of ", checkpoint, " are not in ", model.name(),
                            " and were not loaded: ", absl::StrJoin(unexpected, ", ")));
  }
  return {std::move(plan.keys), written};
}

// Reads the tensors of one file that go to memory together, and the others in pieces.
class FileReader {
 public:
  FileReader(OpenFile& file, OffloadWriter& writer, Progress& progress)
      : file_(file), writer_(writer), progress_(progress) {}

  void read(const StoredTensor& stored, const Destination& destination) {
    if (!is_read_now(destination)) return;
    if (destination.kind == Destination::Kind::kDisk) return copy_to_disk(stored, destination);
    batch_.emplace_back(stored.name, destination.memory_to_fill());
    destinations_.push_back(&destination);
    batch_bytes_ += stored.bytes();
    if (batch_bytes_ >= kBatchBytes) flush();
  }

  void flush() {
    if (!batch_.empty()) file_.read_into(batch_);
    for (size_t i = 0; i < batch_.size(); ++i) destinations_[i]->filled(batch_[i].second, writer_);
    progress_.advance(batch_bytes_);
    batch_.clear();
    destinations_.clear();
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
  std::vector<const Destination*> destinations_;  // of the batch
  int64_t batch_bytes_ = 0;
};

// Values of a model that is loaded when it gets memory.
class CheckpointValues final : public DeferredValues {
 public:
  CheckpointValues(std::shared_ptr<OpenCheckpoint> opened, size_t tensor, std::string checkpoint)
      : opened_(std::move(opened)), tensor_(tensor), checkpoint_(std::move(checkpoint)) {}

  void read(int64_t first, const at::Tensor& into) override {
    const StoredTensor& stored = opened_->tensors[tensor_];
    OpenFile& file = opened_->file_of(stored);
    const auto read_piece = [&](int64_t begin, const at::Tensor& piece) {
      const absl::Status read = file.read_elements(stored.name, begin, piece);
      if (read.ok()) return;
      internal::check_ok(absl::Status(
          read.code(), absl::StrCat("cannot read '", stored.name, "': ", read.message())));
    };
    if (into.is_cpu() && into.scalar_type() == stored.dtype) return read_piece(first, into);
    const int64_t at_once = std::min(into.numel(), internal::elements_at_once(stored.dtype));
    const at::Tensor buffer = at::empty({at_once}, stored.dtype);
    for (int64_t done = 0; done < into.numel(); done += at_once) {
      const int64_t count = std::min(at_once, into.numel() - done);
      const at::Tensor piece = buffer.narrow(0, 0, count);
      read_piece(first + done, piece);
      into.narrow(0, done, count).copy_(piece);
    }
  }

  std::string description() const override {
    const StoredTensor& stored = opened_->tensors[tensor_];
    return absl::StrCat(stored.name, " ", c10::toString(stored.dtype), " [",
                        absl::StrJoin(stored.sizes, ","), "]");
  }
  std::string place() const override { return checkpoint_; }

 private:
  const std::shared_ptr<OpenCheckpoint> opened_;
  const size_t tensor_;
  const std::string checkpoint_;
};

LoadedCheckpoint load_alone(FileSystem& files, torch::nn::Module& model,
                            const std::string& checkpoint,
                            const LoadCheckpointInModelOptions& options,
                            const internal::CheckpointListing& listed) {
  const auto opened = std::make_shared<OpenCheckpoint>();
  LoadPlan plan;
  OffloadWriter writer(files, options.offload_folder);
  const auto read = [&]() -> std::string {
    *opened = internal::open_checkpoint(files, checkpoint);
    if (listed) {
      listed(opened->tensors, [&](const std::string& name) { return opened->read(name); });
    }
    try {
      plan = internal::plan_load(model, opened->tensors, options);
    } catch (const CheckpointError& error) {
      throw CheckpointError(absl::StrCat(checkpoint, ": ", error.what_without_backtrace()));
    }
    Progress progress(checkpoint, opened->tensors, plan);
    // The tensors of a file follow each other.
    for (size_t i = 0; i < opened->tensors.size();) {
      OpenFile& file = opened->files[opened->tensors[i].file];
      FileReader reader(file, writer, progress);
      const size_t number = opened->tensors[i].file;
      for (; i < opened->tensors.size() && opened->tensors[i].file == number; ++i) {
        reader.read(opened->tensors[i], plan.destinations[i]);
      }
      reader.flush();
      file.close();
    }
    internal::check_ok(writer.commit());
    return "";
  };
  if (options.lazy) {
    internal::agree(options.process_group, kAction, read);
  } else {
    read();
  }
  LoadedCheckpoint loaded = finish(files, model, checkpoint, options, plan, writer.index());
  for (size_t i = 0; i < plan.destinations.size(); ++i) {
    const Destination& each = plan.destinations[i];
    if (each.kind != Destination::Kind::kLater) continue;
    defer(each.waiting, each.dtype, std::make_shared<CheckpointValues>(opened, i, checkpoint));
  }
  return loaded;
}

// ---- One rank reads for all.

// Names, sizes and dtypes of the stored tensors, and what keeps some from being loaded, which rank
// 0 sends to the others.
using Listing =
    std::vector<std::tuple<std::string, std::vector<int64_t>, at::ScalarType, std::string>>;

// What the ranks tell each other of their plans before the first tensor.
class Plans {
 public:
  // This rank's: for each tensor its kind, its dtype and whether it is made anew, perhaps in files;
  // at the end whether the rank's device has a buffer for what comes.
  static std::string text_of(const LoadPlan& plan, bool has_buffer) {
    std::string text;
    for (const Destination& each : plan.destinations) {
      text.push_back(static_cast<char>(each.kind));
      text.push_back(static_cast<char>('A' + static_cast<int>(each.dtype)));
      text.push_back(each.has_memory() ? '-' : each.writes_files() ? 'd' : '+');
    }
    text.push_back(has_buffer ? '+' : '-');
    return text;
  }

  explicit Plans(const std::vector<internal::RankOutcome>& ranks) {
    for (const internal::RankOutcome& rank : ranks) texts_.push_back(rank.text);
  }

  Destination::Kind kind(size_t rank, size_t tensor) const {
    return static_cast<Destination::Kind>(texts_[rank].at(3 * tensor));
  }

  // Ranks whose models differ would wait for different tensors.
  void check(const std::vector<StoredTensor>& stored, bool with_dtypes) const {
    for (size_t rank = 1; rank < texts_.size(); ++rank) {
      for (size_t i = 0; i < stored.size(); ++i) {
        const bool here = kind(0, i) != Destination::Kind::kNowhere;
        if (here != (kind(rank, i) != Destination::Kind::kNowhere)) {
          differ(here ? 0 : rank, absl::StrCat("loads '", stored[i].name, "'"), here ? rank : 0,
                 "does not");
        }
        if (with_dtypes && here && dtype(0, i) != dtype(rank, i)) {
          differ(0, absl::StrCat("has '", stored[i].name, "' as ", c10::toString(dtype(0, i))),
                 rank, absl::StrCat("as ", c10::toString(dtype(rank, i))));
        }
      }
    }
  }

  // Whether every rank has its memory already, and on the same kind of device.
  bool is_ready(size_t tensor) const {
    return std::ranges::all_of(texts_, [&](const std::string& text) {
      return text[3 * tensor + 2] == '-' && text[3 * tensor] == texts_[0][3 * tensor];
    });
  }

  // Whether it goes to an accelerator on every rank, and each has a buffer there.
  bool is_on_devices(size_t tensor) const {
    return std::ranges::all_of(texts_, [&](const std::string& text) {
      return text[3 * tensor] == static_cast<char>(Destination::Kind::kAccelerator) &&
             text.back() == '+';
    });
  }

  // The ranks that put the same tensors on the disk, in the order of their first ones; ranks that
  // put none there are in no group.
  std::vector<std::vector<size_t>> ranks_by_files() const {
    std::vector<std::vector<size_t>> groups;
    std::map<std::string, size_t> group_of;
    for (size_t rank = 0; rank < texts_.size(); ++rank) {
      std::string files;
      for (size_t i = 0; 3 * i + 1 < texts_[rank].size(); ++i) {
        const bool writes =
            kind(rank, i) == Destination::Kind::kDisk || texts_[rank][3 * i + 2] == 'd';
        files.push_back(writes ? 'd' : '-');
      }
      if (files.find('d') == files.npos) continue;
      const auto [group, is_new] = group_of.emplace(std::move(files), groups.size());
      if (is_new) groups.emplace_back();
      groups[group->second].push_back(rank);
    }
    return groups;
  }

 private:
  [[noreturn]] static void differ(size_t one, const std::string& what, size_t other,
                                  const std::string& instead) {
    throw CheckpointError(absl::StrCat(kAction, ": the models differ: rank ", one, " ", what,
                                       ", and rank ", other, " ", instead));
  }

  at::ScalarType dtype(size_t rank, size_t tensor) const {
    return static_cast<at::ScalarType>(texts_[rank].at(3 * tensor + 1) - 'A');
  }

  std::vector<std::string> texts_;
};

// Host memory through which pieces of tensors go, and memory of the rank's device where it has an
// accelerator with room.
class Buffers {
 public:
  // Where the device has no room, pieces go over the host.
  explicit Buffers(bool uses_device) : host_(make(c10::kCPU)) {
    const Runtime* const runtime = Runtime::find_current();
    if (!uses_device || runtime == nullptr || runtime->device().is_cpu()) return;
    try {
      device_ = make(runtime->device());
    } catch (const c10::OutOfMemoryError&) {
    }
  }

  bool has_device() const { return device_.defined(); }
  at::Tensor host(int64_t elements, at::ScalarType dtype) const {
    return part(host_, elements, dtype);
  }
  at::Tensor device(int64_t elements, at::ScalarType dtype) const {
    return part(device_, elements, dtype);
  }

 private:
  static at::Tensor make(c10::Device device) {
    return at::empty({internal::elements_at_once(at::kByte)},
                     at::TensorOptions(at::kByte).device(device));
  }
  static at::Tensor part(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype) {
    return buffer.narrow(0, 0, elements * static_cast<int64_t>(c10::elementSize(dtype)))
        .view(dtype);
  }

  at::Tensor host_, device_;
};

// Hands tensors from rank 0 to all. After an error, the others still get theirs.
class Handover {
 public:
  Handover(const ProcessGroupPtr& group, OpenCheckpoint& opened, OffloadWriter& writer)
      : group_(group), reads_(group->getRank() == 0), opened_(opened), writer_(writer) {}

  // Straight from one destination to the others, which have its dtype.
  void whole(const StoredTensor& stored, const Destination& destination) {
    if (reads_)
      attempt([&] { opened_.file_of(stored).read_into({{stored.name, destination.memory}}); });
    broadcast_tensor(group_, destination.memory);
  }

  // In pieces of the checkpoint's dtype, over the device's buffer or the host's.
  void in_pieces(const StoredTensor& stored, const Destination& destination, const Buffers& buffers,
                 bool on_device) {
    std::optional<Sink> sink;
    attempt([&] { sink.emplace(destination, stored, writer_); });
    const int64_t count = c10::multiply_integers(stored.sizes);
    const int64_t at_once = internal::elements_at_once(stored.dtype);
    for (int64_t first = 0; first < count; first += at_once) {
      const int64_t size = std::min(at_once, count - first);
      const at::Tensor host = buffers.host(size, stored.dtype);
      const at::Tensor piece = on_device ? buffers.device(size, stored.dtype) : host;
      if (reads_) {
        attempt([&] {
          internal::check_ok(opened_.file_of(stored).read_elements(stored.name, first, host));
          if (on_device) piece.copy_(host);
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
  const ProcessGroupPtr& group_;
  const bool reads_;
  OpenCheckpoint& opened_;
  OffloadWriter& writer_;
  internal::RankOutcome outcome_;
};

LoadedCheckpoint load_from_rank0(FileSystem& files, torch::nn::Module& model,
                                 const std::string& checkpoint,
                                 const LoadCheckpointInModelOptions& options) {
  const ProcessGroupPtr& group = options.process_group;
  OpenCheckpoint opened;
  const std::string bytes = internal::agree_with_rank0(group, "", [&] {
    opened = internal::open_checkpoint(files, checkpoint);
    Listing listing;
    for (const StoredTensor& tensor : opened.tensors) {
      listing.emplace_back(tensor.name, tensor.sizes, tensor.dtype, tensor.unreadable);
    }
    return to_bytes(listing);
  });
  if (group->getRank() != 0) {
    for (auto& [name, sizes, dtype, unreadable] : from_bytes<Listing>(bytes)) {
      opened.tensors.push_back(
          {.name = name, .sizes = sizes, .dtype = dtype, .unreadable = unreadable});
    }
  }
  LoadPlan plan;
  std::optional<Buffers> buffers;
  const Plans plans(internal::agree(group, kAction, [&] {
    plan = internal::plan_load(model, opened.tensors, options);
    buffers.emplace(std::ranges::any_of(plan.destinations, [](const Destination& each) {
      return each.kind == Destination::Kind::kAccelerator;
    }));
    return Plans::text_of(plan, buffers->has_device());
  }));
  plans.check(opened.tensors, /*with_dtypes=*/!options.device_map);

  OffloadWriter writer(files, options.offload_folder);
  Handover handover(group, opened, writer);
  {
    Progress progress(checkpoint, opened.tensors, plan);
    for (size_t i = 0; i < opened.tensors.size(); ++i) {
      const StoredTensor& stored = opened.tensors[i];
      const Destination& destination = plan.destinations[i];
      if (destination.kind == Destination::Kind::kNowhere) continue;
      if (!options.device_map && plans.is_ready(i)) {
        handover.whole(stored, destination);
      } else {
        // Host memory is where all can have it, and the device's network is faster.
        handover.in_pieces(stored, destination, *buffers, plans.is_on_devices(i));
      }
      progress.advance(stored.bytes());
    }
  }
  handover.agree();
  // Some ranks may have no room for the index. Ranks that share a folder would lose each other's
  // entries, unless they have the same.
  const auto own_rank = static_cast<size_t>(group->getRank());
  for (const std::vector<size_t>& turn : plans.ranks_by_files()) {
    if (std::ranges::count(turn, own_rank) > 0) {
      handover.attempt([&] { internal::check_ok(writer.commit()); });
    }
    handover.agree();
  }
  return finish(files, model, checkpoint, options, plan, writer.index());
}

void check_options(const LoadCheckpointInModelOptions& options) {
  TORCH_CHECK_VALUE(!options.dtype || c10::isFloatingType(*options.dtype),
                    "load_checkpoint_in_model: dtype=", *options.dtype,
                    " is not a floating-point dtype, and weights are converted to no other");
  TORCH_CHECK_VALUE(
      !options.lazy || (!options.device_map && !options.broadcast_from_rank0),
      "load_checkpoint_in_model: lazy tensors get their values in prepare or "
      "materialize, which have no device_map, and take rank 0's values where it alone "
      "has called this; leave device_map and broadcast_from_rank0 out");
  TORCH_CHECK_VALUE(options.full_state_dict || !options.broadcast_from_rank0,
                    "load_checkpoint_in_model: broadcast_from_rank0 needs full_state_dict");
}

}  // namespace

IncompatibleKeys load_checkpoint_in_model(FileSystem& files, torch::nn::Module& model,
                                          const std::string& checkpoint,
                                          const LoadCheckpointInModelOptions& options) {
  return internal::load_checkpoint(files, model, checkpoint, options).keys;
}

internal::LoadedCheckpoint internal::load_checkpoint(FileSystem& files, torch::nn::Module& model,
                                                     const std::string& checkpoint,
                                                     const LoadCheckpointInModelOptions& options,
                                                     const CheckpointListing& listed) {
  check_options(options);
  const at::NoGradGuard no_grad;
  return options.broadcast_from_rank0 && options.process_group
             ? load_from_rank0(files, model, checkpoint, options)
             : load_alone(files, model, checkpoint, options, listed);
}

NamedTensors load_state_dict(FileSystem& files, const std::string& checkpoint_file,
                             const DeviceMap& device_map) {
  const at::NoGradGuard no_grad;
  OpenFile file(files, checkpoint_file);
  file.check_all_readable();
  if (device_map.empty()) return file.read_all();
  const std::vector<DevicePlacement> placements = device_map.placements();
  std::map<DevicePlacement, c10::Device> devices;
  for (const DevicePlacement& placement : placements) {
    devices.emplace(placement, internal::device_of(placement).value_or(c10::Device(c10::kCPU)));
  }
  NamedTensors tensors;
  for (const StoredTensor& stored : file.list()) {
    if (!stored.unreadable.empty()) continue;
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
