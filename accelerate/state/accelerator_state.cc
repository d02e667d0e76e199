#include "accelerate/state/accelerator_state.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include <ATen/ops/full.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/platform/environment.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr char kMixedPrecision[] = "ACCELERATE_MIXED_PRECISION";

// The node of each rank. Every rank can compute it if nodes have equally many ranks, and then no
// numbers are gathered, which differ by rank: a folded cluster refuses that. Collective.
std::vector<int> nodes_of_ranks(const PartialState& state) {
  const Topology& own = state.runtime().topology();
  const int ranks_per_node = std::max(1, own.world_size / own.num_nodes);
  const bool differs =
      own.local_world_size != ranks_per_node || own.node_rank != own.rank / ranks_per_node;
  const at::Tensor any_differs =
      reduce_tensor(state.group(), at::full({1}, differs ? 1 : 0, at::kLong), Reduction::kMax);
  std::vector<int> nodes;
  if (any_differs.item<int64_t>() == 0) {
    for (int rank = 0; rank < own.world_size; ++rank) nodes.push_back(rank / ranks_per_node);
    return nodes;
  }
  const at::Tensor all =
      gather_tensor(state.group(), at::full({1}, own.node_rank, at::kLong)).cpu();
  const auto* data = all.const_data_ptr<int64_t>();
  nodes.assign(data, data + all.numel());
  return nodes;
}

bool divides(ShardingStrategy strategy) { return strategy != ShardingStrategy::kNoShard; }

// The ranks of a strategy without a parallelism_config: all have shards, or those of each node.
// Collective.
MeshSizes mesh_of(ShardingStrategy strategy, const PartialState& state) {
  const int ranks = state.num_processes();
  if (!divides(strategy) || ranks == 1) return {};
  if (!is_hybrid(strategy)) return {.dp_shard = ranks};
  const std::vector<int> nodes = nodes_of_ranks(state);
  const auto in_first = static_cast<int>(std::ranges::count(nodes, nodes.front()));
  for (int rank = 0; rank < ranks; ++rank) {
    TORCH_CHECK_VALUE(nodes[rank] == nodes[rank / in_first * in_first] && ranks % in_first == 0 &&
                          std::ranges::count(nodes, nodes[rank]) == in_first,
                      "fsdp_plugin: ", to_string(strategy), " divides a model among the ranks of ",
                      "each node, but nodes have different numbers of ranks; give a "
                      "parallelism_config with dp_replicate_size and dp_shard_size");
  }
  return {.dp_replicate = ranks / in_first, .dp_shard = in_first};
}

// What works in place of a configuration that divides models, where the strategy does not.
std::string without_shards(const ParallelismConfig& config) {
  RankLayout layout = config.layout();
  layout.dp_replicate *= layout.dp_shard;
  layout.dp_shard = layout.ep = 1;
  if (layout.num_ranks() == layout.dp_replicate) {
    return "leave the parallelism_config out, or choose FULL_SHARD";
  }
  if (find_illegal(layout)) return "choose FULL_SHARD";
  return absl::StrCat("the nearest layout that works: ", layout.text(), "; or choose FULL_SHARD");
}

void check_agrees_with_mesh(const FullyShardedDataParallelPlugin& plugin,
                            const ParallelismConfig& config, int ranks) {
  const ShardingStrategy strategy = plugin.strategy();
  if (ranks == 1 && config.total_size() == 1) return;
  // Where models are divided at all, ranks along cp and sp divide them too.
  const bool agrees =
      divides(strategy) ? config.enabled(MeshAxis::kDpShardCpSp) : !config.divides_models();
  if (agrees) return;
  const std::string experts =
      config.ep_enabled() ? absl::StrCat(" and its ep_size ", config.ep_size()) : "";
  TORCH_CHECK_VALUE(
      false, "fsdp_plugin: its strategy is ", to_string(strategy),
      ", but the parallelism_config's dp_shard_size is ", config.dp_shard_size(),
      divides(strategy)
          ? ", so nothing would be divided; set it to the number of ranks that share "
            "a model"
          : absl::StrCat(experts, ", so models are divided; ", without_shards(config)));
}

