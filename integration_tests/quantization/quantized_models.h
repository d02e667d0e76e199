/// A small language model with a checkpoint, and the ways to quantise it.
///
/// Threads: the rank's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/utils.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/modules/module_state_dict.h"
#include "integration_tests/dispatch/models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {

inline constexpr char kCheckpoint[] = "/sim/checkpoint";

inline lm::Lm gpt() {
  torch::manual_seed(11);
  lm::Lm net(lm_config(lm::Blocks::kGpt, /*tied=*/false));
  net->eval();
  return net;
}

inline lm::Lm empty_gpt() {
  const EmptyInit empty = init_empty_weights();
  lm::Lm net(lm_config(lm::Blocks::kGpt, /*tied=*/false));
  net->eval();
  return net;
}

inline Tensor text() { return tokens_of({2, 9}, 41); }

inline DeviceMap map_of(const std::vector<std::string>& placements) {
  const Case each = lm_case("", lm::Blocks::kGpt);
  return placements.size() == 1 ? whole(placements[0]) : cut(each.parts, placements);
}

// By default a rank with two devices, and always a disk that has the model.
inline void run(const std::function<void(simulator::Rank&)>& body,
                const std::string& shape = "1x1:h100,devices=2") {
  const auto disk = std::make_shared<simulator::SimDisk>();
  save_model(*disk, module_state_dict(*gpt()), kCheckpoint);
  simulator::Cluster cluster(shape, {.disk = disk});
  cluster.run_on_every_rank(body);
}

inline std::vector<BnbQuantizationConfig> four_bit_configs() {
  std::vector<BnbQuantizationConfig> configs;
  for (const char* type : {"fp4", "nf4"}) {
    for (const bool is_double : {false, true}) {
      configs.push_back({.load_in_4bit = true,
                         .bnb_4bit_quant_type = type,
                         .bnb_4bit_use_double_quant = is_double,
                         .bnb_4bit_compute_dtype = "bf16"});
    }
  }
  return configs;
}

inline std::string name_of(const BnbQuantizationConfig& config) {
  return config.load_in_8bit ? "int8"
                             : absl::StrCat(config.bnb_4bit_quant_type,
                                            config.bnb_4bit_use_double_quant ? " twice" : "");
}

// A plain model that has the values of which a quantised one has the codes.
}  // namespace accelerate
