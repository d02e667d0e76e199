#include "launch/dialogue/questionnaire.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/log/absl_check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/message_text.h"
#include "launch/settings/endpoint.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::dialogue {
namespace {

using Words = std::vector<std::string>;

// A kind of machines: what the menu calls it, its word in a file, what its devices are called.
struct MachineType {
  const char* title;
  const char* word;
  const char* devices;
};

constexpr MachineType kMachineTypes[] = {
    {"no distributed training", "NO", "devices"},
    {"multi-CPU", "MULTI_CPU", "CPUs"},
    {"multi-XPU (never tried on hardware)", "MULTI_XPU", "XPUs"},
    {"multi-HPU (never tried on hardware)", "MULTI_HPU", "HPUs"},
    {"multi-GPU", "MULTI_GPU", "GPUs"},
    {"multi-NPU (never tried on hardware)", "MULTI_NPU", "NPUs"},
    {"multi-MLU (never tried on hardware)", "MULTI_MLU", "MLUs"},
    {"multi-SDAA (never tried on hardware)", "MULTI_SDAA", "SDAAs"},
    {"multi-MUSA (never tried on hardware)", "MULTI_MUSA", "MUSAs"},
    {"TPU (never tried on hardware)", "XLA", "TPU cores"},
    {"Neuron (never tried on hardware)", "MULTI_NEURON", "Neuron cores"},
    {"simulated cluster", "NO", "devices"},
};
constexpr size_t kNone = 0;
constexpr size_t kMultiCpu = 1;
constexpr size_t kMultiGpu = 4;
constexpr size_t kTpu = 9;
constexpr size_t kNeuron = 10;
constexpr size_t kSimulated = 11;

const Words kFsdpStrategies = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                               "HYBRID_SHARD_ZERO2"};
const Words kWrapPolicies = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};
const Words kPrefetches = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
const Words kStateDicts1 = {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"};
const Words kStateDicts2 = {"FULL_STATE_DICT", "SHARDED_STATE_DICT"};
const Words kOffloadDevices = {"none", "cpu", "nvme"};
const Words kDataParallelInstances = {"ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4dn.24xlarge"};

// The words between `|` in the schema.
Words choices_of(absl::string_view name) {
  const std::vector<absl::string_view> list = settings::setting(name).choice_list();
  return {list.begin(), list.end()};
}

size_t index_of(const Words& words, absl::string_view word) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return i;
  }
  return 0;
}

// Refuses all but whole numbers from `least` to `most`.
Prompter::Check between(int64_t least, int64_t most, const char* expected) {
  return [=](const std::string& answer) {
    int64_t number = 0;
    if (absl::SimpleAtoi(answer, &number) && number >= least && number <= most) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(expected, least, " to ", most, ", not \"", answer, "\""));
  };
}

// The devices that a file or a person lists; 0 for all of them.
size_t listed_devices(absl::string_view ids) {
  if (ids.empty() || ids == "all") return 0;
  const std::vector<absl::string_view> list = absl::StrSplit(ids, ',', absl::SkipWhitespace());
  return list.size();
}

class Questionnaire {
 public:
  Questionnaire(Prompter& ask, const Surroundings& surroundings, settings::ConfigFile& config,
                Works works)
      : ask_(ask), here_(surroundings), config_(config), works_(works) {}

  void fill() {
    if (ask_.ask_choice("Where do you train?", {"this machine", "AWS SageMaker"}) == 0) {
      put("compute_environment", "LOCAL_MACHINE");
      ask_cluster();
    } else {
      put("compute_environment", "AMAZON_SAGEMAKER");
      ask_sagemaker();
    }
  }

 private:
  // After an error the defaults of the further questions are not answers.
  void put(absl::string_view name, absl::string_view text) {
    if (ask_.status().ok()) put_value(config_, name, text);
  }
  void put_bool(absl::string_view name, bool value) { put(name, value ? "true" : "false"); }

