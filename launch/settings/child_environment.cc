#include "accelerate/base/number_text.h"
#include "launch/settings/validate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/platform/environment.h"
#include "launch/process/process_plan.h"
#include "launch/settings/machine.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::settings {
namespace {

using options::Spelling;

const char* capital(bool value) { return value ? "True" : "False"; }

class Writer {
 public:
  Writer(const Settings& settings, const Machine& machine,
         absl::Span<const std::string> environment)
      : settings_(settings), machine_(machine), environment_(environment) {}

  process::EnvironmentOverlay write() {
    drop_switches();
    write_common();
    write_threads();
    write_openmp();
    write_group(Group::kCompile);
    if (settings_.text("mixed_precision") == "fp8") write_fp8();
    if (settings_.flag("use_fsdp")) write_engine("use_fsdp", Group::kFsdp);
    if (settings_.flag("use_megatron_lm")) write_engine("use_megatron_lm", Group::kMegatron);
    if (settings_.flag("use_parallelism_config")) write_mesh();
    if (settings_.flag("use_deepspeed")) write_deepspeed();
    if (settings_.flag("tpu")) write_tpu();
    return std::move(overlay_);
  }

 private:
  bool is_several() const { return settings_.number("num_processes") > 1; }

  void set(absl::string_view name, absl::string_view value) {
    overlay_[std::string(name)] = std::string(value);
  }

  void set_unless_inherited(absl::string_view name, absl::string_view value) {
    if (!process::find_in_environment(environment_, name)) set(name, value);
  }

  // The setting's own variable gets its value.
  void write_setting(const Setting& row) {
    const std::string variable = row.variable_name();
    if (variable.empty() || !settings_.is_set(row.name)) return;
    std::string text = settings_.text(row.name);
    if (row.type == ValueType::kFloat) text = float_text(settings_.real(row.name));
    if (row.type == ValueType::kInt) text = absl::StrCat(settings_.number(row.name));
    switch (row.spelling) {
      case Spelling::kUpper: text = absl::AsciiStrToUpper(text); break;
      case Spelling::kCapital: text = capital(settings_.flag(row.name)); break;
      case Spelling::kDigit: text = settings_.flag(row.name) ? "1" : "0"; break;
      case Spelling::kLower: text = absl::AsciiStrToLower(text); break;
      case Spelling::kPlain:
        if (row.is_boolean()) text = absl::AsciiStrToLower(text);
    }
    set(variable, text);
  }

  void write_group(Group group) {
    for (const Setting& row : all_settings()) {
      if (row.group == group) write_setting(row);
    }
  }

  // The group of an engine that is on.
  void write_engine(const char* switch_name, Group group) {
    set(setting(switch_name).variable, "true");
    write_group(group);
  }

  // Switches that flags or a file turned off must not be turned on again by the environment
  // outside.
  void drop_switches() {
    for (const Setting& row : all_settings()) {
      const bool is_switch =
          row.type == ValueType::kFlag && !row.variable_name().empty() && row.variable_is_read;
      if (is_switch && !settings_.flag(row.name) &&
          process::find_in_environment(environment_, row.variable_name())) {
        overlay_[row.variable_name()] = std::nullopt;
      }
    }
  }

