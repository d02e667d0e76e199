/// How ranks divide models by ZeRO: the options of DeepSpeed, from the program, from variables or
/// from a configuration in JSON.
///
///     Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{
///         .gradient_clipping = 1.0, .zero_stage = 3, .offload_optimizer_device = "cpu"}});
///     Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{
///         .hf_ds_config = "ds_config.json"}});
///
/// A field that is given takes precedence over its variable, which stands beside it. resolve()
/// reads the variables and the configuration, checks everything and gives each field its final
/// value; the Accelerator does that, and its AcceleratorState keeps the result. The member
/// functions are for a resolved plugin. With a configuration that is given its values count: a
/// field reaches it only where it says "auto", and takes its value everywhere else.
///
/// Errors:  c10::ValueError naming the field, variable or key, what it has and what it may have.
/// Threads: values.
/// Mirrors: accelerate utils/dataclasses.py, DeepSpeedPlugin.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/base/fields.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/hf_deepspeed_config.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// Whether a plugin is made from the variables below where the program gives none.
inline constexpr char kUseDeepSpeed[] = "ACCELERATE_USE_DEEPSPEED";

/// Values by their dotted keys, for the entries of a configuration that are "auto".
using DeepSpeedValues = std::map<std::string, nlohmann::ordered_json>;

class Zero3InitScope;

struct DeepSpeedPlugin {
  /// An object, or a text: the path of a file, JSON, or JSON in base64. null and "none": it is made
  /// of the fields below. ACCELERATE_DEEPSPEED_CONFIG_FILE
  nlohmann::ordered_json hf_ds_config = nullptr;

  /// Backward passes per step of the optimizer, or "auto": as the Accelerator has it.
  /// ACCELERATE_GRADIENT_ACCUMULATION_STEPS
  std::optional<std::variant<int64_t, std::string>> gradient_accumulation_steps = std::nullopt;

  /// The largest norm of the gradients; 0: they are not clipped; "auto": 1.
  /// ACCELERATE_GRADIENT_CLIPPING
  std::optional<std::variant<double, std::string>> gradient_clipping = std::nullopt;

  /// What is divided. 0: nothing; 1: the optimizer's state; 2: and gradients; 3: and parameters: 2.
  /// ACCELERATE_DEEPSPEED_ZERO_STAGE
  std::optional<int64_t> zero_stage = std::nullopt;

  /// The loader with the smallest batches decides the size of a micro-batch; otherwise the one with
  /// the largest.
  bool is_train_batch_min = true;

  /// Where the optimizer keeps its state and computes: "none", "cpu" or "nvme".
  /// ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE
  std::optional<std::string> offload_optimizer_device = std::nullopt;
  /// Where parameters are between their uses, in stage 3. ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE
  std::optional<std::string> offload_param_device = std::nullopt;
  /// The folders of "nvme". ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH and ..._PARAM_...
  std::optional<std::string> offload_optimizer_nvme_path = std::nullopt;
  std::optional<std::string> offload_param_nvme_path = std::nullopt;

  /// In stage 3: true, without effect. A model is divided as it is constructed where the program
  /// builds it in init_empty_weights(): prepare() then makes the values of one group after another.
  /// ACCELERATE_DEEPSPEED_ZERO3_INIT. Rank 0 warns of false. In other stages it becomes false, with
  /// a warning.
  std::optional<bool> zero3_init_flag = std::nullopt;

  /// Whether whole 16-bit weights are gathered to be saved, in stage 3: false.
  /// ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL
  std::optional<bool> zero3_save_16bit_model = std::nullopt;

  /// Classes of modules whose parameters are gathered together in stage 3, separated by commas:
  /// layers of experts. prepare() looks them up in the model, besides those of the configuration's
  /// `leaf_module.classes`. ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES
  std::optional<std::string> transformer_moe_cls_names = std::nullopt;

  /// Compute in fp8 by MS-AMP, in stages 0 to 2: where ACCELERATE_FP8_BACKEND is MSAMP.
  std::optional<bool> enable_msamp = std::nullopt;
  /// "O1" or "O2": O1. ACCELERATE_FP8_OPT_LEVEL
  std::optional<std::string> msamp_opt_level = std::nullopt;

