#include "accelerate/tracking/run/trackers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <stdexcept>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/state/logger.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/tracking/tracker_queue.h"
#include "accelerate/values/dtypes.h"

namespace accelerate {
namespace {

// How long the end of training waits for a service that is slow or away.
constexpr absl::Duration kEndLimit = absl::Minutes(1);
// The same where training failed, so that the failure is reported soon. All trackers share it;
// calls that have begun get 2 s more.
constexpr absl::Duration kFailureLimit = absl::Seconds(5);

// Every tracker has this init_kwarg.
constexpr char kMainProcessOnly[] = "main_process_only";

Logger logger(Runtime& runtime) { return get_logger("accelerate.tracking", {}, runtime); }

// The approximate memory of a value.
size_t bytes_of(const TrackerValue& value);
size_t bytes_of(const TrackerDict& dict) {
  size_t bytes = 0;
  for (const auto& [name, value] : dict) bytes += name.size() + bytes_of(value);
  return bytes;
}
size_t bytes_of(const TrackerValue& value) {
  size_t bytes = sizeof(TrackerValue);
  if (const auto* text = value.get_if<std::string>()) bytes += text->size();
  if (const auto* tensor = value.get_if<TensorValue>()) bytes += tensor->values.size() * 8;
  if (const auto* dict = value.get_if<TrackerDict>()) bytes += bytes_of(*dict);
  if (const auto* list = value.get_if<TrackerList>()) {
    for (const TrackerValue& entry : *list) bytes += bytes_of(entry);
  }
  return bytes;
}

size_t bytes_of(const TrackerImages& images) {
  size_t bytes = 0;
  for (const auto& [name, several] : images) {
    for (const TrackerImage& image : several) bytes += image.pixels.size();
  }
  return bytes;
}

TrackerImages to_images(const ImageTensors& values, const std::string& dataformats) {
  TrackerImages images;
  images.reserve(values.size());
  for (const auto& [name, tensor] : values) {
    images.emplace_back(name, tracker_images(tensor, dataformats));
  }
  return images;
}

// The entry of `kwargs` for the tracker `name`.
TrackerDict kwargs_of(const TrackerDict& kwargs, const std::string& name, const char* what) {
  const TrackerValue* const found = find(kwargs, name);
  if (found == nullptr || found->is_none()) return {};
  const auto* const dict = found->get_if<TrackerDict>();
  TORCH_CHECK_VALUE(dict != nullptr, what, " for ", name, " must be a dictionary, not ",
                    type_name(*found));
  return *dict;
}

// Converts std::invalid_argument, which code without LibTorch throws, to c10::ValueError.
template <typename Function>
auto with_value_errors(Function&& function) {
  try {
    return function();
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

TrackerRegistry& registry(Runtime& runtime) {
  return runtime.shared<TrackerRegistry>([] {
    auto registry = std::make_shared<TrackerRegistry>(TrackerRegistry::linked());
    registry->sort_by_name();
    return registry;
  });
}

TrackerServices services_of(Runtime& runtime, const Environment& environment,
                            std::function<void(std::string_view)> warn,
                            std::function<void(std::string_view)> info) {
  return TrackerServices{.files = runtime.files(),
                         .environment = environment,
                         .rank = runtime.topology().rank,
                         .world_size = runtime.topology().world_size,
                         .is_real = runtime.sees_machine(),
                         .now = [&runtime] { return runtime.now(); },
                         .warn = std::move(warn),
                         .info = std::move(info)};
}

// Its elements on the CPU, one after the other.
at::Tensor on_cpu(const at::Tensor& tensor, c10::ScalarType type) {
  return internal::without_flags(tensor.detach().to(c10::kCPU, type)).contiguous();
}

}  // namespace

TrackerValue TrackerValueOf<at::Tensor>::make(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "a tracker cannot keep an undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided && !tensor.is_complex(),
                    "a tracker keeps dense tensors of real numbers, not ", tensor.toString());
  const at::Tensor numbers = on_cpu(tensor, c10::kDouble);
  const double* const data = numbers.const_data_ptr<double>();
  return TensorValue{.sizes = tensor.sizes().vec(),
                     .dtype = dtype_name(tensor.scalar_type()),
                     .values = std::vector<double>(data, data + numbers.numel())};
}

TrackerValue TrackerValueOf<c10::Scalar>::make(const c10::Scalar& scalar) {
  if (scalar.isBoolean()) return scalar.toBool();
  if (scalar.isIntegral(/*includeBool=*/false)) return scalar.toLong();
  TORCH_CHECK_VALUE(scalar.isFloatingPoint(), "a tracker keeps real numbers, not complex ones");
  return scalar.toDouble();
}

std::vector<TrackerImage> tracker_images(const at::Tensor& tensor, std::string_view dataformats) {
  TORCH_CHECK_VALUE(tensor.defined(), "log_images: a tensor is undefined");
  const auto refuse = [&](const char* reason) {
    TORCH_CHECK_VALUE(false, "log_images: a tensor of sizes ", tensor.sizes(),
                      " is not of the format \"", std::string(dataformats), "\": ", reason);
  };
  std::string letters(dataformats);
  std::sort(letters.begin(), letters.end());
  if (letters != "CHW" && letters != "CHNW" && letters != "HW" && letters != "HNW") {
    refuse("it must have an H and a W, and may have a C and an N, once each");
  }
  if (tensor.dim() != static_cast<int64_t>(dataformats.size())) refuse("dimensions differ");

  at::Tensor images = tensor.detach();
  std::string format(dataformats);
  for (const char missing : {'C', 'N'}) {
    if (format.find(missing) != format.npos) continue;
    images = images.unsqueeze(0);
    format.insert(format.begin(), missing);
  }
  const auto dimension = [&](char letter) { return static_cast<int64_t>(format.find(letter)); };
  images = images.permute({dimension('N'), dimension('H'), dimension('W'), dimension('C')});
  if (images.size(3) < 1 || images.size(3) > 4) refuse("there are 1 to 4 channels");
  if (images.size(1) == 0 || images.size(2) == 0) refuse("it has no pixels");
  if (images.is_floating_point()) {
    images = images.to(c10::kCPU, c10::kFloat).nan_to_num(0).clamp(0, 1).mul(255).round();
  } else if (images.scalar_type() == c10::kBool) {
    images = images.to(c10::kCPU, c10::kByte).mul(255);
  } else if (images.scalar_type() != c10::kByte) {
    refuse("pixels are bytes, or floats from 0 to 1");
  }
  images = on_cpu(images, c10::kByte);

  std::vector<TrackerImage> result;
  const uint8_t* data = images.const_data_ptr<uint8_t>();
  const int64_t bytes = images.size(1) * images.size(2) * images.size(3);
  for (int64_t i = 0; i < images.size(0); ++i, data += bytes) {
    result.push_back({.height = images.size(1),
                      .width = images.size(2),
                      .channels = images.size(3),
                      .pixels = std::vector<uint8_t>(data, data + bytes)});
  }
  return result;
}

// Messages that trackers put there on their threads, until the rank's thread reads them.
struct internal::TrackerMailbox {
  void put(LogLevel level, std::string_view text) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::kWarning && !is_new(text)) return;
    letters.emplace_back(level, std::string(text));
    full.store(true, std::memory_order_release);
  }