  // Each asks, puts the answer where the schema has it, and returns it.
  bool yes_no(absl::string_view name, const std::string& question, bool otherwise) {
    const bool answer = ask_.ask_yes_no(question, otherwise);
    put_bool(name, answer);
    return answer;
  }
  int64_t number(absl::string_view name, const std::string& question, int64_t otherwise,
                 int64_t least) {
    const int64_t answer = ask_.ask_number(question, otherwise, least);
    put(name, absl::StrCat(answer));
    return answer;
  }
  // An empty answer to a question without default is refused, to others it sets nothing.
  std::string text(absl::string_view name, const std::string& question,
                   const std::optional<std::string>& otherwise, const Prompter::Check& more = {}) {
    const Prompter::Check check = [&](const std::string& answer) {
      absl::Status ok = settings::check_value(settings::setting(name), answer);
      return ok.ok() && more ? more(answer) : ok;
    };
    const std::string answer = ask_.ask_text(question, otherwise, check);
    if (!answer.empty()) put(name, answer);
    return answer;
  }
  // `~` stands for the home folder, as in a shell.
  std::string path(absl::string_view name, const std::string& question,
                   const std::optional<std::string>& otherwise) {
    const std::string answer = expanded(ask_.ask_text(question, otherwise));
    if (!answer.empty()) put(name, answer);
    return answer;
  }
  std::string expanded(const std::string& answer) const {
    const bool is_at_home = absl::StartsWith(answer, "~/") && !here_.home.empty();
    return is_at_home ? absl::StrCat(here_.home, answer.substr(1)) : answer;
  }
  std::string choice(absl::string_view name, const std::string& question, const Words& choices,
                     absl::string_view otherwise = "") {
    const std::string answer =
        choices[ask_.ask_choice(question, choices, index_of(choices, otherwise))];
    put(name, answer);
    return answer;
  }
  bool asks(const std::string& question) { return ask_.ask_yes_no(question, false); }
  // Whether launch takes the run for one rank a device, which needs two: one device needs no
  // distributed training.
  bool is_multi_device() const {
    const std::string type = config_.values.value("distributed_type", "NO");
    return absl::StartsWith(type, "MULTI_") && type != "MULTI_CPU";
  }
  // The devices of this machine, if it is of the kind that was chosen.
  int devices_here() const {
    const std::string kind = absl::AsciiStrToUpper(here_.machine.device_kind);
    const bool is_chosen = kMachineTypes[type_].word == absl::StrCat("MULTI_", kind) ||
                           (type_ == kTpu && kind == "TPU");
    return is_chosen ? here_.machine.devices : 0;
  }
  // Whether to go on about a setting. One that is not in this version is only named.
  bool wants(absl::string_view name, const std::string& question) {
    if (works_(settings::setting(name))) return asks(question);
    ask_.skip(question, "not in this version");
    return false;
  }

  void ask_cluster() {
    Words titles;
    for (const MachineType& type : kMachineTypes) titles.push_back(type.title);
    type_ = ask_.ask_choice("Which kind of machine do you use?", titles);
    put("distributed_type", kMachineTypes[type_].word);
    if (type_ == kSimulated) {
      text("simulate", "Which cluster: nodes x devices, and their kind after a colon", "2x4",
           here_.check_cluster);
    } else if (type_ != kNone && type_ != kTpu) {
      ask_machines();
    }
    ask_cpu();
    ask_compile();
    if (type_ != kMultiCpu && type_ != kTpu) ask_engines();
    ask_processes();
    if (type_ == kTpu) ask_tpu();
    ask_precision();
  }

  void ask_machines() {
    machines_ = number("num_machines", "How many machines?", 1, 1);
    if (machines_ > 1) {
      const std::string rank =
          ask_.ask_text("Rank of this machine", "0", between(0, machines_ - 1, "expected "));
      put("machine_rank", rank);
      std::optional<std::string> host;
      if (rank == "0") host = here_.host_name;
      text("main_process_ip", "Name or address of the machine with rank 0", host,
           &settings::check_host);
      put("main_process_port", ask_.ask_text("Port of the machine with rank 0", "29500",
                                             between(1, 65535, "expected a port from ")));
      if (!yes_no("same_network", "Are all machines in the same local network?", true)) {
        choice("rdzv_backend", "Which rendezvous do the machines use?", {"static", "c10d"},
               "static");
      }
    }
    yes_no("debug", "Compare collectives between ranks before they run? It costs time", false);
  }