// Why it costs time to divide layers among these ranks, and what costs less.
std::string crossing_text(const Mesh& mesh, const std::vector<int>& crossing,
                          const std::vector<int>& nodes) {
  std::map<int, int> ranks_by_node;
  for (const int node : nodes) ++ranks_by_node[node];
  int least = static_cast<int>(nodes.size());
  int most = 0;
  int common = 0;
  for (const auto& [node, ranks] : ranks_by_node) {
    least = std::min(least, ranks);
    most = std::max(most, ranks);
    common = std::gcd(common, ranks);
  }
  const int tp_size = mesh.size(MeshAxis::kTp);
  int nearest = std::min(tp_size, common);
  while (common % nearest != 0) --nearest;
  if (nearest == 1) nearest = common;
  return absl::StrCat("tp of ", rank_list(crossing), " crosses nodes, which have ", least,
                      most == 1       ? " rank each"
                      : least == most ? " ranks each"
                                      : absl::StrCat(" to ", most, " ranks"),
                      ": the network between nodes carries the activations of every layer",
                      nearest == 1 || nearest == tp_size
                          ? ""
                          : absl::StrCat("; a tp_size of ", nearest, " does not"));
}

// Says once where the mesh's ranks are. Collective.
void announce(const Mesh& mesh, const PartialState& state) {
  Runtime& runtime = state.runtime();
  const std::vector<int> nodes = nodes_of_ranks(state);
  if (!state.is_main_process()) return;
  runtime.write_console(ConsoleStream::kErr, placement_text(mesh, nodes));
  const std::vector<int> crossing = first_group_across_nodes(mesh, MeshAxis::kTp, nodes);
  if (!crossing.empty()) TORCH_WARN(crossing_text(mesh, crossing, nodes));
}

// Empty for none.
std::string text_of(const DeepSpeedPlugins& plugins) {
  const auto append = [](std::string* out, const auto& each) {
    absl::StrAppend(out, each.first.empty() ? "" : absl::StrCat(each.first, ": "),
                    accelerate::to_text(each.second));
  };
  return absl::StrJoin(plugins, "; ", append);
}

std::string text_of(const FullyShardedDataParallelPlugin* plugin) {
  return plugin == nullptr ? "" : accelerate::to_text(*plugin);
}
std::string text_of(const MegatronLMPlugin* plugin) {
  return plugin == nullptr ? "" : json_text(plugin->megatron_lm_default_args);
}

// The text is empty for an option that is not given.
void check_same(const char* option, const std::string& text, const std::string& earlier) {
  TORCH_CHECK_VALUE(text.empty() || text == earlier, option, " (", text,
                    ") contradicts an earlier Accelerator of this rank, which set ",
                    earlier.empty() ? "none" : earlier);
}

}  // namespace

std::optional<PrecisionType> mixed_precision_from_env(const Environment& environment) {
  const std::string text = environment.get_or(kMixedPrecision, "");
  if (text.empty()) return std::nullopt;
  TORCH_CHECK_VALUE(contains<PrecisionType>(text), kMixedPrecision, "=\"", text,
                    "\" is none of no, fp8, fp16, bf16");
  return from_string<PrecisionType>(text);
}

AcceleratorState& AcceleratorState::get(Runtime& runtime) {
  AcceleratorState* state = find(runtime);
  TORCH_CHECK_VALUE(state != nullptr, "there is no AcceleratorState: make an Accelerator first");
  return *state;
}

AcceleratorState* AcceleratorState::find(const Runtime& runtime) {
  auto* state = runtime.find_shared<AcceleratorState>();
  return state != nullptr && state->initialized() ? state : nullptr;
}