  void write_common() {
    // These ranks are real, whatever the environment outside says.
    for (const char* name : env::kSimulation) overlay_[name] = std::nullopt;
    write_setting(setting("mixed_precision"));
    if (!is_several() || settings_.flag("cpu")) write_setting(setting("cpu"));
    write_setting(setting("gradient_accumulation_steps"));
    if (settings_.flag("debug")) set(env::kDebugMode, "true");
    if (settings_.flag("enable_cpu_affinity")) set("ACCELERATE_CPU_AFFINITY", "1");
    const std::string ids = settings_.text("gpu_ids");
    if (!ids.empty() && ids != "all") {
      set(visible_devices_variable(machine_.device_kind, machine_.devices_are_amd), ids);
    }
    if (!machine_.has_peer_access && is_several() && !settings_.flag("cpu")) {
      // NCCL would use the access that the driver claims. A value of the user's own stays.
      for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}) {
        set_unless_inherited(name, "1");
      }
    }
  }

  void write_threads() {
    if (settings_.is_set("num_cpu_threads_per_process")) {
      set(env::kOmpNumThreads, absl::StrCat(settings_.number("num_cpu_threads_per_process")));
      return;
    }
    if (!is_several() || !process::environment_value(environment_, env::kOmpNumThreads).empty())
      return;
    const int64_t per_node = settings_.number("num_processes") / settings_.number("num_machines");
    if (!settings_.flag("cpu")) {
      // Ranks that share a machine would each take all of its cores and slow one another down.
      if (per_node > 1) set(env::kOmpNumThreads, "1");
      return;
    }
    int64_t local_ranks = per_node;
    for (const char* name :
         {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}) {
      int64_t number = 0;
      if (absl::SimpleAtoi(process::environment_value(environment_, name), &number) && number > 0) {
        local_ranks = number;
        break;
      }
    }
    const int64_t cores = machine_.count_physical_cores();
    set(env::kOmpNumThreads, absl::StrCat(std::max<int64_t>(1, cores / local_ranks)));
  }

  // For Intel's OpenMP. `compact` counts cores from the first that a rank may use, so that ranks
  // which share a machine would all be on the same ones, unless mpirun has given each its own.
  void write_openmp() {
    const bool has_cores_of_its_own =
        settings_.number("num_processes") <= settings_.number("num_machines") ||
        settings_.is_set("mpirun_hostfile");
    if (!settings_.flag("cpu") || !has_cores_of_its_own || settings_.is_set("simulate")) return;
    set_unless_inherited("KMP_AFFINITY", "granularity=fine,compact,1,0");
    set_unless_inherited("KMP_BLOCKTIME", "1");
  }

  void write_fp8() {
    write_group(Group::kFp8);
    const std::vector<bool> overrides =
        parse_bools(settings_.text("fp8_override_linear_precision")).value_or(std::vector<bool>(3));
    const char* const passes[] = {"FPROP", "DGRAD", "WGRAD"};
    for (size_t i = 0; i < overrides.size(); ++i) {
      set(absl::StrCat("ACCELERATE_FP8_OVERRIDE_", passes[i]), capital(overrides[i]));
    }
  }

  void write_mesh() {
    write_engine("use_parallelism_config", Group::kParallelism);
    // HF Accelerate leaves out what belongs to an axis of size 1.
    const std::pair<const char*, std::vector<const char*>> parts[] = {
        {"pp", {"PP_SIZE", "PP_PLACEMENT", "PP_SCHEDULE", "PP_STAGES_PER_RANK", "PP_SPLIT_POINTS"}},
        {"ep", {"EP_SIZE"}},
        {"cp", {"CP_COMM_STRATEGY"}},
        {"sp", {"SP_SEQ_LENGTH", "SP_SEQ_LENGTH_IS_VARIABLE", "SP_ATTN_IMPLEMENTATION"}}};
    for (const auto& [axis, names] : parts) {
      if (settings_.number(absl::StrCat("parallelism_config_", axis, "_size")) != 1) continue;
      for (const char* name : names) overlay_.erase(absl::StrCat("PARALLELISM_CONFIG_", name));
    }
    // Windows of one rank have micro-batches, too.
    if (settings_.number("parallelism_config_pp_micro_batches") == 1) {
      overlay_.erase("PARALLELISM_CONFIG_PP_MICRO_BATCHES");
    }
  }

  void write_deepspeed() {
    write_engine("use_deepspeed", Group::kDeepSpeed);
    // Without a file of its own the launcher repeats a run that had one.
    constexpr char kFields[] = "ACCELERATE_CONFIG_DS_FIELDS";
    if (!settings_.has_config() && process::find_in_environment(environment_, kFields)) return;
    std::vector<std::string> fields = settings_.deepspeed_keys();
    if (settings_.provenance("mixed_precision") == Provenance::kConfigFile) {
      fields.push_back("mixed_precision");
    }
    set(kFields, absl::AsciiStrToLower(absl::StrJoin(fields, ",")));
  }

  void write_tpu() {
    // A rank without a TPU fails, and does not train on the CPU.
    if (!settings_.is_set("simulate")) set_unless_inherited("ACCELERATE_TORCH_DEVICE", "xla");
    if (settings_.text("mixed_precision") != "bf16") return;
    set(settings_.flag("downcast_bf16") ? "XLA_DOWNCAST_BF16" : "XLA_USE_BF16", "1");
  }

  const Settings& settings_;
  const Machine& machine_;
  const absl::Span<const std::string> environment_;
  process::EnvironmentOverlay overlay_;
};

}  // namespace

process::EnvironmentOverlay child_environment(const Settings& settings, const Machine& machine,
                                              absl::Span<const std::string> environment) {
  return Writer(settings, machine, environment).write();
}

}  // namespace accelerate::launcher::settings
