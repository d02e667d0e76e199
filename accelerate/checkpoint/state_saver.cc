#include "accelerate/checkpoint/state_saver.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/checkpoint/checkpoint_error.h"
#include "accelerate/checkpoint/checkpoint_folder.h"
#include "accelerate/checkpoint/save_exchange.h"
#include "accelerate/checkpoint/save_job.h"
#include "accelerate/checkpoint/save_model.h"
#include "accelerate/comm/objects.h"
#include "accelerate/util/features.h"
#include "accelerate/util/logger.h"
#include "accelerate/util/progress_bar.h"

namespace accelerate {
namespace {

constexpr char kCheckpoints[] = "checkpoints";
constexpr char kPrefix[] = "checkpoint_";

// How long an asynchronous save waits for the other ranks' shares.
constexpr absl::Duration kPatience = absl::Minutes(30);

constexpr int64_t kMegabyte = 1'000'000;
// Less is written before anybody could watch.
constexpr int64_t kWorthABar = 256 * kMegabyte;

Logger logger(Runtime& runtime) { return get_logger("accelerate.checkpoint", {}, runtime); }

// "~" and "~/..." as a shell reads them, and no slash at the end.
std::string expanded(std::string path, const Environment& environment) {
  if (path == "~" || path.starts_with("~/")) {
    path = environment.get_or("HOME", "~") + path.substr(1);
  }
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::map<std::string, std::string> versions(const Runtime& runtime) {
  const BuildInfo info = build_info(runtime);
  return {{"accelerate", info.version}, {"libtorch", info.libtorch_version}};
}

int64_t bytes_of(const std::vector<CheckpointPart>& parts) {
  int64_t bytes = 0;
  for (const CheckpointPart& part : parts) {
    for (const auto& [name, tensor] : part.state.tensors) bytes += tensor.nbytes();
  }
  return bytes;
}

// How a rank's part of a collective action ended, as one word to the others.
enum class Ending : char { kWell = '+', kDamaged = 'D', kFailed = 'F' };
struct RankEnding {
  Ending ending = Ending::kWell;
  std::string text;
};

std::vector<RankEnding> exchange(const ProcessGroupPtr& group, const RankEnding& own) {
  if (!group) return {own};
  std::vector<RankEnding> all;
  for (const std::string& bytes :
       all_gather_bytes(group, std::string(1, static_cast<char>(own.ending)) + own.text)) {
    all.push_back({.ending = static_cast<Ending>(bytes.at(0)), .text = bytes.substr(1)});
  }
  return all;
}

std::string failures(const std::vector<RankEnding>& endings) {
  std::string text;
  for (size_t rank = 0; rank < endings.size(); ++rank) {
    if (endings[rank].ending == Ending::kWell) continue;
    absl::StrAppend(&text, text.empty() ? "" : "\n", "rank ", rank, ": ", endings[rank].text);
  }
  return text;
}

// What one rank alone says is for people; without its stack trace.
std::string text_of(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

}  // namespace

// An asynchronous save.
struct StateSaver::Running {
  std::string checkpoint;
  std::unique_ptr<SaveJob> job;
  absl::Time began;
  std::optional<absl::Time> waits_since;
  std::atomic<bool> abandoned = false;
  std::unique_ptr<BackgroundTask> task;  // last: it uses the others
};

StateSaver::StateSaver(AcceleratorState& state, internal::TrainingState& training,
                       GradientState& gradient_state, ProjectConfiguration configuration)
    : state_(state),
      training_(training),
      gradient_state_(gradient_state),
      configuration_(std::move(configuration)) {
  TORCH_CHECK_VALUE(configuration_.total_limit.value_or(0) >= 0,
                    "ProjectConfiguration::total_limit is ", *configuration_.total_limit);
  TORCH_CHECK_VALUE(configuration_.iteration >= 0, "ProjectConfiguration::iteration is ",
                    configuration_.iteration);
  if (!configuration_.logging_dir) configuration_.logging_dir = configuration_.project_dir;
}

StateSaver::~StateSaver() {
  if (!running_) return;
  // Other ranks may be gone as well.
  if (std::uncaught_exceptions() > 0) running_->abandoned = true;
  try {
    wait();
  } catch (const std::exception& error) {
    logger(state_.runtime()).error(text_of(error), {.main_process_only = false});
  }
}

bool StateSaver::writes_shared() const {
  return configuration_.save_on_each_node ? state_.is_local_main_process()
                                          : state_.is_main_process();
}

void StateSaver::on_writers(const std::function<void()>& write) const {
  RankEnding own;
  std::exception_ptr error;
  try {
    if (writes_shared()) write();
  } catch (const std::exception& failed) {
    own = {.ending = Ending::kFailed, .text = text_of(failed)};
    error = std::current_exception();
  }
  const std::string failed = failures(exchange(state_.group(), own));
  if (error) std::rethrow_exception(error);
  if (!failed.empty()) throw CheckpointError(failed);
}

internal::TrainingParts StateSaver::parts() const {
  return {.runtime = state_.runtime(),
          .training = training_,
          .gradient_state = gradient_state_,
          .custom_objects = custom_objects_};
}

std::string StateSaver::checkpoints_folder() const {
  TORCH_CHECK_VALUE(configuration_.project_dir,
                    "automatic_checkpoint_naming needs a folder: set "
                    "ProjectConfiguration::project_dir");
  return join_path(expanded(*configuration_.project_dir, state_.runtime().environment()),
                   kCheckpoints);
}

std::string StateSaver::target(const std::string& output_dir) const {
  if (configuration_.automatic_checkpoint_naming) {
    return join_path(checkpoints_folder(), absl::StrCat(kPrefix, configuration_.iteration));
  }
  TORCH_CHECK_VALUE(!output_dir.empty(),
                    "save_state needs an output_dir, or ProjectConfiguration's "
                    "automatic_checkpoint_naming");
  return expanded(output_dir, state_.runtime().environment());
}

void StateSaver::begin(const std::string& checkpoint) {
  RankEnding own = {.text = checkpoint};
  FileSystem& files = state_.runtime().files();
  if (writes_shared()) {
    const absl::StatusOr<bool> taken = exists(files, checkpoint);
    if (configuration_.automatic_checkpoint_naming && taken.ok() && *taken) {
      own = {.ending = Ending::kFailed,
             .text = absl::StrCat("the checkpoint ", checkpoint,
                                  " exists already. Set ProjectConfiguration::iteration to the "
                                  "number to go on with, or load a state, which does so")};
    } else if (const absl::Status begun = begin_checkpoint(files, checkpoint); !begun.ok()) {
      own = {.ending = Ending::kDamaged, .text = std::string(begun.message())};
    }
  }
  const std::vector<RankEnding> all = exchange(state_.group(), own);
  const std::string failed = failures(all);
  if (!failed.empty()) {
    const std::string message = absl::StrCat("save_state: ", failed);
    TORCH_CHECK_VALUE(std::none_of(all.begin(), all.end(),
                                   [](const auto& each) { return each.ending == Ending::kFailed; }),
                      message);
    throw CheckpointError(message);
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank].text == all[0].text, "save_state: rank ", rank, " saves to ",
                      all[rank].text, ", but rank 0 to ", all[0].text);
  }
}

std::vector<CheckpointPart> StateSaver::collect(const std::string& checkpoint) {
  const internal::TrainingParts parts = this->parts();
  std::vector<NamedTensors> weights = parts.weights();
  save_hooks_.call(parts.models(), weights, staging_path(checkpoint));
  std::vector<CheckpointPart> collected;
  if (writes_shared()) collected = parts.shared(std::move(weights));
  for (CheckpointPart& part : parts.own()) collected.push_back(std::move(part));
  return collected;
}

std::unique_ptr<SaveJob> StateSaver::make_job(const std::string& checkpoint,
                                              const SaveStateOptions& options,
                                              std::function<void(int64_t)> on_progress) {
  Runtime& runtime = state_.runtime();
  SaveJobOptions job = {.checkpoint = checkpoint,
                        .manifest = {.world_size = state_.num_processes(),
                                     .iteration = configuration_.iteration,
                                     .step = training_.step,
                                     .versions = versions(runtime),
                                     .counts = parts().counts()},
                        .commits = writes_shared(),
                        .durable = options.durable,
                        .on_progress = std::move(on_progress)};
  if (configuration_.automatic_checkpoint_naming) job.total_limit = configuration_.total_limit;
  if (job.commits) {
    const Topology& topology = runtime.topology();
    for (int rank = 0; rank < state_.num_processes(); ++rank) job.ranks.push_back(rank);
    if (configuration_.save_on_each_node) {
      // Ranks of a node are neighbours.
      const int first = topology.rank - topology.local_rank;
      job.ranks.assign(job.ranks.begin() + first,
                       job.ranks.begin() + first + topology.local_world_size);
    }
  }
  std::shared_ptr<SaveExchange> exchange;
  if (options.asynchronous) {
    exchange = make_store_exchange(runtime.store(), {.rank = state_.process_index(),
                                                     .world_size = state_.num_processes(),
                                                     .reads = job.ranks,
                                                     .number = training_.asynchronous_saves++});
  } else {
    exchange = make_group_exchange(state_.group());
  }
  return std::make_unique<SaveJob>(runtime.files(), std::move(exchange), std::move(job));
}

void StateSaver::report(const SaveJob& job, const std::string& checkpoint, absl::Time began) const {
  const Logger log = logger(state_.runtime());
  log.info([&] {
    const double gigabytes = static_cast<double>(job.bytes()) / 1e9;
    const double seconds = absl::ToDoubleSeconds(state_.runtime().now() - began);
    return absl::StrFormat("saved %s: %.3f GB in %.2f s (%.2f GB/s)", checkpoint, gigabytes,
                           seconds, seconds > 0 ? gigabytes / seconds : 0.0);
  });
  if (!job.warning().empty()) log.warning(job.warning(), {.main_process_only = false});
}

std::string StateSaver::save(const std::string& output_dir, const SaveStateOptions& options) {
  wait();
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  Runtime& runtime = state_.runtime();
  const std::string checkpoint = target(output_dir);
  begin(checkpoint);
  const absl::Time began = runtime.now();
  std::optional<ProgressBar> bar;
  auto advance = [&bar, rest = int64_t{0}](int64_t bytes) mutable {
    rest += bytes;
    if (bar) bar->advance(rest / kMegabyte);
    rest %= kMegabyte;
  };
  std::unique_ptr<SaveJob> job = options.asynchronous
                                     ? make_job(checkpoint, options, {})
                                     : make_job(checkpoint, options, std::move(advance));
  // What goes wrong on one rank all ranks learn from the job.
  try {
    std::vector<CheckpointPart> collected = collect(checkpoint);
    const int64_t bytes = bytes_of(collected);
    if (options.asynchronous) {
      snapshot_.take(collected, runtime.files().parallelism());
    } else if (bytes >= kWorthABar) {
      bar.emplace(runtime,
                  ProgressBarOptions{.total = bytes / kMegabyte, .description = "saving, MB"});
    }
    job->set_parts(std::move(collected));
  } catch (const std::exception& error) {
    job->fail(text_of(error));
  }
  ++configuration_.iteration;
  if (!options.asynchronous) {
    while (!job->step()) {
    }
    bar.reset();
    report(*job, checkpoint, began);
    return checkpoint;
  }
  running_ = std::make_unique<Running>();
  running_->checkpoint = checkpoint;
  running_->job = std::move(job);
  running_->began = began;
  running_->task = runtime.start_background([&running = *running_, &runtime] {
    if (running.abandoned) throw CheckpointError("an asynchronous save was abandoned");
    if (running.job->step()) return true;
    if (!running.job->has_written()) return false;
    if (!running.waits_since) running.waits_since = runtime.now();
    if (runtime.now() - *running.waits_since > kPatience) {
      throw CheckpointError(
          absl::StrCat("the checkpoint ", running.checkpoint,
                       " was not saved: other ranks did not write their share in ",
                       absl::FormatDuration(kPatience)));
    }
    return false;
  });
  return checkpoint;
}

void StateSaver::wait() {
  if (!running_) return;
  const std::unique_ptr<Running> running = std::move(running_);
  running->task->wait();
  report(*running->job, running->checkpoint, running->began);
}

std::vector<std::string> StateSaver::candidates(const std::string& input_dir) const {
  Runtime& runtime = state_.runtime();
  if (!input_dir.empty()) {
    const std::string path = expanded(input_dir, runtime.environment());
    RankEnding own;
    if (writes_shared()) {
      const absl::Status recovered = recover_checkpoint(runtime.files(), path);
      if (!recovered.ok()) {
        own = {.ending = Ending::kDamaged, .text = std::string(recovered.message())};
      }
    }
    const std::string failed = failures(exchange(state_.group(), own));
    if (!failed.empty()) throw CheckpointError(absl::StrCat("load_state: ", failed));
    return {path};
  }
  TORCH_CHECK_VALUE(configuration_.automatic_checkpoint_naming,
                    "load_state needs an input_dir, or ProjectConfiguration's "
                    "automatic_checkpoint_naming");
  const std::string folder = checkpoints_folder();
  // Those who save look; a checkpoint counts that all of them have.
  using Json = nlohmann::json;
  RankEnding own;
  if (writes_shared()) {
    const absl::StatusOr<FoundCheckpoints> found = find_checkpoints(runtime.files(), folder);
    if (found.ok()) {
      Json paths = Json::array();
      for (const FoundCheckpoint& each : found->complete) paths.push_back(each.path);
      own.text = paths.dump();
      for (const auto& [path, why] : found->skipped) {
        logger(runtime).warning(absl::StrCat("load_state passes over ", why),
                                {.main_process_only = false});
      }
    } else {
      own = {.ending = Ending::kDamaged, .text = std::string(found.status().message())};
    }
  }
  const std::vector<RankEnding> all = exchange(state_.group(), own);
  if (const std::string failed = failures(all); !failed.empty()) {
    throw CheckpointError(absl::StrCat("load_state: ", failed));
  }
  std::vector<std::string> common;
  bool first = true;
  for (const RankEnding& rank : all) {
    if (rank.text.empty()) continue;
    const auto paths = Json::parse(rank.text).get<std::vector<std::string>>();
    if (std::exchange(first, false)) {
      common = paths;
    } else {
      std::erase_if(common, [&](const std::string& path) {
        return std::find(paths.begin(), paths.end(), path) == paths.end();
      });
    }
  }
  std::reverse(common.begin(), common.end());
  if (common.empty()) {
    throw CheckpointError(absl::StrCat("load_state: there is no complete checkpoint in ", folder));
  }
  return common;
}

void StateSaver::load_from(const std::string& checkpoint, const LoadStateOptions& options) {
  FileSystem& files = state_.runtime().files();
  const absl::StatusOr<FileInfo> folder = files.info(checkpoint);
  TORCH_CHECK_VALUE(!absl::IsNotFound(folder.status()), "load_state: there is no folder ",
                    checkpoint);
  const CheckpointReader reader(files, checkpoint,
                                internal::value_or_throw(check_checkpoint(files, checkpoint)));
  const internal::TrainingParts parts = this->parts();
  Modules models = parts.models();
  load_hooks_.call(models, checkpoint);
  parts.load_models(reader, models, options.strict);
  parts.load(reader);
  continue_after(reader.manifest());
}

void StateSaver::continue_after(const Manifest& manifest) {
  configuration_.iteration = manifest.iteration + 1;
  if (!configuration_.automatic_checkpoint_naming || !configuration_.project_dir) return;
  const auto names = state_.runtime().files().list(checkpoints_folder());
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(kPrefix)) continue;
    const auto number = checkpoint_number(name);
    const bool is_exact = number && name == absl::StrCat(kPrefix, *number);
    if (is_exact) configuration_.iteration = std::max(configuration_.iteration, *number + 1);
  }
}