  void begin_run() {
    const std::lock_guard lock(mutex);
    said.clear();
  }

  // Warnings go to the log of each rank that has a tracker, other messages to the console.
  void read(Runtime& runtime) {
    if (!full.exchange(false, std::memory_order_acquire)) return;
    std::vector<std::pair<LogLevel, std::string>> all;
    {
      const std::lock_guard lock(mutex);
      all.swap(letters);
    }
    for (const auto& [level, text] : all) {
      if (level == LogLevel::kWarning) {
        logger(runtime).warning(text, {.main_process_only = false});
      } else {
        runtime.write_console(ConsoleStream::kErr, text + "\n");
      }
    }
  }

  // Bounded, since a tracker may have a new warning for each value.
  bool is_new(std::string_view text) { return said.size() < kMaxSaid && said.emplace(text).second; }

  static constexpr size_t kMaxSaid = 1000;

  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> letters;
  std::set<std::string, std::less<>> said;
  std::atomic<bool> full = false;
};

struct Trackers::World {
  World(Runtime& runtime, const std::shared_ptr<internal::TrackerMailbox>& mailbox)
      : environment(runtime.environment()),
        services(services_of(
            runtime, environment,
            [mailbox](std::string_view text) { mailbox->put(LogLevel::kWarning, text); },
            [mailbox](std::string_view text) { mailbox->put(LogLevel::kInfo, text); })) {}

