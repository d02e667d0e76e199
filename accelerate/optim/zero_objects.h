/// The optimizer and the schedule that a DeepSpeed configuration names.
///
///     const ZeroConfig zero = zero_config(plugin.deepspeed_config());
///     const auto optimizer = optim::make_optimizer(*zero.optimizer, dummy_optimizer);
///     const auto schedule = optim::make_scheduler(zero.scheduler, dummy_scheduler, *optimizer);
///
/// prepare() calls these for a DummyOptim and a DummyScheduler. All is local.
///
/// Errors:  c10::ValueError naming a setting that the type does not have, or that this library's
///          optimizer of the type cannot follow; those of the optimizer's and the schedule's
///          constructors.
/// Threads: the rank's thread.
/// Mirrors: deepspeed/runtime/engine.py, _configure_basic_optimizer and _scheduler_from_config;
///          accelerate utils/deepspeed.py, map_pytorch_optim_to_deepspeed.
/// Differs: see accelerate/docs/differences.md.
#pragma once

#include <memory>
#include <optional>

#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

/// One of this library's fused or foreach optimizers. Groups have the placeholder's rates and
/// weight decays, where they have their own, and all else from `asked`. Errors: also for a
/// placeholder without parameters.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const ZeroOptimizer& asked,
                                                        const DummyOptim& placeholder);

/// The optimizer must outlive it. Rank 0 warns if a schedule is over within its warm-up, or is to
/// cycle the momentum of an optimizer that has none.
std::unique_ptr<Scheduler> make_scheduler(const ZeroScheduler& asked,
                                          torch::optim::Optimizer& optimizer);
/// What the placeholder's lr_scheduler_callable makes, or else the one that is asked for.
/// Errors: also if there is neither, or if the callable returns null.
std::unique_ptr<torch::optim::LRScheduler> make_scheduler(const std::optional<ZeroScheduler>& asked,
                                                          const DummyScheduler& placeholder,
                                                          torch::optim::Optimizer& optimizer);

/// An equal optimizer of the same parameters, for parameters that are in host memory: of LibTorch's
/// SGD, Adam, AdamW and Adagrad this library's, of the others the same class, since each of them
/// computes where its parameters are. It has the groups and the state of the one that is given,
/// whose state tensors it shares: do not step that one any more.
/// Errors: for a class whose step is not known to work on shards, which can be prepared as it is.
std::unique_ptr<torch::optim::Optimizer> map_pytorch_optim_to_deepspeed(
    const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::optim