  /// What sizes that are "auto" follow, where the model does not say it (ModelStructure): the size
  /// of its hidden states, or the path of its config.json. HF Accelerate asks `model.config`.
  std::optional<std::variant<int64_t, std::string>> hidden_size = std::nullopt;

  // ---- What resolve() fills in.

  /// The configuration that training follows.
  HfDeepSpeedConfig config = {};
  /// What set_deepspeed_weakref() made of it; for programs, the library does not read it.
  std::shared_ptr<const HfDeepSpeedConfig> dschf = nullptr;
  bool is_resolved = false;
  bool is_selected = false;

  // ---- Of a resolved plugin.

  /// The configuration as JSON. Mirrors: the attribute deepspeed_config.
  nlohmann::ordered_json& deepspeed_config() { return config.config; }
  const nlohmann::ordered_json& deepspeed_config() const { return config.config; }

  /// Puts a value in the place of "auto". Where the configuration has another one, and
  /// `must_match`, adds a line about it to `mismatches`.
  /// Errors: for "auto" without a value.
  void fill_match(const std::string& ds_key_long, std::vector<std::string>& mismatches,
                  const DeepSpeedValues& values, bool must_match = true);
  bool is_auto(const std::string& ds_key_long) const { return get_value(ds_key_long) == "auto"; }
  nlohmann::ordered_json get_value(const std::string& ds_key_long,
                                   const nlohmann::ordered_json& default_value = nullptr) const {
    return config.get_value(ds_key_long, default_value);
  }
  /// fill_match() for all entries. Errors: one error lists all entries without a value or with a
  /// contradicting value; the configuration is unchanged then.
  void deepspeed_config_process(const DeepSpeedValues& values, bool must_match = true);

  /// Turns "fp16" or "bf16" on in the configuration, or neither for "no", where it does not say;
  /// "fp8" is bf16 there. Errors: if the configuration has turned the other one on; then nothing
  /// has changed.
  void set_mixed_precision(const std::string& mixed_precision);

  /// Keeps a copy of the configuration for the construction of models, which need not know batches.
  void set_deepspeed_weakref();
  bool is_zero3_init_enabled() const { return zero3_init_flag.value_or(false); }
  /// Sets zero3_init_flag, and dschf with it, as long as the result lives. The plugin outlives it.
  [[nodiscard]] Zero3InitScope zero3_init_context_manager(bool enable = false);

  /// The classes of transformer_moe_cls_names, looked up in the model; none where it is absent.
  /// Errors: also for a class that the model does not have.
  std::vector<std::string> set_moe_leaf_modules(
      const torch::nn::Module& model,
      const Environment& environment = Runtime::current().environment());

  /// Whether it is the one of several by which models are prepared.
  bool selected() const { return is_selected; }
  /// Errors: always, unless the AcceleratorState calls it, because another one is to be unselected:
  /// see AcceleratorState::select_deepspeed_plugin.
  void select(bool from_accelerator_state = false);
};

ACCELERATE_FIELDS(DeepSpeedPlugin, gradient_accumulation_steps, gradient_clipping, zero_stage,
                  is_train_batch_min, offload_optimizer_device, offload_param_device,
                  offload_optimizer_nvme_path, offload_param_nvme_path, zero3_init_flag,
                  zero3_save_16bit_model, transformer_moe_cls_names, enable_msamp, msamp_opt_level,
                  hidden_size)

/// With every field that has a default or a variable filled in, and checked. A configuration may
/// have any keys here; zero_config() is the one that knows them. Local.
DeepSpeedPlugin resolve(DeepSpeedPlugin plugin, const Environment& environment, FileSystem& files);

/// Its configuration and the fields that are not in it, as a line for people.
std::string to_text(const DeepSpeedPlugin& plugin);

/// Several plugins by name, of which one is selected: the first one at the beginning.
using DeepSpeedPlugins = std::vector<std::pair<std::string, DeepSpeedPlugin>>;

/// See DeepSpeedPlugin::zero3_init_context_manager.
class Zero3InitScope {
 public:
  Zero3InitScope(DeepSpeedPlugin& plugin, bool enable);
  ~Zero3InitScope();
  Zero3InitScope(const Zero3InitScope&) = delete;
  Zero3InitScope& operator=(const Zero3InitScope&) = delete;

 private:
  void switch_to(bool enable);

  DeepSpeedPlugin& plugin_;
  const bool before_;
};

}  // namespace accelerate
