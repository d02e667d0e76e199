#include "simulator/cluster/cluster.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/version.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/host.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/values/texts.h"
#include "simulator/c10d/communicators.h"
#include "simulator/c10d/fabric.h"
#include "simulator/c10d/link_record.h"
#include "simulator/cluster/cluster_setup.h"
#include "simulator/cluster/failure_dump.h"
#include "simulator/cluster/fault_actor.h"
#include "simulator/cluster/libtorch_state.h"
#include "simulator/cluster/sim_runtime.h"
#include "simulator/core/scheduler.h"
#include "simulator/device/install.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/disk_queue.h"
#include "simulator/disk/file_faults.h"
#include "simulator/faults/deaths.h"
#include "simulator/faults/fault_run.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/hardware/presets.h"
#include "simulator/report/report.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

const std::shared_ptr<SimDisk>& disk_of(const ClusterOptions& options, int node) {
  return options.node_disks.empty() ? options.disk : options.node_disks[node];
}

// A device's memory, as its driver shows it; 0 without devices.
int64_t memory_capacity(const ClusterSpec& spec) {
  if (!spec.device) return 0;
  const std::optional<DriverMemory> driver = driver_memory_of(*spec.device);
  return driver ? driver->visible_bytes : spec.device->memory_bytes;
}

// A disk's work on the tracks of the rank that asked for it.
void record_transfer(Recorder& recorder, int rank, const DiskTransfer& transfer) {
  recorder.slice({.start_ns = transfer.start_ns,
                  .end_ns = transfer.end_ns,
                  .rank = rank,
                  .stream = transfer.writes ? kDiskWriteStream : kDiskStream,
                  .name = recorder.intern(transfer.writes ? "write" : "read"),
                  .kind = SliceKind::kDisk});
  recorder.link(rank, transfer.writes ? LinkKind::kDiskWrite : LinkKind::kDiskRead,
                static_cast<double>(transfer.bytes), transfer.start_ns, transfer.end_ns);
}

// The links of the cluster, and its disks: one a node, unless all nodes have the same.
std::vector<LinkClass> links_of(const ClusterSpec& spec, const ClusterOptions& options) {
  std::vector<LinkClass> links = link_classes(spec);
  if (!spec.disk.takes_time()) return links;
  const bool is_shared = options.node_disks.empty() && options.disk != nullptr;
  for (const LinkKind kind : {LinkKind::kDiskRead, LinkKind::kDiskWrite}) {
    links.push_back({kind, spec.disk.bytes_per_second, is_shared ? 0 : 1});
  }
  return links;
}

Environment rank_environment(const Environment& base, const Topology& topology) {
  Environment environment = base;
  export_topology(topology, environment);
  // Simulated ranks share a process, so they must not look for a rendezvous.
  environment.unset(env::kMasterAddr);
  environment.unset(env::kMasterPort);
  environment.unset(env::kStoreListenFd);
  return environment;
}