std::string StateSaver::load(const std::string& input_dir, const LoadStateOptions& options) {
  wait();
  if (options.map_location) {
    TORCH_CHECK_TYPE(*options.map_location == "cpu" || *options.map_location == "on_device",
                     "load_state: map_location \"", *options.map_location,
                     "\" is neither \"cpu\" nor \"on_device\"");
  }
  for (const std::string& checkpoint : candidates(input_dir)) {
    RankEnding own;
    std::exception_ptr error;
    try {
      load_from(checkpoint, options);
    } catch (const CheckpointError& damaged) {
      own = {.ending = Ending::kDamaged, .text = text_of(damaged)};
      error = std::current_exception();
    } catch (const std::exception& failed) {
      own = {.ending = Ending::kFailed, .text = text_of(failed)};
      error = std::current_exception();
    }
    const std::vector<RankEnding> all = exchange(state_.group(), own);
    const std::string failed = failures(all);
    if (failed.empty()) return checkpoint;
    const bool may_go_on =
        input_dir.empty() && std::none_of(all.begin(), all.end(), [](const auto& each) {
          return each.ending == Ending::kFailed;
        });
    if (may_go_on) {
      // Everything that was loaded is loaded again from an older one.
      logger(state_.runtime())
          .warning(absl::StrCat("load_state passes over ", checkpoint, ": ", failed));
      continue;
    }
    if (error) std::rethrow_exception(error);
    throw CheckpointError(
        absl::StrCat("load_state of ", checkpoint, " failed on other ranks: ", failed));
  }
  throw CheckpointError("load_state: every checkpoint is damaged");
}

}  // namespace accelerate
