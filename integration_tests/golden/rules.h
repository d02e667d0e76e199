/// The decisions of each family, in the order in which they apply; see decisions.h.
///
/// Threads: pure functions.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

std::vector<Decision> big_modeling_dispatch_rules();
std::vector<Decision> big_modeling_hook_rules();
std::vector<Decision> big_modeling_module_rules();
std::vector<Decision> big_modeling_offload_rules();
std::vector<Decision> checkpoint_sharding_rules();
std::vector<Decision> deepspeed_plugin_rules();
std::vector<Decision> device_map_rules();
std::vector<Decision> dynamo_plugin_rules();
std::vector<Decision> env_parsing_rules();
std::vector<Decision> fsdp_plugin_rules();
std::vector<Decision> grad_sync_rules();
std::vector<Decision> launch_env_rules();
std::vector<Decision> megatron_plugin_rules();
std::vector<Decision> operations_rules();
std::vector<Decision> parallelism_rules();
std::vector<Decision> prepared_dataloader_rules();
std::vector<Decision> quantization_config_rules();
std::vector<Decision> save_state_layout_rules();
std::vector<Decision> tracking_rules();

/// The part of launch_env_rules() about configuration files and about lists of keys and flags.
std::vector<Decision> launch_file_rules();

/// The parts of tracking_rules() that belong to one tracker.
std::vector<Decision> dvclive_tracking_rules();
std::vector<Decision> mlflow_tracking_rules();
std::vector<Decision> tensorboard_tracking_rules();

}  // namespace accelerate::golden