// Everything one run needs; it is destroyed when the run is over.
class Run {
 public:
  Run(const ClusterSpec& spec, const ClusterOptions& options, const FoldPlan& folds,
      std::string headline, Recorder* recorder, const std::shared_ptr<OverlayFiles>& in_memory,
      RunWitness* witness)
      : spec_(spec),
        executed_(folds.executed()),
        detect_leaks_(options.detect_leaks),
        recorder_(recorder),
        witness_(witness),
        fabric_(std::make_shared<Fabric>(spec, folds,
                                         Fabric::Options{.headline = std::move(headline),
                                                         .recorder = recorder,
                                                         .detect_races = options.detect_races,
                                                         .detect_drift = options.detect_drift,
                                                         .time_outs = options.time_outs,
                                                         .semantics = options.semantics})),
        states_(executed_.num_tasks()),
        failures_(executed_.num_tasks()),
        scheduler_(executed_.num_tasks(), options.seed,
                   {.on_resume = [this](int task) { states_[task].install(); },
                    .on_suspend = [this](int task) { states_[task].capture(); },
                    .on_stall = [this] { return stalled(); },
                    .next_event_ns = [this] { return fabric_->next_event_ns(); },
                    .run_event = [this] { return run_event(*fabric_); },
                    .waits_for_deadlines = fabric_->waits_for_time_outs()}),
        deaths_(std::make_shared<Deaths>(spec.world_size())),
        actor_(make_actor(options)),
        faults_(std::make_shared<FaultPlan>(options.file_faults, spec.world_size(), options.seed,
                                            disk_of(options, 0), file_hooks(options))) {
    fabric_->attach(
        {.scheduler = &scheduler_,
         .on_use = [this](int rank) { runtime_of(rank).use(); },
         .in_background = [this](int rank) { return runtime_of(rank).background().in_step(); },
         .faults = actor_.get(),
         .witness = witness});
    scheduler_.set_witness(witness);
    if (spec.device) {
      install_sim_device();
      cast_like_cpu(spec.device->family == "cpu");
      devices_.resize(static_cast<size_t>(spec.world_size()) * spec.devices_per_rank);
      for (int rank : executed_.ranks()) {
        const int first = rank * spec.devices_per_rank;
        for (int number = first; number < first + spec.devices_per_rank; ++number) {
          devices_[number] = &SimDevice::numbered(number);
        }
      }
    }
    for (int rank : executed_.ranks()) {
      const RankPlace place = place_of(rank);
      const auto devices = place.node_devices.subspan(place.first_device, place.num_devices);
      for (SimDevice* device : devices) {
        device->reset(spec, scheduler_.clock_ns(executed_.task_of(rank)), recorder);
        device->set_await_collectives([this] { await_collectives(*fabric_); });
        device->set_faults(actor_.get());
        if (options.numerics == Numerics::kShapes) {
          device->compute_shapes(options.largest_real_tensor, options.unknown_value);
        }
      }
      fabric_->spot_check().set_devices(rank, devices);
      const Topology topology = Topology::uniform(rank, spec.num_nodes, spec.ranks_per_node);
      runtimes_.push_back(std::make_unique<SimRuntime>(
          fabric_, topology, rank_environment(options.environment, topology), options.seed, devices,
          disk_of(options, topology.node_rank), faults_, queue_of_node(topology.node_rank, options),
          in_memory));
      runtimes_.back()->set_faults(actor_.get());
      ranks_.push_back(std::make_unique<Rank>(rank, *runtimes_.back(), devices));
    }
  }

  ~Run() {
    faults_->end();
    for (auto& [disk_of_node, queue] : queues_) queue->end();
    fabric_->attach({});
    for (SimDevice* device : devices_) {
      if (device != nullptr) device->detach();
    }
  }

  void operator()(const std::function<void(Rank&)>& body) {
    LibtorchState before;
    before.capture();
    scheduler_.run([&](int task) { run_task(task, body); });
    set_all_times(*fabric_);
    end_devices();
    before.install();
  }

  std::vector<RankFailure> failures() const {
    std::vector<RankFailure> failures;
    for (int task = 0; task < executed_.num_tasks(); ++task) {
      if (!failures_[task]) continue;
      failures.push_back(
          {executed_.rank_of(task), exception_text(failures_[task]), failures_[task]});
    }
    std::ranges::stable_sort(
        failures, {}, [](const RankFailure& failure) { return cause_of(failure.exception); });
    return failures;
  }

  const Fabric& fabric() const { return *fabric_; }
  const std::vector<std::string>& fired_file_faults() const { return faults_->fired(); }
  // Empty without a plan.
  std::vector<FaultOutcome> fault_outcomes() {
    if (actor_ == nullptr) return {};
    return actor_->run().outcomes(absl::ToInt64Nanoseconds(elapsed()));
  }
  std::vector<SiteCounts> sites() const {
    return actor_ == nullptr ? std::vector<SiteCounts>() : actor_->run().all_counts();
  }
  Rank& rank_of_task(int task) { return *ranks_[task]; }
  absl::Duration elapsed() {
    int64_t end_ns = 0;
    for (int task = 0; task < executed_.num_tasks(); ++task) {
      end_ns = std::max(end_ns, *scheduler_.clock_ns(task));
    }
    return absl::Nanoseconds(end_ns);
  }

 private:
  // Null without anything to do.
  std::unique_ptr<FaultActor> make_actor(const ClusterOptions& options) {
    if (options.faults.empty() && !options.count_sites && witness_ == nullptr) return nullptr;
    return std::make_unique<FaultActor>(
        options.faults, grounds_of(spec_, options),
        FaultActor::Surroundings{
            .fabric = *fabric_,
            .deaths = deaths_,
            .devices_of = [this](int rank) { return ranks_[executed_.task_of(rank)]->devices(); },
            .wake_all = [this] { wake_all(); },
            .witness = witness_});
  }