  const Environment environment;  // as it was: trackers read it on their own threads
  const TrackerServices services;
};

TrackerHandle::TrackerHandle(std::string name, std::shared_ptr<TrackerQueue> queue,
                             std::shared_ptr<internal::TrackerMailbox> mailbox, Runtime& runtime)
    : name_(std::move(name)),
      queue_(std::move(queue)),
      mailbox_(std::move(mailbox)),
      runtime_(&runtime) {}

void TrackerHandle::store_init_configuration(const TrackerDict& values) const {
  if (!queue_) return;
  queue_->push([values](GeneralTracker& tracker) { tracker.store_init_configuration(values); },
               bytes_of(values));
  mailbox_->read(*runtime_);
}

void TrackerHandle::log(const TrackerDict& values, std::optional<int64_t> step,
                        const TrackerDict& kwargs) const {
  if (!queue_) return;
  queue_->push([values, when = TrackerStep{step, runtime_->now(), kwargs}](
                   GeneralTracker& tracker) { tracker.log(values, when); },
               bytes_of(values) + bytes_of(kwargs));
  mailbox_->read(*runtime_);
}

void TrackerHandle::log_images(const ImageTensors& values, const LogImagesOptions& options) const {
  if (!queue_) return;
  push_images(std::make_shared<const TrackerImages>(to_images(values, options.dataformats)),
              {options.step, runtime_->now(), kwargs_of(options.log_kwargs, name_, "log_kwargs")});
}

void TrackerHandle::push_images(const std::shared_ptr<const TrackerImages>& images,
                                TrackerStep step) const {
  if (!queue_) return;
  queue_->push([images, when = std::move(step)](
                   GeneralTracker& tracker) { tracker.log_images(*images, when); },
               bytes_of(*images));
  mailbox_->read(*runtime_);
}

void TrackerHandle::log_table(const std::string& table_name, const TrackerTable& table,
                              std::optional<int64_t> step, const TrackerDict& kwargs) const {
  for (const TrackerList& row : table.rows) {
    TORCH_CHECK_VALUE(row.size() == table.columns.size(), "log_table: a row of ", row.size(),
                      " values in a table of ", table.columns.size(), " columns");
  }
  if (!queue_) return;
  size_t bytes = 0;
  for (const TrackerList& row : table.rows) bytes += bytes_of(row);
  queue_->push([table_name, table, when = TrackerStep{step, runtime_->now(), kwargs}](
                   GeneralTracker& tracker) { tracker.log_table(table_name, table, when); },
               bytes);
  mailbox_->read(*runtime_);
}

void TrackerHandle::log_histograms(const TrackerDict& tensors, std::optional<int64_t> step,
                                   const TrackerDict& kwargs) const {
  if (!queue_) return;
  queue_->push([tensors, when = TrackerStep{step, runtime_->now(), kwargs}](
                   GeneralTracker& tracker) { tracker.log_histograms(tensors, when); },
               bytes_of(tensors));
  mailbox_->read(*runtime_);
}

void TrackerHandle::flush() const {
  if (!queue_) return;
  queue_->drain(absl::InfiniteDuration());
  mailbox_->read(*runtime_);
}

GeneralTracker* TrackerHandle::drained() const {
  if (!queue_) return nullptr;
  flush();
  return &queue_->tracker();
}

