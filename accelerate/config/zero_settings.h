/// The settings of ZeRO as values with types: what a configuration of DeepSpeed asks for.
/// zero_config() reads them.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <c10/core/ScalarType.h>

#include "accelerate/base/enum_text.h"

namespace accelerate {

/// Where ZeRO keeps what it moves away from the device.
enum class OffloadDevice {
  kNone,
  kCpu,
  kNvme,  ///< files, in the folder nvme_path
};
ACCELERATE_ENUM_TEXTS(OffloadDevice, "OffloadDevice", "none", "cpu", "nvme")

/// An optimizer by the `type` that a configuration gives.
enum class ZeroOptimizerType {
  kAdam,
  kAdamW,
  kAdagrad,
  kLion,
  kLamb,
  kSgd,
};
ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(ZeroOptimizerType, "optimizer", "Adam", "AdamW", "Adagrad",
                                  "Lion", "Lamb", "SGD")

/// A schedule of learning rates by the `type` that a configuration gives.
enum class ZeroSchedulerType {
  kWarmupLr,
  kWarmupDecayLr,
  kWarmupCosineLr,
  kOneCycle,
  kLrRangeTest,
};
ACCELERATE_ENUM_TEXTS(ZeroSchedulerType, "scheduler", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
                      "OneCycle", "LRRangeTest")

/// How a rate rises during the warm-up.
enum class ZeroWarmupType {
  kLog,
  kLinear,
};
ACCELERATE_ENUM_TEXTS(ZeroWarmupType, "warmup_type", "log", "linear")

struct ZeroOffloadOptimizer {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path = {};
  /// Buffers between the host and the disk, of one sub-group's state each.
  int64_t buffer_count = 4;
  bool pin_memory = false;
  /// Read the next sub-group, and write the previous one, while one is updated.
  bool pipeline_read = false;
  bool pipeline_write = false;
  /// The part of the state that is moved away, from 0 to 1.
  double ratio = 1;
  bool operator==(const ZeroOffloadOptimizer&) const = default;
};

struct ZeroOffloadParam {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path = {};
  int64_t buffer_count = 5;
  /// Elements.
  int64_t buffer_size = 100'000'000;
  /// Elements that stay on the host beside those on the disk.
  int64_t max_in_cpu = 1'000'000'000;
  bool pin_memory = false;
  bool operator==(const ZeroOffloadParam&) const = default;
};

/// Reading and writing of files.
struct ZeroAio {
  /// Bytes of one operation.
  int64_t block_size = 1'048'576;
  /// Operations that a thread has under way.
  int64_t queue_depth = 8;
  int64_t thread_count = 1;
  bool operator==(const ZeroAio&) const = default;
};

struct ZeroFp16 {
  bool enabled = false;
  /// 0: it follows the overflows.
  double loss_scale = 0;
  /// The first scale is 2 to this power.
  int64_t initial_scale_power = 16;
  /// Steps without an overflow after which the scale doubles.
  int64_t loss_scale_window = 1000;
  /// Overflows after which the scale halves.
  int64_t hysteresis = 2;
  /// A step without an overflow gives all of `hysteresis` back.
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  bool operator==(const ZeroFp16&) const = default;
};

struct ZeroBf16 {
  bool enabled = false;
  /// Skip steps whose gradients are infinite or NaN.
  bool check_grad_overflow = false;
  bool operator==(const ZeroBf16&) const = default;
};

struct ZeroOptimizer {
  ZeroOptimizerType type = ZeroOptimizerType::kAdam;
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  /// SGD.
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  /// Adam: decoupled weight decay, as in AdamW.
  bool adam_w_mode = true;
  bool bias_correction = true;
  bool amsgrad = false;
  /// Lamb: the range of the factor by which a tensor's rate is scaled.
  double max_coeff = 10;
  double min_coeff = 0.01;
  bool operator==(const ZeroOptimizer&) const = default;
};

struct ZeroScheduler {
  ZeroSchedulerType type = ZeroSchedulerType::kWarmupLr;
  /// The step before the first one.
  int64_t last_batch_iteration = -1;