  FaultPlan::Hooks file_hooks(const ClusterOptions& options) {
    FaultPlan::Hooks hooks{.before_operation = [this](int rank) { runtime_of(rank).use_files(); },
                           .machine_died = [this] { wake_all(); },
                           .deaths = deaths_,
                           .sites = actor_.get()};
    if (options.node_disks.empty()) return hooks;
    hooks.disk_of = [this, &options](int rank) {
      return disk_of(options, rank / spec_.ranks_per_node).get();
    };
    hooks.machine_of = [size = spec_.ranks_per_node, world = spec_.world_size()](int rank) {
      const int first = rank / size * size;
      return IndexSet{.ranges = {{first, first + size - 1}}}.below(world);
    };
    return hooks;
  }

  // Among its node's devices, which are neighbours in devices_.
  RankPlace place_of(int rank) const {
    if (devices_.empty()) return {.rank = rank};
    const int node = rank / spec_.ranks_per_node;
    const int local_rank = rank % spec_.ranks_per_node;
    return {.rank = rank,
            .node_devices = absl::MakeConstSpan(devices_).subspan(node * spec_.devices_per_node(),
                                                                  spec_.devices_per_node()),
            .first_device = local_rank * spec_.devices_per_rank,
            .num_devices = spec_.devices_per_rank};
  }

  // A collective that its rank has not waited for may have got its time after the rank's end.
  void end_devices() {
    for (const auto& rank : ranks_) {
      for (SimDevice* device : rank->devices()) {
        if (device->busy_until_ns() <= device->host_ns()) continue;
        device->end();
        if (recorder_ != nullptr) recorder_->end_rank(rank->index(), device->host_ns());
      }
    }
  }

  void run_task(int task, const std::function<void(Rank&)>& body) {
    const int rank = executed_.rank_of(task);
    const RankScope rank_scope(place_of(rank));
    RuntimeScope scope(*runtimes_[task]);
    std::string failure;
    try {
      if (actor_ != nullptr) actor_->progress(rank, FaultPoint::Kind::kStart);
      body(*ranks_[task]);
      fabric_->spot_check().compare_end(rank);
    } catch (...) {
      failures_[task] = std::current_exception();
      failure = exception_text(failures_[task]);
    }
    if (recorder_ != nullptr) record_memory(*ranks_[task]);
    if (rank == 0 && recorder_ != nullptr) record_samples(*ranks_[task]);
    // The rank's groups are destroyed on its own thread, as they would be in its own process.
    runtimes_[task]->clear_shared();
    // A dead rank has failed, even if the program caught the exception.
    if (runtimes_[task]->is_dead()) {
      failures_[task] = faults_->death(rank);
      failure = exception_text(failures_[task]);
    }
    for (SimDevice* device : ranks_[task]->devices()) {
      device->end();
      if (failure.empty() && detect_leaks_) check_leaks(task, *device, failure);
      if (recorder_ != nullptr) recorder_->end_rank(rank, device->host_ns());
    }
    const bool failed = !failure.empty();
    fabric_->end_rank(rank, std::move(failure));
    if (failed) end_job(rank);
  }

  void record_memory(Rank& rank) {
    for (SimDevice* device : rank.devices()) {
      device->record_work();
      for (const auto& [operation, count] : device->memory().allocated_by()) {
        recorder_->allocations(rank.index(), operation != nullptr ? operation : "", count.blocks,
                               count.bytes);
      }
      recorder_->modules(rank.index(), device->ordinal(), device->memory().modules());
      const std::optional<DriverFigures> figures = device->memory().driver_figures();
      if (!figures) continue;
      recorder_->driver_memory(rank.index(), figures->used_peak, figures->allocator.retries);
    }
  }

  void record_samples(Rank& rank) {
    const auto* counted = rank.runtime().find_shared<TrainingSamples>();
    const int64_t updates = rank.device() != nullptr ? rank.device()->memory().updates() : 0;
    if (counted == nullptr || updates == 0) return;
    recorder_->samples_per_step(static_cast<double>(counted->count) / static_cast<double>(updates));
  }