  void ask_cpu() {
    if (type_ == kMultiCpu) {
      put_bool("cpu", true);
      if (asks("Start the ranks with mpirun?")) {
        path("mpirun_hostfile", "File of the machines", "~/hostfile");
      }
    } else if (type_ == kNone) {
      use_cpu_ = yes_no("cpu", "Train on the CPU even where there is a device?",
                        here_.machine.devices == 0);
    } else {
      put_bool("cpu", false);
    }
  }

  void ask_compile() {
    if (!wants("dynamo_backend", "Compile the model (torch.compile)?")) return;
    Words backends = choices_of("dynamo_backend");
    std::erase(backends, "no");
    choice("dynamo_backend", "Which compiler?", backends, "inductor");
    if (!asks("Change what it does by default?")) return;
    choice("dynamo_mode", "What should it optimise for?", choices_of("dynamo_mode"), "default");
    yes_no("dynamo_use_fullgraph", "Must the model compile into one graph?", false);
    yes_no("dynamo_use_dynamic", "Do sizes change from step to step?", false);
    yes_no("dynamo_use_regional_compilation", "Compile repeated blocks once?", false);
  }

  // At most one engine that shards.
  void ask_engines() {
    if (type_ != kNeuron && wants("use_deepspeed", "Use DeepSpeed's ZeRO?")) {
      return ask_deepspeed();
    }
    if (type_ != kNone && type_ != kNeuron &&
        wants("use_fsdp", "Use Fully Sharded Data Parallel (FSDP)?")) {
      return ask_fsdp();
    }
    if (type_ == kMultiGpu && wants("use_megatron_lm", "Use Megatron-LM's parallelism?")) {
      ask_megatron();
    }
  }