  // ---- WarmupLR, WarmupDecayLR, WarmupCosineLR
  double warmup_min_lr = 0;
  /// Absent: WarmupLR takes the optimizer's rate, and WarmupDecayLR 0.001.
  std::optional<double> warmup_max_lr = std::nullopt;
  int64_t warmup_num_steps = 1000;
  ZeroWarmupType warmup_type = ZeroWarmupType::kLog;
  /// WarmupDecayLR and WarmupCosineLR.
  int64_t total_num_steps = 0;
  /// WarmupCosineLR: parts of the optimizer's rate.
  double warmup_min_ratio = 0;
  double cos_min_ratio = 0.0001;

  // ---- OneCycle
  double cycle_min_lr = 0;
  double cycle_max_lr = 0;
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  /// Absent: as the first.
  std::optional<int64_t> cycle_second_step_size = std::nullopt;
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count = std::nullopt;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;

  // ---- LRRangeTest
  double lr_range_test_min_lr = 0.001;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;

  bool operator==(const ZeroScheduler&) const = default;
};

/// MS-AMP's layers in fp8, in stages 0 to 2.
struct ZeroMsamp {
  bool enabled = false;
  std::string opt_level = "O1";
  bool operator==(const ZeroMsamp&) const = default;
};

/// Sizes are elements, unless stated.
struct ZeroConfig {
  // ---- Batches: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps *
  // the number of shares of the data. Absent: not given, or "auto" so far.
  std::optional<int64_t> train_batch_size = std::nullopt;
  std::optional<int64_t> train_micro_batch_size_per_gpu = std::nullopt;
  std::optional<int64_t> gradient_accumulation_steps = std::nullopt;

  // ---- Gradients.
  /// The largest norm; 0: they are not clipped.
  double gradient_clipping = 0;
  /// What gradients are reduced in. Absent: what they have.
  std::optional<c10::ScalarType> communication_data_type = std::nullopt;
  /// Divide gradients by the number of ranks before they are summed.
  bool prescale_gradients = false;
  /// Otherwise: what they are divided by before they are summed. The rest is divided afterwards.
  double gradient_predivide_factor = 1;

  // ---- Numbers.
  ZeroFp16 fp16 = {};
  ZeroBf16 bf16 = {};
  ZeroMsamp msamp = {};

  // ---- The optimizer and the schedule; absent: the program gives them.
  std::optional<ZeroOptimizer> optimizer = std::nullopt;
  std::optional<ZeroScheduler> scheduler = std::nullopt;

  /// Whether what the model runs by accelerate::block() is computed again in the backward pass.
  bool activation_checkpointing = false;

  // ---- zero_optimization
  /// 0: nothing is divided; 1: the optimizer's state; 2: and gradients; 3: and parameters.
  int64_t stage = 0;
  int64_t reduce_bucket_size = 500'000'000;
  ZeroOffloadOptimizer offload_optimizer = {};
  ZeroOffloadParam offload_param = {};
  /// How many elements the optimizer updates at a time.
  int64_t sub_group_size = 1'000'000'000;
  /// Stage 3, as the next ones: elements that are gathered ahead of their use.
  int64_t prefetch_bucket_size = 50'000'000;
  /// Parameters with fewer elements are whole on every rank ...
  int64_t param_persistence_threshold = 100'000;
  /// ... as long as there are at most so many elements of them.
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  /// Gathered elements that a rank has at most before it frees what comes next.
  int64_t max_live_parameters = 1'000'000'000;
  /// A parameter stays that is used again within so many elements.
  int64_t max_reuse_distance = 1'000'000'000;
  bool gather_16bit_weights_on_model_save = false;
  /// Ranks that have a second shard of the parameters among them, for the backward pass; 1: none.
  int64_t zero_hpz_partition_size = 1;
  /// The classes of modules whose parameters are gathered together.
  std::vector<std::string> leaf_module_classes = {};

  ZeroAio aio = {};

  bool operator==(const ZeroConfig&) const = default;

  /// What parameters and gradients of the model are in; absent: what they have.
  std::optional<c10::ScalarType> dtype() const {
    if (fp16.enabled) return c10::kHalf;
    return bf16.enabled ? std::optional(c10::kBFloat16) : std::nullopt;
  }
};

}  // namespace accelerate