  // The Runtime of an executed rank.
  SimRuntime& runtime_of(int rank) { return *runtimes_[executed_.task_of(rank)]; }

  // The queue of the node's disk, which may be that of several nodes, or else of the machine's
  // files.
  const std::shared_ptr<DiskQueue>& queue_of_node(int node, const ClusterOptions& options) {
    const SimDisk* disk = disk_of(options, node).get();
    std::shared_ptr<DiskQueue>& queue = queues_[{disk, disk != nullptr ? 0 : node}];
    if (queue != nullptr) return queue;
    const bool takes_time = disk != nullptr || options.host_files_take_time;
    DiskQueue::Hooks hooks{
        .now_ns = [this](int rank) { return runtime_of(rank).background().now_ns(); },
        .wait_until = [this](int rank,
                             int64_t ns) { runtime_of(rank).background().wait_until(ns); }};
    if (actor_ != nullptr) {
      hooks.speed = [this](int rank) {
        return actor_->disk_speed(rank, runtime_of(rank).background().now_ns());
      };
    }
    if (executed_.folds()) {
      hooks.counts_for = [ranks = ranks_per_executed(node, options)](int rank) {
        return ranks.at(rank);
      };
    }
    if (recorder_ != nullptr) {
      hooks.on_operation = [this](int rank, const char* operation, int64_t bytes,
                                  int64_t waited_ns) {
        recorder_->file(rank, operation, bytes, waited_ns);
      };
      hooks.on_transfer = [this](int rank, const DiskTransfer& transfer) {
        record_transfer(*recorder_, rank, transfer);
      };
    }
    return queue =
               std::make_shared<DiskQueue>(takes_time ? spec_.disk : DiskModel{}, std::move(hooks));
  }

  // By executed rank of the node, or of the nodes that share its disk: for how many ranks of that
  // disk it counts. Ranks of a class share out those of the class that are not executed.
  std::map<int, int> ranks_per_executed(int node, const ClusterOptions& options) const {
    const SimDisk* disk = disk_of(options, node).get();
    std::map<int, std::vector<int>> executed_of_class;
    std::map<int, int> size_of_class;
    for (int rank = 0; rank < spec_.world_size(); ++rank) {
      const int its_node = rank / spec_.ranks_per_node;
      const bool shares =
          its_node == node || (disk != nullptr && disk_of(options, its_node).get() == disk);
      if (!shares) continue;
      const int number = executed_.class_of(rank);
      ++size_of_class[number];
      if (executed_.is_executed(rank)) executed_of_class[number].push_back(rank);
    }
    std::map<int, int> counts;
    for (const auto& [number, ranks] : executed_of_class) {
      const int share = size_of_class[number] / static_cast<int>(ranks.size());
      const int rest = size_of_class[number] % static_cast<int>(ranks.size());
      for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
        counts[ranks[i]] = share + (i < rest ? 1 : 0);
      }
    }
    return counts;
  }

  std::string stalled() {
    fabric_->save_states();
    return fabric_->stall_report();
  }

  // As mpirun does it when a rank has failed.
  void end_job(int failed) {
    if (!fabric_->waits_for_time_outs() || !fabric_->has_groups_of(Semantics::kMpi)) return;
    for (const int rank : executed_.ranks()) {
      if (rank == failed) continue;
      deaths_->kill(
          rank,
          absl::StrCat("rank ", rank, " was ended by mpirun, because rank ", failed, " failed"),
          /*is_cause=*/false);
    }
    wake_all();
  }

  // Wakes all ranks, so that blocked ranks see that they are dead.
  void wake_all() {
    for (int task = 0; task < executed_.num_tasks(); ++task) scheduler_.wake(task);
  }

  void check_leaks(int task, SimDevice& device, std::string& failure) {
    if (device.memory().in_use() == 0) return;
    failure =
        absl::StrCat(device.name(), " held ", binary_byte_text(device.memory().in_use()), " in ",
                     device.memory().num_blocks(),
                     " blocks when the rank ended: something outside the rank keeps tensors\n",
                     device.memory().holders());
    failures_[task] = std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, failure));
  }

  const ClusterSpec& spec_;
  const ExecutedRanks& executed_;
  const bool detect_leaks_;
  Recorder* const recorder_;
  RunWitness* const witness_;
  const std::shared_ptr<Fabric> fabric_;
  std::vector<LibtorchState> states_;
  std::vector<std::exception_ptr> failures_;
  Scheduler scheduler_;
  const std::shared_ptr<Deaths> deaths_;
  const std::unique_ptr<FaultActor> actor_;
  const std::shared_ptr<FaultPlan> faults_;
  std::map<std::pair<const SimDisk*, int>, std::shared_ptr<DiskQueue>> queues_;
  // By number; null for folded ranks. Complete before the first rank's place.
  std::vector<SimDevice*> devices_;
  std::vector<std::unique_ptr<SimRuntime>> runtimes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