  void ask_deepspeed() {
    put("distributed_type", "DEEPSPEED");
    const auto is_file = [this](const std::string& answer) {
      std::error_code ignored;
      if (std::filesystem::is_regular_file(expanded(answer), ignored)) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("there is no file ", answer));
    };
    has_deepspeed_file_ = asks("Do you have a JSON file for DeepSpeed?");
    if (has_deepspeed_file_) {
      const std::string file = ask_.ask_text("Path of the JSON file", std::nullopt, is_file);
      if (!file.empty()) put("deepspeed_config_file", expanded(file));
    } else {
      ask_zero();
    }
    yes_no("zero3_init_flag", "Make models sharded (zero.Init)? For stage 3, no effect", false);
    if (asks("Has the model layers of experts (MoE)?")) {
      text("deepspeed_moe_layer_cls_names", "Class names of these layers, between commas",
           std::nullopt);
    }
    if (machines_ <= 1) return;
    const std::string launcher =
        choice("deepspeed_multinode_launcher", "Which program starts the other machines?",
               choices_of("deepspeed_multinode_launcher"), "pdsh");
    if (launcher == "standard") return;
    // DeepSpeed's own default.
    path("deepspeed_hostfile", "File of the machines and their slots", "/job/hostfile");
    if (asks("Leave some of them out?")) {
      text("deepspeed_exclusion_filter", "Which, as in host1@host2:0,2", std::nullopt);
    } else if (asks("Use only some of them?")) {
      text("deepspeed_inclusion_filter", "Which, as in host1@host2:0,2", std::nullopt);
    }
  }

  void ask_zero() {
    const std::string stage =
        choice("zero_stage", "Which stage of ZeRO?", choices_of("zero_stage"), "2");
    if (stage >= "2") {
      for (const auto& [name, what, folder] :
           {std::array{"offload_optimizer_device", "the optimizer", "offload_optimizer_nvme_path"},
            std::array{"offload_param_device", "the parameters", "offload_param_nvme_path"}}) {
        const std::string device =
            choice(name, absl::StrCat("Where are ", what, " kept?"), kOffloadDevices, "none");
        if (device == "nvme") path(folder, absl::StrCat("Folder on NVMe for ", what), "/nvme");
      }
    }
    number("gradient_accumulation_steps", "Micro-batches of a step?", 1, 1);
    if (asks("Clip gradients?")) text("gradient_clipping", "Largest norm", "1.0");
    if (stage == "3") {
      yes_no("zero3_save_16bit_model", "Save whole 16-bit weights?", false);
    }
  }

  void ask_fsdp() {
    put("distributed_type", "FSDP");
    const bool is_second = choice("fsdp_version", "Which version of FSDP?", {"1", "2"}, "2") == "2";
    if (is_second) {
      yes_no("fsdp_reshard_after_forward", "Free parameters after the forward pass?", true);
    } else {
      choice("fsdp_sharding_strategy", "What is sharded?", kFsdpStrategies);
    }
    yes_no("fsdp_offload_params", "Keep shards on the host?", false);
    ask_wrapping();
    if (!is_second) {
      choice("fsdp_backward_prefetch", "When are the next shards fetched in backward?",
             kPrefetches);
    }
    choice("fsdp_state_dict_type", "How are checkpoints written?",
           is_second ? kStateDicts2 : kStateDicts1);
    if (!is_second) {
      yes_no("fsdp_forward_prefetch", "Fetch the next shards in forward as well? No effect", false);
      yes_no("fsdp_use_orig_params", "Show the original parameters?", true);
    }
    const bool is_efficient =
        yes_no("fsdp_cpu_ram_efficient_loading", "Does only rank 0 read the weights?", true);
    if (!is_second && is_efficient) {
      put_bool("fsdp_sync_module_states", true);
    } else if (!is_second) {
      yes_no("fsdp_sync_module_states", "Take the weights of rank 0? No effect", true);
    }
    yes_no("fsdp_activation_checkpointing", "Recompute activations in backward?", false);
    if (is_second &&
        wants("use_parallelism_config", "Arrange the ranks in a mesh (parallelism config)?")) {
      ask_mesh();
    }
  }

  void ask_wrapping() {
    const std::string policy =
        choice("fsdp_auto_wrap_policy", "Which modules are sharded by themselves?", kWrapPolicies);
    if (policy == "TRANSFORMER_BASED_WRAP") {
      if (ask_.ask_yes_no("The layers that the model says are never divided?", true)) return;
      text("fsdp_transformer_layer_cls_to_wrap", "Class names of the layers, between commas",
           std::nullopt);
    } else if (policy == "SIZE_BASED_WRAP") {
      number("fsdp_min_num_params", "Parameters of the smallest such module?", 100'000'000, 1);
    }
  }

  void ask_mesh() {
    mesh_ = number("parallelism_config_dp_replicate_size", "Data parallel replicas?", 1, 1);
    mesh_ *= number("parallelism_config_dp_shard_size", "Ranks that share a replica by shards?",
                    std::max(2, devices_here()), 1);
    mesh_ *= number("parallelism_config_tp_size", "Tensor parallel ranks?", 1, 1);
    const int64_t cp = number("parallelism_config_cp_size", "Context parallel ranks?", 1, 1);
    mesh_ *= cp;
    if (cp > 1) {
      choice("parallelism_config_cp_comm_strategy", "How do they exchange?",
             {"allgather", "alltoall"});
    }
  }

  void ask_megatron() {
    put("distributed_type", "MEGATRON_LM");
    if (number("megatron_lm_tp_degree", "Tensor parallel ranks?", 1, 1) > 1) {
      yes_no("megatron_lm_sequence_parallelism", "Shard activations over them?", true);
    }
    if (number("megatron_lm_pp_degree", "Pipeline stages?", 1, 1) > 1) {
      number("megatron_lm_num_micro_batches", "Micro-batches of a step?", 1, 1);
    }
    yes_no("megatron_lm_recompute_activations", "Recompute activations selectively?", true);
    yes_no("megatron_lm_use_distributed_optimizer", "Shard the optimizer?", true);
    text("megatron_lm_gradient_clipping", "Largest norm of the gradients; 0: any", "1.0");
  }

  void ask_processes() {
    if (type_ == kNone) {
      put("num_processes", "1");
    } else if (type_ != kSimulated) {
      const int64_t least = is_multi_device() && machines_ == 1 ? 2 : machines_;
      const auto is_spread = [this, least](const std::string& answer) {
        int64_t ranks = 0;
        const bool is_number = absl::SimpleAtoi(answer, &ranks);
        if (is_number && mesh_ > 1 && ranks != mesh_) {
          return absl::InvalidArgumentError(
              absl::StrCat("the mesh has ", mesh_, " ranks, and not ", answer));
        }
        if (is_number && ranks >= least && ranks % machines_ == 0) return absl::OkStatus();
        return absl::InvalidArgumentError(
            absl::StrCat("expected a whole number of at least ", least,
                         machines_ > 1 ? absl::StrCat(" that ", machines_, " divides") : "",
                         ", not \"", answer, "\""));
      };
      const std::string question =
          type_ == kMultiCpu
              ? "How many ranks over all machines?"
              : absl::StrCat("How many ", kMachineTypes[type_].devices, " over all machines?");
      const int64_t proposal = mesh_ > 1 ? mesh_ : std::max(least, devices_here() * machines_);
      put("num_processes", ask_.ask_text(question, absl::StrCat(proposal), is_spread));
    }
    const bool has_devices =
        type_ != kMultiCpu && type_ != kTpu && type_ != kSimulated && !use_cpu_;
    if (has_devices && machines_ == 1) {
      const bool needs_two = is_multi_device();
      text("gpu_ids", absl::StrCat("Which ", kMachineTypes[type_].devices, ", as in 0,2"), "all",
           [needs_two](const std::string& answer) {
             if (!needs_two || listed_devices(answer) != 1) return absl::OkStatus();
             return absl::InvalidArgumentError(
                 absl::StrCat("several ranks need at least two devices, not \"", answer, "\""));
           });
    }
    if (type_ == kMultiGpu) {
      yes_no("enable_cpu_affinity", "Bind each rank to the cores near its device?", false);
    }
  }

  void ask_tpu() {
    text("main_training_function", "Function that is called on each core", "main");
    const bool is_pod = yes_no("tpu_use_cluster", "Is it a TPU pod?", false);
    if (!is_pod) return;
    const std::string pod =
        text("tpu_name", "Name of the pod; empty: its workers are named below", here_.tpu_name);
    text("tpu_zone", "Zone of the pod; empty: that of gcloud", "");
    yes_no("tpu_use_sudo", "Start with sudo on its workers?", false);
    if (asks("Run commands on the workers first?")) {
      if (asks("Are they in a file?")) {
        path("command_file", "Path of the file", std::nullopt);
      } else {
        text("commands", "Commands, between commas; empty: none", "");
      }
    }
    const std::string workers = text("vm", "Names of its workers, between commas; empty: all", "");
    // Without any name there is no pod to start on.
    if (pod.empty() && workers.empty()) put_bool("tpu_use_cluster", false);
    text("env", "Variables for the workers, as in A=1,B=2; empty: none", "");
  }

  void ask_precision() {
    if (has_deepspeed_file_) return;
    const std::string precision =
        choice("mixed_precision", "Data type of the computation?", choices_of("mixed_precision"));
    if (precision == "bf16" && type_ == kTpu) {
      put_bool("downcast_bf16",
               wants("downcast_bf16", "Does double become float, and float bfloat16?"));
    }
    if (precision == "fp8") ask_fp8();
  }

  void ask_fp8() {
    const std::string backend =
        choice("fp8_backend", "Which library for 8 bits?", choices_of("fp8_backend"), "te");
    if (backend == "msamp") {
      choice("fp8_opt_level", "Which parts are in 8 bits?", choices_of("fp8_opt_level"), "O2");
    } else if (backend == "ao") {
      yes_no("fp8_enable_fsdp_float8_all_gather", "Gather shards in 8 bits?", true);
      yes_no("fp8_pad_inner_dim", "Pad matrices to sizes that the kernels take?", true);
    } else if (asks("Change what it does by default?")) {
      yes_no("fp8_use_autocast_during_eval", "8 bits in evaluation too?", false);
      number("fp8_margin", "Margin of the scaling factor?", 0, 0);
      number("fp8_interval", "Steps between two scaling factors?", 1, 1);
      choice("fp8_format", "Which number format?", choices_of("fp8_format"), "HYBRID");
      number("fp8_amax_history_len", "Steps that are looked back at?", 1024, 1);
      choice("fp8_amax_compute_algo", "How does a scaling factor follow from them?",
             choices_of("fp8_amax_compute_algo"), "most_recent");
      if (asks("Higher precision in some linear layers' products?")) {
        Words parts;
        for (const char* pass : {"forward", "the input's gradient", "the weight's gradient"}) {
          parts.push_back(asks(absl::StrCat("In ", pass, "?")) ? "true" : "false");
        }
        put("fp8_override_linear_precision", absl::StrCat(parts[0], ",", parts[1], ",", parts[2]));
      }
    }
  }

  void ask_sagemaker() {
    const bool has_profile =
        ask_.ask_choice("How does the job get its credentials?",
                        {"an AWS profile", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"}) == 0;
    if (has_profile) text("profile", "Name of the profile", "default");
    text("region", "AWS region", "us-east-1");
    // The name of the role that HF Accelerate makes.
    text("iam_role_name", "ARN or name of the job's IAM role (it must exist)",
         "accelerate_sagemaker_execution_role");
    if (asks("Use a container image of your own?")) {
      text("image_uri", "Its address; empty: it is added to the file later", "");
    }
    if (asks("Are the inputs in a table?")) {
      path("sagemaker_inputs_file", "Path of the table, with tabs and a heading", std::nullopt);
    }
    if (asks("Are the metrics in a table?")) {
      path("sagemaker_metrics_file", "Path of the table, with tabs and a heading", std::nullopt);
    }
    const std::string mode =
        choice("distributed_type", "Which distributed mode?", {"NO", "DATA_PARALLEL"});
    ask_compile();
    if (mode == "NO") {
      text("ec2_instance_type", "Type of the machines", "ml.p3.2xlarge");
    } else {
      choice("ec2_instance_type", "Type of the machines?", kDataParallelInstances);
    }
    yes_no("debug", "Compare collectives between ranks before they run? It costs time", false);
    number("num_machines", "How many machines?", 1, 1);
    choice("mixed_precision", "Data type of the computation?", choices_of("mixed_precision"));
  }

  Prompter& ask_;
  const Surroundings& here_;
  settings::ConfigFile& config_;
  const Works works_;
  size_t type_ = kNone;
  int64_t machines_ = 1;
  int64_t mesh_ = 1;  // its ranks
  bool use_cpu_ = false;
  bool has_deepspeed_file_ = false;
};

using Json = nlohmann::ordered_json;

constexpr char kDistributedType[] = "distributed_type";

// Where the file has the setting, and nothing of it there: keys have several spellings.
Json& cleared_map(settings::ConfigFile& config, const settings::Setting& row) {
  const settings::SectionName* section = settings::find_section(row.section);
  Json& map = section != nullptr ? config.values[section->key] : config.values;
  if (!map.is_object()) map = Json::object();
  for (auto it = map.begin(); it != map.end();) {
    it = settings::find_key(row.section, it.key()) == &row ? map.erase(it) : std::next(it);
  }
  return map;
}

bool is_number(absl::string_view text) {
  int64_t ignored = 0;
  return absl::SimpleAtoi(text, &ignored);
}

// A text that files have as a number or a truth value, as HF Accelerate writes it.
Json plain_text(const settings::Setting& row, absl::string_view text) {
  if (row.choices != nullptr && is_number(row.choice_list().front())) {
    return Json::parse(text.begin(), text.end());
  }
  if (row.default_value != nullptr && absl::string_view(row.default_value) == "true") {
    if (const absl::StatusOr<bool> value = settings::parse_bool(text); value.ok()) return *value;
  }
  return std::string(text);
}

Json typed(const settings::Setting& row, absl::string_view text) {
  switch (row.type) {
    case settings::ValueType::kFlag:
    case settings::ValueType::kBool: return *settings::parse_bool(text);
    case settings::ValueType::kInt: {
      int64_t number = 0;
      ABSL_CHECK(absl::SimpleAtoi(text, &number)) << row.name << "=" << text;
      return number;
    }
    case settings::ValueType::kFloat: {
      double number = 0;
      ABSL_CHECK(absl::SimpleAtod(text, &number)) << row.name << "=" << text;
      return number;
    }
    case settings::ValueType::kTexts: {
      std::vector<std::string> parts;
      for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
        parts.emplace_back(absl::StripAsciiWhitespace(part));
      }
      return parts;
    }
    case settings::ValueType::kText: return plain_text(row, text);
    case settings::ValueType::kBools: return std::string(text);
  }
  return nullptr;
}