void AcceleratorState::reset(Runtime& runtime, bool reset_partial_state) {
  if (auto* state = runtime.find_shared<AcceleratorState>()) state->record_.reset();
  if (reset_partial_state) PartialState::reset(runtime);
}

AcceleratorState& AcceleratorState::initialize(Runtime& runtime,
                                               const AcceleratorStateOptions& options) {
  PartialState& partial_state =
      PartialState::get(runtime, {.cpu = options.cpu, .init = options.init});
  auto& state = runtime.shared<AcceleratorState>(
      [&] { return std::unique_ptr<AcceleratorState>(new AcceleratorState(partial_state)); });
  if (state.record_) {
    state.check_agrees(options);
  } else {
    state.record_ = make_record(partial_state, options);
    ++state.generation_;
  }
  return state;
}

AcceleratorState::Record AcceleratorState::make_record(const PartialState& partial_state,
                                                       const AcceleratorStateOptions& options) {
  Runtime& runtime = partial_state.runtime();
  const auto precision = options.mixed_precision ? options.mixed_precision
                                                 : mixed_precision_from_env(runtime.environment());
  Record record;
  record.mixed_precision = precision.value_or(PrecisionType::kNo);
  record.distributed_type = partial_state.distributed_type();
  if (options.dynamo_plugin) record.dynamo_plugin = *options.dynamo_plugin;
  apply_deepspeed_config(record, partial_state, options);
  apply_megatron(record, partial_state, options);
  record.requested = options.parallelism_config;
  record.parallelism_config = options.parallelism_config;
  if (options.fsdp_plugin != nullptr) {
    record.requested_fsdp = text_of(options.fsdp_plugin);
    record.fsdp_plugin = std::make_shared<FullyShardedDataParallelPlugin>(*options.fsdp_plugin);
    if (record.mixed_precision != PrecisionType::kNo) {
      record.fsdp_plugin->set_mixed_precision(accelerate::to_string(record.mixed_precision));
    }
    TORCH_CHECK_VALUE(record.distributed_type != DistributedType::kXla,
                      "fsdp_plugin: TPUs do not divide models in this version");
    if (partial_state.use_distributed()) record.distributed_type = DistributedType::kFsdp;
  }
  if (!record.parallelism_config) {
    if (record.fsdp_plugin == nullptr) return record;
    const MeshSizes sizes = mesh_of(record.fsdp_plugin->strategy(), partial_state);
    if (sizes.dp_shard == 1) return record;
    record.device_mesh =
        std::make_unique<const DeviceMesh>(Mesh(sizes), runtime, partial_state.group_options());
    announce(record.device_mesh->mesh(), partial_state);
    return record;
  }
  ParallelismConfig& config = *record.parallelism_config;
  if (record.fsdp_plugin != nullptr) {
    check_agrees_with_mesh(*record.fsdp_plugin, config, partial_state.num_processes());
  }
  RankLayout layout = config.layout();
  layout.zero = !record.deepspeed_plugins.empty();
  check_layout(layout);
  // Sharding by the configuration alone is that of FSDP 2, which TPUs do without.
  const bool is_sharded =
      record.fsdp_plugin != nullptr ||
      (config.divides_models() && record.distributed_type != DistributedType::kXla);
  if (is_sharded && partial_state.use_distributed() && record.megatron_lm_plugin == nullptr) {
    record.distributed_type = DistributedType::kFsdp;
  }
  const bool divides_models =
      record.fsdp_plugin == nullptr || divides(record.fsdp_plugin->strategy());
  // HF Accelerate divides neither layers, sequences nor stages among ranks on CPUs.
  const bool divides_on_cpus = (config.tp_enabled() || config.cp_enabled() || config.sp_enabled() ||
                                config.pp_enabled() || record.megatron_lm_plugin != nullptr) &&
                               partial_state.distributed_type() == DistributedType::kMultiCpu;
  if (config.sp_enabled()) config.fill_replicas(partial_state.num_processes());
  config.validate_accelerator({.multi_device = partial_state.multi_device() || divides_on_cpus,
                               .num_processes = partial_state.num_processes(),
                               .is_fsdp2 = is_sharded && divides_models,
                               .distributed_type = record.distributed_type,
                               .is_main_process = partial_state.is_main_process()});
  if (config.total_size() == 1) return record;
  record.device_mesh =
      std::make_unique<const DeviceMesh>(Mesh(config), runtime, partial_state.group_options());
  announce(record.device_mesh->mesh(), partial_state);
  return record;
}

