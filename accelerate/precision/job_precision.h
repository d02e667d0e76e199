/// How a job computes: what all Accelerators of a Runtime share of their precision.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <optional>

#include "accelerate/base/enums.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/precision/grad_scaler.h"

namespace accelerate {

struct ZeroConfig;

class JobPrecision {
 public:
  /// The first call makes what the precision needs; later ones may repeat its options, or give
  /// none. `type`: of what is not computed in fp8, where fp8 means bf16; `in_fp8`: whether Linear
  /// layers are. `group`: the ranks that step together; null for one rank. Local.
  /// Errors: c10::ValueError for options that are wrong, or contradict those of the first call.
  void choose(PrecisionType type, bool in_fp8, const KwargsHandlers& handlers,
              DistributedType distributed_type, const ProcessGroupPtr& group,
              const Environment& environment);
  /// Scales losses as a DeepSpeed configuration says, which is known when a model is prepared. The
  /// first one that scales counts. Local.
  /// Errors: c10::ValueError for GradScalerKwargs, which its "fp16" takes the place of.
  void apply_zero_config(const ZeroConfig& zero, const ProcessGroupPtr& group);

  PrecisionType type() const { return type_; }
  /// Absent unless layers are computed in fp8.
  const std::optional<Fp8Plan>& fp8() const { return fp8_; }
  /// How fp8 is computed; `no` without.
  FP8BackendType fp8_backend() const;
  /// Whether an Adam's moments are kept in few bits; see Fp8Moments.
  bool packs_moments() const;
  /// Null unless losses are scaled: in fp16 and with MS-AMP, by ZeRO as apply_zero_config() says.
  const std::shared_ptr<SharedScaler>& scaler() const { return scaler_; }

 private:
  void choose_fp8(const Fp8Handlers& handlers, const Environment& environment);

  bool is_chosen_ = false;
  PrecisionType type_ = PrecisionType::kNo;
  std::optional<Fp8Plan> fp8_;
  std::shared_ptr<SharedScaler> scaler_;
  GradScalerKwargs scaler_kwargs_;
};

}  // namespace accelerate