// A key of some file, or a setting's name.
const settings::Setting* find_row(absl::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  if (parts.size() == 2) {
    const settings::SectionName* named = settings::find_section(parts[0]);
    return named != nullptr ? settings::find_key(named->section, parts[1]) : nullptr;
  }
  for (const settings::Section section : {settings::Section::kTop, settings::Section::kSageMaker}) {
    if (const settings::Setting* row = settings::find_key(section, name)) return row;
  }
  const settings::Setting* row = settings::find_setting(name);
  return row != nullptr && row->has_key() ? row : nullptr;
}

std::string suggested_key(absl::string_view name) {
  std::vector<std::string> keys;
  for (const settings::Setting& row : settings::all_settings()) {
    if (row.has_key()) keys.push_back(row.key_name());
  }
  return did_you_mean(name.substr(name.find('.') + 1), keys);
}

absl::Status check(const settings::Setting& row, const std::string& text) {
  if (absl::string_view(row.name) != kDistributedType) return settings::check_value(row, text);
  std::vector<std::string> types;
  for (const auto& list :
       {settings::distributed_types(), settings::sagemaker_distributed_types()}) {
    types.insert(types.end(), list.begin(), list.end());
  }
  if (std::find(types.begin(), types.end(), text) != types.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected one of ", absl::StrJoin(types, ", "), ", not \"", text, "\""));
}

}  // namespace