void AcceleratorState::apply_deepspeed_config(Record& record, const PartialState& partial_state,
                                              const AcceleratorStateOptions& options) {
  if (options.deepspeed_plugins.empty()) return;
  TORCH_CHECK_VALUE(record.distributed_type != DistributedType::kXla,
                    "deepspeed_plugin: TPUs do not divide models in this version");
  record.requested_deepspeed = text_of(options.deepspeed_plugins);
  record.deepspeed_plugins = options.deepspeed_plugins;
  for (auto& [name, plugin] : record.deepspeed_plugins) {
    plugin.set_mixed_precision(accelerate::to_string(record.mixed_precision));
    plugin.set_deepspeed_weakref();
    plugin.is_selected = false;
  }
  record.deepspeed_plugins.front().second.select(/*from_accelerator_state=*/true);
  record.distributed_type = DistributedType::kDeepSpeed;
}

void AcceleratorState::apply_megatron(Record& record, const PartialState& partial_state,
                                      const AcceleratorStateOptions& options) {
  if (options.megatron_lm_plugin == nullptr) return;
  TORCH_CHECK_VALUE(record.distributed_type != DistributedType::kXla,
                    "megatron_lm_plugin: TPUs do not divide models in this version");
  record.requested_megatron = text_of(options.megatron_lm_plugin);
  record.megatron_lm_plugin = std::make_shared<MegatronLMPlugin>(*options.megatron_lm_plugin);
  record.megatron_lm_plugin->set_mixed_precision(accelerate::to_string(record.mixed_precision));
  if (partial_state.use_distributed()) record.distributed_type = DistributedType::kMegatronLm;
}

void AcceleratorState::check_agrees(const AcceleratorStateOptions& options) const {
  const Record& now = record();
  // ZeRO's configuration decides.
  TORCH_CHECK_VALUE(
      !now.deepspeed_plugins.empty() ||
          options.mixed_precision.value_or(now.mixed_precision) == now.mixed_precision,
      "mixed_precision=", accelerate::to_string(*options.mixed_precision),
      " contradicts an earlier Accelerator of this rank, which set ",
      accelerate::to_string(now.mixed_precision));
  const std::optional<ParallelismConfig>& config = options.parallelism_config;
  TORCH_CHECK_VALUE(!config || config == now.requested || config == now.parallelism_config,
                    "parallelism_config=", json_text(config->to_json()),
                    " contradicts an earlier Accelerator of this rank, which set ",
                    now.requested ? json_text(now.requested->to_json()) : "none");
  check_same("fsdp_plugin", text_of(options.fsdp_plugin), now.requested_fsdp);
  check_same("dynamo_plugin", options.dynamo_plugin ? to_text(*options.dynamo_plugin) : "",
             to_text(now.dynamo_plugin));
  check_same("deepspeed_plugin", text_of(options.deepspeed_plugins), now.requested_deepspeed);
  check_same("megatron_lm_plugin", text_of(options.megatron_lm_plugin), now.requested_megatron);
}

PrecisionType AcceleratorState::mixed_precision() const {
  const DeepSpeedPlugin* plugin = deepspeed_plugin();
  if (plugin == nullptr) return record().mixed_precision;
  if (plugin->config.is_true("fp16.enabled")) return PrecisionType::kFp16;
  return plugin->config.is_true("bf16.enabled") ? PrecisionType::kBf16 : PrecisionType::kNo;
}