void Rank::report(const std::string& name, at::Tensor value) {
  static_cast<SimRuntime&>(runtime_).use();
  if (value.is_privateuseone()) value = value.detach().cpu();
  const bool inserted = reports_.emplace(name, std::move(value)).second;
  TORCH_CHECK_VALUE(inserted, "rank ", index_, " reports \"", name, "\" twice");
}

void Rank::report(const std::string& name, double value) {
  report(name, at::scalar_tensor(value, at::kDouble));
}

Cluster::Cluster(absl::string_view spec, ClusterOptions options)
    : spec_(parsed(spec, options)),
      options_(std::move(options)),
      folds_(fold_plan(spec_, options_)),
      files_in_memory_(options_.numerics == Numerics::kShapes ? std::make_shared<OverlayFiles>()
                                                              : nullptr) {
  for (const FileFault& fault : options_.file_faults) {
    const std::string problem = fault.problem(world_size());
    TORCH_CHECK_VALUE(problem.empty(), "file fault ", fault.to_string(), ": ", problem);
    TORCH_CHECK_VALUE(options_.disk != nullptr, "file fault ", fault.to_string(),
                      ": the cluster has no simulated disk; see ClusterOptions::disk");
  }
  const std::optional<Mesh>& mesh = options_.mesh;
  TORCH_CHECK_VALUE(!mesh || mesh->num_ranks() == world_size(), "ClusterOptions::mesh has ",
                    mesh ? mesh->num_ranks() : 0, " ranks, and the cluster has ", world_size());
  const std::string problem = problem_on(options_.faults, grounds_of(spec_, options_));
  TORCH_CHECK_VALUE(problem.empty(), problem);
  TORCH_CHECK_VALUE(options_.node_disks.empty() ||
                        (options_.disk == nullptr &&
                         options_.node_disks.size() == static_cast<size_t>(spec_.num_nodes)),
                    "ClusterOptions::node_disks has ", options_.node_disks.size(), " disks for ",
                    spec_.num_nodes, " nodes, and `disk` must not be given as well");
  TORCH_CHECK_VALUE(
      !options_.host_files_take_time || (options_.disk == nullptr && options_.node_disks.empty()),
      "ClusterOptions::host_files_take_time is for a cluster without simulated ",
      "disks: with one, the machine's own files take no time");
  TORCH_CHECK_VALUE(options_.numerics == Numerics::kReal || spec_.device,
                    "numerics = shapes needs devices, whose tensors are without values, and ",
                    spec_.to_string(), " names none: name one, as in 2x4:h100");
  limit_intra_op_threads(options_.environment);
}

std::string Cluster::headline() const {
  return absl::StrCat("simulated cluster ", spec_.to_string(), ", seed ", options_.seed,
                      executed().folds() ? ", " : "",
                      executed().folds() ? executed().to_string() : "",
                      options_.numerics == Numerics::kShapes ? ", shapes only" : "");
}