Trackers::Trackers(const std::vector<TrackerChoice>& log_with, std::string logging_dir,
                   Runtime& runtime)
    : runtime_(runtime),
      logging_dir_(std::move(logging_dir)),
      exceptions_(std::uncaught_exceptions()),
      mailbox_(std::make_shared<internal::TrackerMailbox>()),
      world_(std::make_shared<World>(runtime, mailbox_)) {
  if (log_with.empty()) return;
  for (const TrackerChoice& choice : log_with) {
    asked_for_.push_back(choice.name());
    if (choice.own() == nullptr && choice.name() == to_string(LoggerType::kAll)) {
      asked_for_all_ = true;
    }
  }
  classes_ = with_value_errors([&] {
    return filter_trackers(log_with, registry(runtime),
                           {.logging_dir = logging_dir_, .services = world_->services});
  });
  mailbox_->read(runtime_);
}

Trackers::~Trackers() {
  try {
    end(/*failed=*/std::uncaught_exceptions() > exceptions_);
  } catch (...) {
    // A simulated rank that was killed no longer has a log.
  }
}

std::vector<std::string> Trackers::names() const {
  std::vector<std::string> names;
  for (const TrackerClass& tracker_class : classes_) names.push_back(tracker_class.name);
  return names;
}

void Trackers::init(const std::string& project_name, const TrackerDict& config,
                    const TrackerDict& init_kwargs) {
  TORCH_CHECK_VALUE(!begun_, "init_trackers was called already; end_training comes before another");
  check_names(init_kwargs, "init_kwargs");
  // All trackers are made before the first one starts.
  std::vector<std::unique_ptr<GeneralTracker>> made;
  for (const TrackerClass& tracker_class : classes_) {
    made.push_back(make_tracker(tracker_class, project_name,
                                kwargs_of(init_kwargs, tracker_class.name, "init_kwargs")));
  }
  mailbox_->begin_run();
  const bool real = world_->services.is_real;
  std::vector<std::shared_ptr<TrackerQueue>> queues(made.size());
  for (size_t i = 0; i < made.size(); ++i) {
    if (!made[i]) continue;
    queues[i] = std::make_shared<TrackerQueue>(
        classes_[i].name, std::move(made[i]), world_->services.warn,
        TrackerQueueOptions{.threaded = real, .flush_on_exit = real, .keep_alive = world_});
  }
  queues_ = std::move(queues);
  begun_ = true;
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!queues_[i]) continue;
    queues_[i]->push([](GeneralTracker& tracker) { tracker.start(); }, 0);
  }
  for (size_t i = 0; i < queues_.size() && !config.empty(); ++i) {
    handle(i).store_init_configuration(config);
  }
  mailbox_->read(runtime_);
}

std::unique_ptr<GeneralTracker> Trackers::make_tracker(const TrackerClass& tracker_class,
                                                       const std::string& project_name,
                                                       TrackerDict init_kwargs) {
  const int rank = runtime_.topology().rank;
  bool main_process_only = tracker_class.main_process_only;
  std::string logging_dir = logging_dir_;
  if (const TrackerValue* const asked = find(init_kwargs, kMainProcessOnly)) {
    const bool* const truth = asked->get_if<bool>();
    TORCH_CHECK_VALUE(truth != nullptr, tracker_class.name, ": main_process_only must be a bool");
    // A tracker that is meant for one rank would write the same files on every rank.
    if (main_process_only && !*truth && !logging_dir.empty()) {
      logging_dir = join_path(logging_dir, absl::StrCat("rank_", rank));
    }
    main_process_only = *truth;
    std::erase_if(init_kwargs, [](const auto& entry) { return entry.first == kMainProcessOnly; });
  }
  if (main_process_only && rank != 0) return nullptr;
  return with_value_errors([&] {
    return tracker_class.tracker(TrackerSetup{.project_name = project_name,
                                              .logging_dir = logging_dir,
                                              .init_kwargs = init_kwargs,
                                              .random_bits = runtime_.random_bits(),
                                              .time = runtime_.now(),
                                              .services = world_->services});
  });
}

void Trackers::log(const TrackerDict& values, std::optional<int64_t> step,
                   const TrackerDict& log_kwargs) {
  for_each(log_kwargs, [&](const TrackerHandle& tracker, const TrackerDict& kwargs) {
    tracker.log(values, step, kwargs);
  });
}