DeepSpeedPlugin* AcceleratorState::deepspeed_plugin() const {
  for (auto& [name, plugin] : record().deepspeed_plugins) {
    if (plugin.selected()) return &plugin;
  }
  return nullptr;
}

std::vector<std::string> AcceleratorState::deepspeed_plugin_names() const {
  std::vector<std::string> names;
  for (const auto& [name, plugin] : record().deepspeed_plugins) names.push_back(name);
  return names;
}

DeepSpeedPlugin& AcceleratorState::get_deepspeed_plugin(const std::string& name) const {
  for (auto& [own, plugin] : record().deepspeed_plugins) {
    if (own == name) return plugin;
  }
  TORCH_CHECK_VALUE(false, "there is no deepspeed_plugin \"", name, "\", only [\"",
                    absl::StrJoin(deepspeed_plugin_names(), "\", \""), "\"]");
}

void AcceleratorState::select_deepspeed_plugin(const std::string& name) {
  DeepSpeedPlugin& chosen = get_deepspeed_plugin(name);
  for (auto& [own, plugin] : record().deepspeed_plugins) plugin.is_selected = false;
  chosen.select(/*from_accelerator_state=*/true);
}

bool AcceleratorState::is_fsdp2() const {
  if (distributed_type() != DistributedType::kFsdp) return false;
  return fsdp_plugin() == nullptr || fsdp_plugin()->version() == 2;
}

DataShare AcceleratorState::data_share() const {
  if (const DeviceMesh* mesh = device_mesh()) return mesh->data_share();
  return {.index = process_index(), .count = num_processes(), .group = group()};
}

ProcessGroupPtr AcceleratorState::sequence_group() const {
  const DeviceMesh* mesh = device_mesh();
  return mesh != nullptr ? mesh->group(AxisSet{MeshAxis::kCp, MeshAxis::kSp}) : nullptr;
}

Mesh AcceleratorState::mesh() const {
  if (const DeviceMesh* mesh = device_mesh()) return mesh->mesh();
  return Mesh(MeshSizes{.dp_replicate = num_processes()});
}

RankRoles AcceleratorState::roles(AxisSet divides) const {
  const DeviceMesh* mesh = device_mesh();
  if (mesh == nullptr) return rank_roles(data_share());
  auto& made = record().roles;
  const auto found = std::ranges::find(made, divides, &std::pair<AxisSet, RankRoles>::first);
  if (found != made.end()) return found->second;
  const bool divides_rows =
      fsdp_plugin() != nullptr && accelerate::divides(fsdp_plugin()->strategy());
  return made.emplace_back(divides, rank_roles(*mesh, divides, group(), divides_rows)).second;
}

void AcceleratorState::destroy_process_group(ProcessGroupPtr group) {
  if (!group && !fork_launched()) {
    record_->roles.clear();
    record_->device_mesh.reset();
  }
  partial_state().destroy_process_group(std::move(group));
}

std::string AcceleratorState::to_string() const {
  std::ostringstream text;
  text << "Distributed environment: " << accelerate::to_string(distributed_type());
  if (!backend().empty()) text << ", backend " << backend();
  text << "\nNum processes: " << num_processes() << "\nProcess index: " << process_index()
       << "\nLocal process index: " << local_process_index() << "\nDevice: " << device()
       << "\nMixed precision type: " << accelerate::to_string(mixed_precision()) << '\n';
  return text.str();
}

DeepSpeedPlugin& get_active_deepspeed_plugin(const AcceleratorState& state) {
  DeepSpeedPlugin* const plugin = state.deepspeed_plugin();
  TORCH_CHECK_VALUE(plugin != nullptr,
                    "Couldn't retrieve the active `DeepSpeedPlugin` as none were enabled: give the "
                    "Accelerator a deepspeed_plugin, or select one by "
                    "AcceleratorState::select_deepspeed_plugin");
  return *plugin;
}

}  // namespace accelerate