std::string Cluster::repeat_hint() const {
  if (!options_.repeat_command.empty()) return options_.repeat_command;
  // Bazel sets TEST_TARGET to the label of the test.
  if (const char* target = std::getenv("TEST_TARGET")) {
    return absl::StrCat("tools/dev test ", target,
                        " --test_env=ACCELERATE_TEST_SEED=", options_.seed);
  }
  std::string faults;
  for (const FileFault& fault : options_.file_faults) {
    absl::StrAppend(&faults, faults.empty() ? ", .disk = disk, .file_faults = {" : ", ",
                    fault.to_string());
  }
  if (!faults.empty()) faults += "}";
  const char* numerics =
      options_.numerics == Numerics::kShapes ? ", .numerics = Numerics::kShapes" : "";
  std::string fold;
  if (options_.fold) {
    fold = absl::StrCat(", .fold = Folding{.spot_checks = ", options_.fold->spot_checks,
                        options_.fold->rank_0_apart ? ", .rank_0_apart = true" : "",
                        options_.fold->mesh ? ", .mesh = " : "",
                        options_.fold->mesh ? options_.fold->mesh->to_string() : "", "}");
  }
  if (!options_.faults.empty()) {
    absl::StrAppend(&faults, ", .faults = *simulator::FaultRules::parse(R\"plan(",
                    options_.faults.to_string(), ")plan\")",
                    options_.faults_must_strike ? ", .faults_must_strike = true" : "");
  }
  return absl::StrCat("simulator::Cluster(\"", spec_.to_string(), "\", {.seed = ", options_.seed,
                      numerics, fold, faults, "})");
}

void Cluster::run_on_every_rank(const std::function<void(Rank&)>& body) {
  static std::atomic_flag running;
  TORCH_CHECK(!running.test_and_set(),
              "a simulated cluster is running in this process already; one at a time, because "
              "they would share LibTorch's process-wide state");
  absl::Cleanup finished = [] { running.clear(); };
  std::optional<Recorder> recorder;
  if (options_.record || !options_.report_directory.empty()) {
    recorder.emplace(RecorderOptions{.world_size = world_size(),
                                     .ranks_per_node = spec_.ranks_per_node,
                                     .devices_per_rank = spec_.devices_per_rank});
    if (executed().folds()) recorder->fold(executed().counts_as());
  }
  std::optional<RunWitness> witness = make_witness();
  Run run(spec_, options_, folds_, headline(), recorder ? &*recorder : nullptr, files_in_memory_,
          witness ? &*witness : nullptr);
  run(body);
  elapsed_ = run.elapsed();
  fired_file_faults_ = run.fired_file_faults();
  fault_outcomes_ = run.fault_outcomes();
  sites_ = run.sites();
  std::vector<RankFailure> failures = run.failures();
  std::optional<std::string> unnoticed = unnoticed_failure(run.fabric());
  if (!unnoticed && options_.faults_must_strike) unnoticed = idle_fault(fault_outcomes_);
  std::string failure = failure_text(failures, unnoticed);
  if (witness) {
    const absl::Status written = witness->end();
    TORCH_CHECK(written.ok(), written.message());
    log_difference_ = witness->difference();
    if (failure.empty() && !witness->difference().empty()) {
      failure = absl::StrCat("the run differs from its log: ", witness->difference());
    }
  }
  if (!failure.empty() && !options_.dump_folder.empty()) {
    write_failure(options_.dump_folder,
                  {failure, repeat_hint(), log_header(), run.fabric(), options_.log_file});
  }
  if (recorder) {
    std::optional<RunFailure> told;
    if (!failure.empty()) {
      told = RunFailure{failure, run.fabric().ranks_at_failure(),
                        !failures.empty() && is_out_of_memory(failures[0].exception)};
    }
    write_report(*recorder, std::move(told));
  }
  reports_.clear();
  for (int task = 0; task < executed().num_tasks(); ++task) {
    reports_.push_back(std::move(run.rank_of_task(task).reports_));
  }
  if (!failure.empty()) throw ClusterError(failure, std::move(failures));
}

RunLog::Header Cluster::log_header() const {
  return {{"program", options_.program},
          {"cluster", spec_.to_string()},
          {"seed", absl::StrCat(options_.seed)},
          {"numerics", options_.numerics == Numerics::kShapes ? "shapes" : "real"},
          {"executed ranks", absl::StrCat(executed().num_tasks())},
          {"faults", options_.faults.to_string()},
          {"time-outs", accelerate::to_string(options_.time_outs)},
          {"semantics", accelerate::to_string(options_.semantics)},
          {"version of accelerate", kAccelerateVersion},
          {"version of LibTorch", TORCH_VERSION},
          {"instruction set", at::get_cpu_capability()},
          {"number of threads", absl::StrCat(at::get_num_threads())}};
}

