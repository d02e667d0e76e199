#include "integration_tests/golden/deepspeed_initialize.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::golden {
namespace {

using nlohmann::json;

std::string kind_of(const json& object) { return object.value("kind", ""); }

const json* find_object(const json& in, const std::vector<std::string>& kinds) {
  for (const json& object : in["objects"]) {
    if (std::find(kinds.begin(), kinds.end(), kind_of(object)) != kinds.end()) return &object;
  }
  return nullptr;
}

// Whether deepspeed.initialize gets a scheduler: one of DeepSpeed's classes beside the program's
// optimizer, or what makes one beside the configuration's.
bool hands_a_scheduler_on(const json& in) {
  static constexpr const char* kClasses[] = {"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR",
                                             "WarmupCosineLR"};
  if (const json* const dummy = find_object(in, {"dummy_scheduler"})) {
    const json callable = dummy->value("lr_scheduler_callable", dummy->value("callable", json()));
    return find_object(in, {"dummy_optimizer"}) != nullptr && !callable.is_null() &&
           callable != false;
  }
  const json* const scheduler = find_object(in, {"scheduler"});
  return scheduler != nullptr && find_object(in, {"optimizer"}) != nullptr &&
         std::find(std::begin(kClasses), std::end(kClasses), scheduler->value("class", "")) !=
             std::end(kClasses);
}

// What HF Accelerate hands to deepspeed.initialize, without a scheduler.
json handed_by_hand(const json& in, const json& config) {
  json handed = {{"model", find_object(in, {"model"})->value("class", "Linear")},
                 {"config_params", "given"}};
  if (find_object(in, {"dummy_optimizer"}) != nullptr) handed["model_parameters"] = "given";
  const json* const optimizer = find_object(in, {"optimizer"});
  if (optimizer == nullptr) return handed;
  std::string name = optimizer->value("class", "AdamW");
  const json zero = config.value("zero_optimization", json::object());
  const json block = zero.is_object() ? zero.value("offload_optimizer", json()) : json();
  const bool is_on_host = block.is_object() && block.value("device", json("none")) != "none" &&
                          config.value("zero_force_ds_cpu_optimizer", json(true)) != false;
  if (is_on_host) name = name == "Adagrad" ? "DeepSpeedCPUAdagrad" : "DeepSpeedCPUAdam";
  handed["optimizer"] = name;
  return handed;
}

// The class of what HF Accelerate gives back for an object. Without a model it prepares loaders
// alone.
bool is_what_comes_back(const json& in, const json& object, const json& recorded) {
  const std::string kind = kind_of(object);
  if (kind == "model") return recorded == "Engine";
  if (kind == "loader") return recorded == "DataLoader";
  const bool is_optimizer = kind == "optimizer" || kind == "dummy_optimizer";
  if (find_object(in, {"model"}) == nullptr) {
    if (kind.starts_with("dummy_")) {
      return recorded == (is_optimizer ? "DummyOptim" : "DummyScheduler");
    }
    return recorded == object.value("class", is_optimizer ? "AdamW" : "LambdaLR");
  }
  if (is_optimizer) return recorded == "DeepSpeedOptimizerWrapper";
  return recorded == "AcceleratedScheduler" ||
         (hands_a_scheduler_on(in) && recorded == "DeepSpeedSchedulerWrapper");
}

bool is_what_is_handed(const json& in, const json& out) {
  json handed = out.value("initialize", json());
  if (find_object(in, {"model"}) == nullptr) return handed.is_null();
  if (!handed.is_object() || handed.contains("lr_scheduler") != hands_a_scheduler_on(in)) {
    return false;
  }
  handed.erase("lr_scheduler");
  return handed == handed_by_hand(in, out["config"]);
}

}  // namespace

void give_objects_of_the_library(const json& in, json& out) {
  if (!out.contains("result") || !is_what_is_handed(in, out)) return;
  const json& objects = in["objects"];
  if (out["result"].size() != objects.size()) return;
  json names = json::array();
  for (size_t i = 0; i < objects.size(); ++i) {
    const std::string kind = kind_of(objects[i]);
    if (!is_what_comes_back(in, objects[i], out["result"][i])) return;
    names.push_back(kind == "model"               ? "PreparedModel"
                    : kind == "loader"            ? "DataLoader"
                    : kind.ends_with("optimizer") ? "AcceleratedOptimizer"
                                                  : "AcceleratedScheduler");
  }
  out["result"] = std::move(names);
  out.erase("initialize");
}

}  // namespace accelerate::golden
