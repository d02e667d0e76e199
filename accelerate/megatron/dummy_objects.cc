#include "accelerate/megatron/dummy_objects.h"

#include "accelerate/config/megatron_arguments.h"

namespace accelerate {

MegatronLMDummyDataLoader::MegatronLMDummyDataLoader(const nlohmann::ordered_json& dataset_kwargs)
    : dataset_args(dataset_kwargs) {
  check_megatron_arguments(dataset_args, "MegatronLMDummyDataLoader");
  dataset_args["megatron_dataset_flag"] = true;
}

}  // namespace accelerate