// Empty if nothing of the run is to be written down or followed.
std::optional<RunWitness> Cluster::make_witness() {
  if (options_.log == nullptr && options_.replay == nullptr && options_.log_file.empty()) {
    return std::nullopt;
  }
  RunLog::Header header = log_header();
  const RunLog* const followed = options_.replay.get();
  if (followed != nullptr) {
    const std::string difference = followed->difference_of_header(header);
    TORCH_CHECK_VALUE(difference.empty(), difference);
  }
  const bool names_work = followed != nullptr ? followed->names_work() : options_.log_names_work;
  RunLog& log = options_.log != nullptr ? *options_.log : own_log_;
  log = RunLog(std::move(header), names_work);
  std::optional<RunWitness> witness(std::in_place, executed().ranks(), log, followed);
  if (!options_.log_file.empty()) {
    const absl::Status opened = witness->write_to(options_.log_file);
    TORCH_CHECK(opened.ok(), opened.message());
  }
  return witness;
}

// Called before failures are raised, because the report of a failed run is needed most.
void Cluster::write_report(Recorder& recorder, std::optional<RunFailure> failure) {
  trace_ = recorder.finish(
      {.topology = spec_.to_string(),
       .seed = options_.seed,
       .program = options_.program,
       .repeat_command = repeat_hint(),
       .versions = {{"accelerate", kAccelerateVersion}, {"libtorch", TORCH_VERSION}},
       .arithmetic = {{"instruction_set", at::get_cpu_capability()},
                      {"threads", absl::StrCat(at::get_num_threads())}},
       .device = spec_.device ? spec_.device->name : "",
       .memory_capacity = memory_capacity(spec_),
       .peak_flops = spec_.device ? spec_.device->flops(MathType::kBf16) : 0,
       .failure = std::move(failure),
       .faults = fault_lines()},
      links_of(spec_, options_));
  if (options_.report_directory.empty()) return;
  const absl::Status written =
      simulator::write_report(*trace_, options_.report_directory, options_.max_trace_slices);
  TORCH_CHECK(written.ok(), "no report: ", written.message());
}

const Trace& Cluster::trace() const {
  TORCH_CHECK_VALUE(trace_.has_value(),
                    "no trace: the run was not recorded; see ClusterOptions::record");
  return *trace_;
}

std::vector<std::string> Cluster::fault_lines() const {
  std::vector<std::string> lines;
  for (const FaultOutcome& outcome : fault_outcomes_) lines.push_back(outcome.to_string());
  return lines;
}

// The message of a ClusterError; empty if the run succeeded. `unnoticed` counts if no rank failed.
std::string Cluster::failure_text(const std::vector<RankFailure>& failures,
                                  const std::optional<std::string>& unnoticed) const {
  if (failures.empty()) {
    return unnoticed ? absl::StrCat(*unnoticed, "\nrepeat with: ", repeat_hint()) : "";
  }
  const RankFailure& first = failures.front();
  std::string message = absl::StrCat("rank ", first.rank, " failed: ", first.message);
  if (failures.size() > 1) {
    std::vector<int> others;
    for (const RankFailure& failure : failures) {
      if (failure.rank != first.rank) others.push_back(failure.rank);
    }
    std::sort(others.begin(), others.end());
    absl::StrAppend(&message, "\nalso failed: ", rank_list(others));
  }
  if (!fired_file_faults_.empty()) {
    absl::StrAppend(&message, "\nfile faults: ", absl::StrJoin(fired_file_faults_, "; "));
  }
  for (const std::string& line : fault_lines()) absl::StrAppend(&message, "\nfault: ", line);
  absl::StrAppend(&message, "\n", headline(), "; repeat with: ", repeat_hint());
  return message;
}

std::vector<at::Tensor> Cluster::reports(const std::string& name) const {
  std::vector<at::Tensor> values;
  std::vector<int> missing;
  for (int rank = 0; rank < (reports_.empty() ? 0 : world_size()); ++rank) {
    const auto& reported = reports_[executed().task_of(executed().representative_of(rank))];
    auto found = reported.find(name);
    if (found == reported.end()) {
      missing.push_back(rank);
    } else {
      values.push_back(found->second);
    }
  }
  TORCH_CHECK_VALUE(missing.empty() && !reports_.empty(), "\"", name, "\" was not reported by ",
                    missing.empty() ? std::string("any rank") : rank_list(missing));
  return values;
}

}  // namespace accelerate::simulator