absl::Status ask_configuration(Prompter& prompter, const Surroundings& surroundings,
                               settings::ConfigFile& config, Works works) {
  Questionnaire(prompter, surroundings, config, works).fill();
  return prompter.status();
}

std::vector<std::string> assignments_of(const settings::ConfigFile& config) {
  std::vector<std::string> assignments;
  const auto add = [&](const std::string& key, const Json& value) {
    std::vector<std::string> texts;
    for (const Json& item : value.is_array() ? value : Json::array({value})) {
      texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
    }
    if (!value.is_null()) assignments.push_back(absl::StrCat(key, "=", absl::StrJoin(texts, ",")));
  };
  for (const auto& [key, value] : config.values.items()) {
    if (!value.is_object()) {
      add(key, value);
      continue;
    }
    for (const auto& [inner, inner_value] : value.items()) {
      add(absl::StrCat(key, ".", inner), inner_value);
    }
  }
  return assignments;
}

void put_value(settings::ConfigFile& config, absl::string_view name, absl::string_view text) {
  const settings::Setting& row = settings::setting(name);
  cleared_map(config, row)[row.key_name()] = typed(row, text);
}

absl::Status set_value(settings::ConfigFile& config, absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", assignment, ": expected KEY=VALUE, as in num_processes=4"));
  }
  const std::string key =
      absl::StrReplaceAll(absl::StripAsciiWhitespace(assignment.substr(0, equals)), {{"-", "_"}});
  std::string text(absl::StripAsciiWhitespace(assignment.substr(equals + 1)));
  const settings::Setting* row = find_row(key);
  if (row == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", assignment, ": unknown key ", key, suggested_key(key)));
  }
  text = settings::schema_text(*row, text);
  if (text.empty()) {
    cleared_map(config, *row);
    return absl::OkStatus();
  }
  if (!settings::is_utf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", key, ": the value is not UTF-8"));
  }
  if (absl::Status ok = check(*row, text); !ok.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", assignment, ": ", ok.message()));
  }
  put_value(config, row->name, text);
  return absl::OkStatus();
}

}  // namespace accelerate::launcher::dialogue
