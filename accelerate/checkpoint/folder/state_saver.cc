#include "accelerate/checkpoint/folder/state_saver.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <ranges>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/base/number_text.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/folder/save_job.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/progress_bar.h"
#include "accelerate/values/texts.h"
#include "accelerate/values/versions.h"

namespace accelerate {

using internal::agree;
using internal::agree_on_values;
using internal::failures;
using internal::RankOutcome;
using internal::RankStatus;
using Json = nlohmann::json;

namespace {

constexpr char kSave[] = "save_state";
constexpr char kLoad[] = "load_state";
constexpr char kCheckpoints[] = "checkpoints";
constexpr char kPrefix[] = "checkpoint_";

// The time-out of an asynchronous save for the other ranks' shares, counted from the last beat of
// any rank, and the interval of the beats of a rank that writes.
constexpr absl::Duration kTimeout = absl::Minutes(30);
constexpr absl::Duration kBeat = absl::Minutes(1);

constexpr int64_t kMegabyte = 1'000'000;
// Saves of fewer bytes are over too soon for a progress bar.
constexpr int64_t kWorthABar = 256 * kMegabyte;

Logger logger(Runtime& runtime) { return get_logger("accelerate.checkpoint", {}, runtime); }

std::map<std::string, std::string> versions() {
  return {{"accelerate", std::string(library_version("accelerate").value())},
          {"libtorch", std::string(library_version("torch").value())}};
}

// What a rank tells the others before a save.
struct Announcement {
  std::string checkpoint;
  // Rank 0's. Others give none, so that ranks that do the same give the same.
  uint64_t id = 0;
  // Where nodes have disks of their own, the first rank that writes to this rank's. Where there is
  // one disk, ranks that do the same tell each other the same.
  std::optional<int64_t> disk = std::nullopt;
  std::optional<double> metric = std::nullopt;
};
auto tree_members(Announcement& own) {
  return std::tie(own.checkpoint, own.id, own.disk, own.metric);
}

std::string metric_text(const std::optional<double>& metric) {
  return metric ? absl::StrCat(*metric) : "none";
}

// A path as JSON, and back. Paths are any bytes, but texts of JSON are UTF-8.
Json json_of_path(const std::string& path) {
  try {
    Json text = path;
    static_cast<void>(text.dump());
    return text;
  } catch (const Json::type_error&) {
    return std::vector<uint8_t>(path.begin(), path.end());
  }
}
std::string path_of(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  const auto bytes = json.get<std::vector<uint8_t>>();
  return {bytes.begin(), bytes.end()};
}

// The intersection of the ranks' non-empty lists, in the order of the first one.
std::vector<Json> intersection_of(const std::vector<RankOutcome>& ranks) {
  std::optional<std::vector<Json>> common;
  for (const RankOutcome& rank : ranks) {
    if (rank.text.empty()) continue;
    const auto theirs = Json::parse(rank.text).get<std::vector<Json>>();
    if (!common) common = theirs;
    std::erase_if(*common, [&](const Json& each) { return std::ranges::count(theirs, each) == 0; });
  }
  return common.value_or(std::vector<Json>());
}

}  // namespace

// An asynchronous save.
struct StateSaver::Running {
  std::string checkpoint;
  std::unique_ptr<SaveJob> job;
  absl::Time start;
  std::optional<absl::Time> waits_since;
  int64_t beats = 0;
  absl::Time end;
  std::atomic<bool> abandoned = false;
  std::unique_ptr<BackgroundTask> task;  // last: it uses the others
};

StateSaver::StateSaver(AcceleratorState& state, internal::TrainingState& training,
                       GradientState& gradient_state, ProjectConfiguration configuration)
    : state_(state),
      training_(training),
      gradient_state_(gradient_state),
      configuration_(std::move(configuration)) {
  TORCH_CHECK_VALUE(configuration_.iteration >= 0, "ProjectConfiguration::iteration is ",
                    configuration_.iteration);
  if (!configuration_.logging_dir) configuration_.logging_dir = configuration_.project_dir;
  if (!configuration_.project_dir.value_or("").empty() && writes_shared()) try_project_dir();
}

void StateSaver::try_project_dir() const {
  FileSystem& files = state_.runtime().files();
  const std::string folder = expanded(*configuration_.project_dir);
  // Durably: a save makes those folders durable that it makes.
  absl::Status status = make_directories_durably(files, folder);
  if (status.ok()) {
    const std::string path = files.temporary_name(join_path(folder, "tried"));
    absl::StatusOr<std::unique_ptr<WritableFile>> file = files.create(path);
    status = file.status();
    if (status.ok()) {
      // More than a full disk takes.
      status = (*file)->write_at(0, std::vector<std::byte>(4096));
      status.Update((*file)->close());
      status.Update(files.remove(path));
    }
  }
  TORCH_CHECK_VALUE(status.ok(), "rank ", state_.process_index(), ": nothing can be saved in ",
                    "ProjectConfiguration::project_dir ", folder, ": ", status.message());
}

StateSaver::~StateSaver() {
  if (!running_) return;
  // Other ranks may have ended too, so waiting for them could hang.
  if (std::uncaught_exceptions() > 0) running_->abandoned = true;
  try {
    wait();
  } catch (const std::exception& error) {
    logger(state_.runtime()).error(exception_text(error), {.main_process_only = false});
  }
}

bool StateSaver::writes_shared() const {
  return configuration_.save_on_each_node ? state_.is_local_main_process()
                                          : state_.is_main_process();
}

void StateSaver::on_writers(const std::function<void()>& write) const {
  agree(state_.group(), "save", [&] {
    if (writes_shared()) write();
    return "";
  });
}

ProcessGroupPtr StateSaver::group() const { return state_.group(); }

std::string StateSaver::expanded(const std::string& given) const {
  std::string path = given;
  if (path == "~" || path.starts_with("~/")) {
    path = state_.runtime().environment().get_or("HOME", "~") + path.substr(1);
  }
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

int StateSaver::first_on_node() const {
  const Topology& topology = state_.runtime().topology();
  return topology.rank - topology.local_rank;
}

internal::TrainingParts StateSaver::parts() const {
  const DeviceMesh* mesh = state_.device_mesh();
  const bool has_stages = std::ranges::any_of(training_.models, [](const auto& model) {
    const auto& layout = model->placements().layout;
    return layout != nullptr && layout->cuts().contains(MeshAxis::kPp);
  });
  return {.runtime = state_.runtime(),
          .training = training_,
          .gradient_state = gradient_state_,
          .custom_objects = custom_objects_,
          .mesh = mesh ? &mesh->mesh() : nullptr,
          .first_on_disk = configuration_.save_on_each_node ? first_on_node() : 0,
          .device = state_.device(),
          .disks = disks_,
          .stages = has_stages ? mesh->group(MeshAxis::kPp) : nullptr};
}

std::string StateSaver::checkpoints_folder() const {
  TORCH_CHECK_VALUE(configuration_.project_dir,
                    "automatic_checkpoint_naming needs a folder: set "
                    "ProjectConfiguration::project_dir");
  return join_path(expanded(*configuration_.project_dir), kCheckpoints);
}

std::string StateSaver::target(const Request& request) const {
  if (names_automatically(request)) {
    return join_path(checkpoints_folder(), absl::StrCat(kPrefix, configuration_.iteration));
  }
  TORCH_CHECK_VALUE(!request.folder.empty(), request.caller,
                    " needs an output_dir, or ProjectConfiguration's automatic_checkpoint_naming");
  std::string path = expanded(request.folder);
  // The finished folder takes its place by a rename, which needs a name.
  const size_t name = path.rfind('/') + 1;
  const std::string last = path.substr(name);
  TORCH_CHECK_VALUE(last != "." && last != ".." && last != "", request.caller, ": ", path,
                    " does not end in a name; give the folder's name");
  return path;
}

void StateSaver::warn_of_later_checkpoints() {
  if (std::exchange(looked_for_later_, true)) return;
  const int64_t last = next_iteration(configuration_.iteration) - 1;
  if (last == configuration_.iteration) return;
  logger(state_.runtime())
      .warning(
          absl::StrCat(
              checkpoints_folder(), " has ", kPrefix, last, ", and this run saves ", kPrefix,
              configuration_.iteration,
              ": load_state() takes the highest number for the latest, and total_limit removes "
              "the lowest first. Load a state before, set ProjectConfiguration::iteration to ",
              last + 1, ", or take another project_dir"),
          {.main_process_only = false});
}

void StateSaver::align_nodes(const Request& request) {
  if (!configuration_.save_on_each_node || names_automatically(request)) return;
  FileSystem& files = state_.runtime().files();
  std::string checkpoint, id;
  const std::vector<RankOutcome> all = agree(state_.group(), request.caller, [&]() -> std::string {
    if (!writes_shared()) return "";
    checkpoint = target(request);
    internal::check_ok(recover_checkpoint(files, checkpoint));
    Json ids = Json::array();
    const absl::StatusOr<Manifest> present = check_checkpoint(files, checkpoint);
    if (present.ok()) {
      ids.push_back(id = present->id);
    } else if (!internal::is_damage(present.status())) {
      // It may be the newest checkpoint, and an older one must not replace it.
      internal::check_ok(present.status());
    }
    const auto replaced = internal::value_or_throw(replaced_checkpoint(files, checkpoint));
    if (replaced) ids.push_back(replaced->id);
    return ids.dump();
  });
  const std::vector<Json> common = intersection_of(all);
  agree(state_.group(), request.caller, [&] {
    const bool is_apart = writes_shared() && !common.empty() && common[0] != id;
    if (!is_apart) return "";
    logger(state_.runtime())
        .warning(
            absl::StrCat("a save to ", checkpoint,
                         " was not finished on all nodes; the checkpoint before it is restored"),
            {.main_process_only = false});
    internal::check_ok(restore_replaced(files, checkpoint));
    return "";
  });
}

StateSaver::AgreedSave StateSaver::begin(const Request& request) {
  align_nodes(request);
  Runtime& runtime = state_.runtime();
  FileSystem& files = runtime.files();
  const std::string writer = absl::StrCat("rank ", state_.process_index());
  const auto all = agree_on_values(state_.group(), request.caller, [&] {
    Announcement own{.checkpoint = target(request), .metric = request.metric};
    const std::string& checkpoint = own.checkpoint;
    if (writes_shared()) {
      const bool taken = internal::value_or_throw(exists(files, checkpoint));
      TORCH_CHECK_VALUE(!names_automatically(request) || !taken, "the checkpoint ", checkpoint,
                        " exists already. Set ProjectConfiguration::iteration to the number to go "
                        "on with, or load a state, which does so");
      if (names_automatically(request)) warn_of_later_checkpoints();
      const absl::Status begun = begin_checkpoint(files, checkpoint, writer);
      if (!begun.ok() && configuration_.save_on_each_node) {
        throw CheckpointError(
            absl::StrCat(std::string(begun.message()),
                         " (save_on_each_node is set; if nodes share this disk, it must not be)"));
      }
      internal::check_ok(begun);
    }
    const uint64_t bits = runtime.random_bits();
    if (state_.is_main_process()) own.id = bits;
    if (configuration_.save_on_each_node) own.disk = parts().first_on_disk;
    return own;
  });
  AgreedSave begun{.checkpoint = all[0].checkpoint,
                   .id = absl::StrCat(absl::Hex(all[0].id, absl::kZeroPad16))};
  disks_.clear();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    disks_.push_back(all[rank].disk.value_or(0));
    TORCH_CHECK_VALUE(all[rank].checkpoint == begun.checkpoint, request.caller, ": rank ", rank,
                      " saves to ", all[rank].checkpoint, ", but rank 0 to ", begun.checkpoint);
    TORCH_CHECK_VALUE(all[rank].metric == all[0].metric, request.caller, ": the metric of rank ",
                      rank, " is ", metric_text(all[rank].metric), ", but that of rank 0 is ",
                      metric_text(all[0].metric),
                      "; compute it from what gather_for_metrics gives");
  }
  if (configuration_.save_on_each_node) {
    agree(state_.group(), request.caller, [&] {
      if (writes_shared()) internal::check_ok(check_writer(files, begun.checkpoint, writer));
      return "";
    });
  }
  if (finished_ && state_.is_main_process()) finished_->remove_entries();
  finished_.reset();
  return begun;
}

std::vector<CheckpointPart> StateSaver::collect(const std::string& checkpoint,
                                                const SaveStateOptions& options) {
  internal::TrainingParts parts = this->parts();
  if (options.state_dict_type) {
    parts.state_dict_type = *options.state_dict_type;
  } else if (const FullyShardedDataParallelPlugin* plugin = state_.fsdp_plugin()) {
    parts.state_dict_type = plugin->state_type();
  } else if (state_.deepspeed_plugin() != nullptr) {
    parts.state_dict_type = StateDictType::kShardedStateDict;
  }
  std::vector<NamedTensors> weights = parts.weights();
  const auto call_hooks = [&] {
    save_hooks_.call(parts.models(), weights, staging_path(checkpoint));
    return "";
  };
  // No rank asks others where one has failed.
  if (parts.is_collective()) {
    agree(state_.group(), kSave, call_hooks);
  } else {
    call_hooks();
  }
  return parts.collect(weights, writes_shared());
}

std::unique_ptr<SaveJob> StateSaver::make_job(const AgreedSave& begun, const Request& request,
                                              const SaveStateOptions& options,
                                              std::function<void(int64_t)> on_progress) {
  Runtime& runtime = state_.runtime();
  // A checkpoint that replaces another removes the only one there is.
  const bool durable = options.durable || exists(runtime.files(), begun.checkpoint).value_or(true);
  SaveJobOptions job = {.checkpoint = begun.checkpoint,
                        .manifest = {.id = begun.id,
                                     .durable = durable,
                                     .world_size = state_.num_processes(),
                                     .mesh = parts().mesh_text(),
                                     .share_ranks = parts().share_ranks(),
                                     .iteration = configuration_.iteration,
                                     .step = gradient_state_.step(),
                                     .metric = request.metric,
                                     .numerics = has_shapes_alone(runtime) ? kShapesNumerics : "",
                                     .versions = versions()},
                        .commits = writes_shared(),
                        .durable = durable,
                        .on_progress = std::move(on_progress)};
  if (request.is_of_training) job.manifest.counts = parts().counts();
  if (names_automatically(request)) job.total_limit = configuration_.total_limit;
  job.damaged = damaged_;
  if (job.commits) {
    for (int rank = 0; rank < state_.num_processes(); ++rank) job.ranks.push_back(rank);
    if (configuration_.save_on_each_node) {
      const int first = first_on_node();
      job.ranks.assign(job.ranks.begin() + first,
                       job.ranks.begin() + first + runtime.topology().local_world_size);
    }
  }
  SaveExchangeOptions exchange_options = {.rank = state_.process_index(),
                                          .world_size = state_.num_processes(),
                                          .reads = job.ranks,
                                          .id = begun.id};
  std::shared_ptr<SaveExchange> exchange;
  if (options.asynchronous) {
    exchange = make_store_exchange(runtime.store(), std::move(exchange_options));
    job.on_progress = [exchange, &runtime, last = runtime.now()](int64_t) mutable {
      const absl::Time now = runtime.now();
      if (now - last < kBeat) return;
      last = now;
      exchange->beat();
    };
  } else {
    exchange =
        make_group_exchange(state_.group(), state_.group() != nullptr ? runtime.store() : nullptr,
                            std::move(exchange_options));
  }
  return std::make_unique<SaveJob>(runtime.files(), std::move(exchange), std::move(job));
}

void StateSaver::report(const SaveJob& job, const std::string& checkpoint,
                        absl::Duration took) const {
  const Logger log = logger(state_.runtime());
  log.info([&] {
    const double seconds = absl::ToDoubleSeconds(took);
    const double rate = seconds > 0 ? static_cast<double>(job.bytes()) / seconds : 0.0;
    return absl::StrFormat("saved %s: %s in %.2f s (%s/s)", checkpoint,
                           binary_byte_text(job.bytes()), seconds,
                           binary_byte_text(static_cast<int64_t>(rate)));
  });
  if (!job.warning().empty()) log.warning(job.warning(), {.main_process_only = false});
}

std::string StateSaver::save(const std::string& output_dir, const SaveStateOptions& options) {
  wait();
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  Runtime& runtime = state_.runtime();
  Request request{.caller = kSave, .folder = output_dir};
  if (options.metric && std::isfinite(*options.metric)) request.metric = options.metric;
  if (options.metric && !request.metric) {
    logger(runtime).warning(absl::StrCat("save_state: the metric is ", *options.metric,
                                         ", so this checkpoint is saved without one"));
  }
  const AgreedSave begun = begin(request);
  const absl::Time start = runtime.now();
  std::optional<ProgressBar> bar;
  std::function<void(int64_t)> advance;
  if (!options.asynchronous) {
    advance = [&bar, rest = int64_t{0}](int64_t bytes) mutable {
      rest += bytes;
      if (bar) bar->advance(rest / kMegabyte);
      rest %= kMegabyte;
    };
  }
  std::unique_ptr<SaveJob> job = make_job(begun, request, options, std::move(advance));
  // If this fails on one rank, the job tells all ranks.
  const RankOutcome collected = internal::outcome_of([&] {
    std::vector<CheckpointPart> parts = collect(begun.checkpoint, options);
    int64_t bytes = 0;
    for (const CheckpointPart& part : parts) {
      for (const auto& [name, tensor] : part.state.tensors) bytes += tensor.nbytes();
    }
    std::shared_ptr<internal::DeferredCopy> copy;
    if (options.asynchronous) {
      copy = snapshot_.copy(parts, runtime.files().parallelism());
      if (copy != nullptr) this->parts().add_reader(copy);
    } else if (bytes >= kWorthABar) {
      bar.emplace(runtime,
                  ProgressBarOptions{.total = bytes / kMegabyte, .description = "saving, MB"});
    }
    job->set_parts(std::move(parts), std::move(copy));
    return "";
  });
  if (!collected.ok()) job->fail(collected.text);
  ++configuration_.iteration;
  if (options.asynchronous) {
    run_behind(begun, std::move(job), start);
    return begun.checkpoint;
  }
  while (!job->step()) {
  }
  bar.reset();
  report(*job, begun.checkpoint, runtime.now() - start);
  return begun.checkpoint;
}

void StateSaver::save_parts(
    const std::string& caller, const std::string& folder,
    const std::function<std::vector<CheckpointPart>(const internal::TrainingParts&)>& collect) {
  wait();
  const Request request{.caller = caller, .folder = folder, .is_of_training = false};
  const AgreedSave begun = begin(request);
  const absl::Time start = state_.runtime().now();
  std::unique_ptr<SaveJob> job = make_job(begun, request, /*options=*/{}, /*on_progress=*/{});
  const RankOutcome collected = internal::outcome_of([&] {
    job->set_parts(collect(parts()), nullptr);
    return "";
  });
  if (!collected.ok()) job->fail(collected.text);
  while (!job->step()) {
  }
  report(*job, begun.checkpoint, state_.runtime().now() - start);
}

void StateSaver::run_behind(const AgreedSave& begun, std::unique_ptr<SaveJob> job,
                            absl::Time start) {
  Runtime& runtime = state_.runtime();
  auto running = std::make_unique<Running>();
  running->checkpoint = begun.checkpoint;
  running->job = std::move(job);
  running->start = start;
  running->task = runtime.start_background([&running = *running, &runtime] {
    if (running.abandoned) throw CheckpointError("an asynchronous save was abandoned");
    if (running.job->step()) {
      running.end = runtime.now();
      return true;
    }
    if (!running.job->has_written()) return false;
    const absl::Time now = runtime.now();
    if (now - running.waits_since.value_or(now) > kTimeout) {
      const int64_t beats = running.job->exchange()->beats();
      if (beats == std::exchange(running.beats, beats)) {
        throw CheckpointError(absl::StrCat(
            "it is not known whether the checkpoint ", running.checkpoint,
            " was saved: the other ranks did not report for ", absl::FormatDuration(kTimeout)));
      }
      running.waits_since = now;
    }
    if (!running.waits_since) running.waits_since = now;
    return false;
  });
  running_ = std::move(running);
}

void StateSaver::wait() {
  if (!running_) return;
  const std::unique_ptr<Running> running = std::move(running_);
  finished_ = running->job->exchange();
  running->task->wait();
  report(*running->job, running->checkpoint, running->end - running->start);
}

std::vector<std::string> StateSaver::candidates(const std::string& input_dir,
                                                const LoadStateOptions& options,
                                                bool may_be_absent) const {
  Runtime& runtime = state_.runtime();
  FileSystem& files = runtime.files();
  // Ranks that write look for checkpoints; each is listed by its path and the id of its save.
  const std::vector<RankOutcome> all = agree(state_.group(), kLoad, [&]() -> std::string {
    if (options.map_location) {
      TORCH_CHECK_TYPE(*options.map_location == "cpu" || *options.map_location == "on_device",
                       "load_state: map_location \"", *options.map_location,
                       "\" is neither \"cpu\" nor \"on_device\"");
    }
    TORCH_CHECK_VALUE(!options.best || input_dir.empty(),
                      "load_state finds the best checkpoint by itself; leave input_dir empty");
    Json found = Json::array();
    if (!input_dir.empty()) {
      const std::string path = expanded(input_dir);
      if (!writes_shared()) return "";
      internal::check_ok(recover_checkpoint(files, path));
      const bool present = internal::value_or_throw(exists(files, path));
      if (!present && may_be_absent) return found.dump();
      TORCH_CHECK_VALUE(present, "load_state: there is no folder ", path);
      found.push_back(
          {json_of_path(path), internal::value_or_throw(check_checkpoint(files, path)).id});
      return found.dump();
    }
    TORCH_CHECK_VALUE(configuration_.automatic_checkpoint_naming,
                      "load_state needs an input_dir, or ProjectConfiguration's "
                      "automatic_checkpoint_naming");
    const std::string folder = checkpoints_folder();
    if (!writes_shared()) return "";
    const FoundCheckpoints all = internal::value_or_throw(find_checkpoints(files, folder));
    const int64_t latest = all.complete.empty() ? -1 : all.complete.back().number;
    for (const auto& [path, number, why] : all.skipped) {
      // An unreachable checkpoint may be the latest.
      if (number > latest && !internal::is_damage(why)) internal::check_ok(why);
      logger(runtime).warning(absl::StrCat("load_state skips a checkpoint: ", why.message()),
                              {.main_process_only = false});
    }
    for (const FoundCheckpoint& each :
         options.best ? from_worst_to_best(all.complete) : all.complete) {
      found.push_back({json_of_path(each.path), each.manifest.id});
    }
    // To begin anew beside damaged ones would fail at a save that needs one of their names. What a
    // crashed save left has another name, and the next save removes it.
    for (const auto& [path, number, why] : all.skipped) {
      const bool is_named = path == join_path(folder, absl::StrCat(kPrefix, number));
      if (!is_named || !all.complete.empty() || !may_be_absent) continue;
      throw CheckpointError(absl::StrCat("load_latest_state: no checkpoint in ", folder,
                                         " is complete: ", std::string(why.message()),
                                         ". Remove the folder to begin anew"));
    }
    TORCH_CHECK_VALUE(!found.empty() || may_be_absent,
                      "load_state: there is no complete checkpoint ",
                      options.best ? "with a metric in " : "in ", folder);
    return found.dump();
  });
  const auto has_none = [](const RankOutcome& rank) {
    return rank.text.empty() || rank.text == Json::array().dump();
  };
  if (std::ranges::all_of(all, has_none)) return {};
  const std::vector<Json> common = intersection_of(all);
  if (common.empty()) {
    throw CheckpointError("load_state: no checkpoint exists on all nodes");
  }
  std::vector<std::string> paths;
  for (const Json& each : common | std::views::reverse) {
    paths.push_back(path_of(each.at(0)));
  }
  return paths;
}

void StateSaver::load_from(const std::string& checkpoint, const LoadStateOptions& options) {
  FileSystem& files = state_.runtime().files();
  const CheckpointReader reader(files, checkpoint,
                                internal::value_or_throw(check_checkpoint(files, checkpoint)));
  if (writes_shared()) {
    internal::check_ok(verify_other_files(files, checkpoint, reader.manifest()));
  }
  const internal::TrainingParts parts = this->parts();
  Modules models = parts.models();
  load_hooks_.call(models, checkpoint);
  parts.check(reader, models);
  parts.load_models(reader, models, options.strict);
  const bool on_device =
      options.map_location ? *options.map_location == "on_device" : state_.use_distributed();
  parts.load(reader, on_device ? state_.device() : c10::Device(c10::kCPU));
  configuration_.iteration = next_iteration(reader.manifest().iteration);
}

int64_t StateSaver::next_iteration(int64_t loaded) const {
  int64_t next = loaded + 1;
  if (!configuration_.automatic_checkpoint_naming || !configuration_.project_dir) return next;
  const auto names = state_.runtime().files().list(checkpoints_folder());
  if (!names.ok()) return next;
  for (const std::string& name : *names) {
    const auto number = checkpoint_number(name);
    if (number && name == absl::StrCat(kPrefix, *number)) next = std::max(next, *number + 1);
  }
  return next;
}

std::optional<std::string> StateSaver::load(const std::string& input_dir,
                                            const LoadStateOptions& options, bool may_be_absent) {
  wait();
  if (!input_dir.empty()) align_nodes({.caller = kSave, .folder = input_dir});
  const std::vector<std::string> checkpoints = candidates(input_dir, options, may_be_absent);
  if (checkpoints.empty()) return std::nullopt;
  std::string reasons;
  for (const std::string& checkpoint : checkpoints) {
    const RankOutcome own = internal::outcome_of([&] {
      load_from(checkpoint, options);
      return absl::StrCat(configuration_.iteration);
    });
    const std::vector<RankOutcome> all = exchange_outcomes(state_.group(), kLoad, own);
    const std::string failed = failures(all);
    if (failed.empty()) {
      // Nodes with disks of their own may hold checkpoints with higher numbers.
      for (const RankOutcome& rank : all) {
        int64_t iteration = 0;
        if (absl::SimpleAtoi(rank.text, &iteration)) {
          configuration_.iteration = std::max(configuration_.iteration, iteration);
        }
      }
      return checkpoint;
    }
    const bool may_go_on = input_dir.empty() && !internal::any(all, RankStatus::kFailed) &&
                           !internal::any(all, RankStatus::kUnreachable);
    if (!may_go_on) throw_failures(all, kLoad, own);
    damaged_.insert(checkpoint);
    // An older checkpoint overwrites everything that was loaded.
    absl::StrAppend(&reasons, "\n", checkpoint, ": ", failed);
    logger(state_.runtime()).warning(absl::StrCat("load_state skips ", checkpoint, ": ", failed));
  }
  throw CheckpointError(absl::StrCat("load_state: every checkpoint is damaged", reasons));
}

}  // namespace accelerate