void Trackers::log_images(const ImageTensors& values, const LogImagesOptions& options) {
  std::shared_ptr<const TrackerImages> images;  // made for the first that wants them
  for_each(options.log_kwargs, [&](const TrackerHandle& tracker, const TrackerDict& kwargs) {
    if (!tracker) return;
    if (!images) {
      images = std::make_shared<const TrackerImages>(to_images(values, options.dataformats));
    }
    tracker.push_images(images, {options.step, runtime_.now(), kwargs});
  });
}

void Trackers::log_table(const std::string& name, const TrackerTable& table,
                         std::optional<int64_t> step, const TrackerDict& log_kwargs) {
  for_each(log_kwargs, [&](const TrackerHandle& tracker, const TrackerDict& kwargs) {
    tracker.log_table(name, table, step, kwargs);
  });
}

void Trackers::log_histograms(const TrackerDict& tensors, std::optional<int64_t> step,
                              const TrackerDict& log_kwargs) {
  for_each(log_kwargs, [&](const TrackerHandle& tracker, const TrackerDict& kwargs) {
    tracker.log_histograms(tensors, step, kwargs);
  });
}

TrackerHandle Trackers::get(const std::string& name) const {
  for (size_t i = 0; i < classes_.size(); ++i) {
    if (classes_[i].name == name) return handle(i);
  }
  // Where log_with is empty, a program may still ask for its tracker: it gets one that does
  // nothing.
  TORCH_CHECK_VALUE(asked_for_.empty() || was_asked_for(name), name,
                    " is not an available tracker stored inside the `Accelerator`.");
  return {name, nullptr, mailbox_, runtime_};
}

void Trackers::end(bool failed) {
  const RunEnd how = failed ? RunEnd::kFailed : RunEnd::kDone;
  for (const auto& queue : queues_) {
    if (queue) queue->begin_end(how);
  }
  const auto start = std::chrono::steady_clock::now();
  for (const auto& queue : queues_) {
    if (!queue) continue;
    const absl::Duration spent = absl::FromChrono(std::chrono::steady_clock::now() - start);
    queue->finish((failed ? kFailureLimit : kEndLimit) - spent, how);
  }
  queues_.clear();
  begun_ = false;
  mailbox_->read(runtime_);
}

TrackerHandle Trackers::handle(size_t index) const {
  return {classes_[index].name, index < queues_.size() ? queues_[index] : nullptr, mailbox_,
          runtime_};
}

void Trackers::for_each(const TrackerDict& log_kwargs,
                        const std::function<void(const TrackerHandle&, const TrackerDict&)>& call) {
  if (classes_.empty()) return;
  if (!begun_) {
    logger(runtime_).warning_once(
        "values that are logged before init_trackers or after end_training are not kept");
    return;
  }
  if (!log_kwargs.empty()) check_names(log_kwargs, "log_kwargs");
  for (size_t i = 0; i < classes_.size(); ++i) {
    call(handle(i), kwargs_of(log_kwargs, classes_[i].name, "log_kwargs"));
  }
}

bool Trackers::was_asked_for(const std::string& name) const {
  return std::find(asked_for_.begin(), asked_for_.end(), name) != asked_for_.end() ||
         (asked_for_all_ && is_known_tracker(name, registry(runtime_)));
}

void Trackers::check_names(const TrackerDict& kwargs, const char* what) const {
  for (const auto& [name, value] : kwargs) {
    TORCH_CHECK_VALUE(was_asked_for(name), what, " for ", name,
                      ", which is not a tracker of this Accelerator; its trackers are: ",
                      absl::StrJoin(asked_for_, ", "));
  }
}

void register_tracker_class(TrackerClass tracker_class, Runtime& runtime) {
  const std::string name = tracker_class.name;
  const bool replaces = registry(runtime).find(name) != nullptr;
  try {
    registry(runtime).add(std::move(tracker_class));
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, error.what());
  }
  if (replaces) {
    logger(runtime).warning(absl::StrCat(
        "A tracker with the name '", name,
        "' is already registered and will be overwritten by the one that is registered now"));
  }
}

std::vector<std::string> get_available_trackers(Runtime& runtime) {
  const auto ignore = [](std::string_view) {};
  return get_available_trackers(registry(runtime),
                                services_of(runtime, runtime.environment(), ignore, ignore));
}

}  // namespace accelerate
