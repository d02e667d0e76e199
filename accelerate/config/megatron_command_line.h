/// Megatron-LM's command line as a plug-in.
///
///     // pretrain_gpt --tensor-model-parallel-size 2 --micro-batch-size 4 --lr 3e-4 ...
///     const MegatronCommandLine line =
///         read_megatron_command_line({argv + 1, argv + argc}, {.num_ranks = num_ranks});
///     Accelerator accelerator({.mixed_precision = line.mixed_precision,
///                              .megatron_lm_plugin = line.plugin});
///     auto [engine, loader] = prepare_megatron_lm(accelerator, net,
///                                                 MegatronLMDummyDataLoader(line.dataset_args));
///
/// The line says the optimizer and the schedule as well, so that a program prepares neither. What
/// it does not say is as Megatron-LM has it: experts are divided along tp, too.
/// accelerate/config/megatron_arguments.h has the arguments; the flag of one that nothing reads is
/// an error. Where a flag stands twice, the last one counts.
///
/// Units:   as in Megatron-LM: batch sizes are sequences, lengths are tokens.
/// Errors:  c10::ValueError naming the flags, what stands behind them and what was expected.
/// Threads: pure functions.
/// Source:  Megatron-LM, megatron/training/arguments.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/config/megatron_lm_plugin.h"

namespace accelerate {

struct MegatronCommandLineOptions {
  /// Ranks of the job. A step's number of micro-batches follows from their number.
  int64_t num_ranks = 1;
  /// What the program trains, as pretrain_gpt or pretrain_bert does: "bert", "gpt" or "t5".
  std::string model_type_name = "gpt";
};

struct MegatronCommandLine {
  /// Its fields where there are some for a flag; other_megatron_args has all of them.
  MegatronLMPlugin plugin;
  /// That of --fp16 and --bf16, which is the Accelerator's.
  PrecisionType mixed_precision = PrecisionType::kNo;
  /// With --micro-batch-size: what a MegatronLMDummyDataLoader is made of, an object.
  nlohmann::ordered_json dataset_args = nullptr;
  /// Flags that choose no result here, each once, in their order; --sequence-parallel without tp is
  /// behind them. A warning says why.
  std::vector<std::string> without_effect;
};

/// `arguments`: those behind the program's name; FLAG=VALUE is FLAG VALUE.
/// Errors: also for --global-batch-size without --micro-batch-size, and for one that micro-batches
///         of all data-parallel ranks do not divide, with the nearest ones; for --fp16 beside
///         --bf16; and those of parallelism_of.
MegatronCommandLine read_megatron_command_line(const std::vector<std::string>& arguments,
                                               const MegatronCommandLineOptions& options = {});

}  // namespace accelerate
