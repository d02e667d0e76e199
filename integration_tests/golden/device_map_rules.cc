#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "integration_tests/golden/compare.h"
#include "integration_tests/golden/device_map_model.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFamily[] = "device_map";

// ---- Faults.

// The outcomes of the case that was asked for last, by the number of mended faults.
const json& outcomes(const json& in, int mended) {
  struct Last {
    json in;
    std::vector<json> by_mended;
  };
  static thread_local Last last;
  if (last.in != in) {
    last = {in, std::vector<json>(kNumMapFaults + 1)};
  }
  json& outcomes = last.by_mended[static_cast<size_t>(mended)];
  if (outcomes.is_null()) {
    outcomes = json::array();
    for (const json& infer : field(in, "infer")) {
      outcomes.push_back(place_by_hand(in, infer, mended));
    }
  }
  return outcomes;
}

json sorted(json outcome) {
  if (outcome.contains("map")) std::sort(outcome["map"].begin(), outcome["map"].end());
  return outcome;
}

bool is_recorded(const json& recorded, const json& modelled) {
  if (recorded.contains("variants")) {
    return std::any_of(recorded["variants"].begin(), recorded["variants"].end(),
                       [&](const json& variant) { return is_recorded(variant, modelled); });
  }
  if (recorded.contains("error") || modelled.contains("error")) {
    return recorded.contains("error") && modelled.contains("error") &&
           recorded["error"].value("type", "") == modelled["error"].value("type", "");
  }
  return !first_difference(sorted(recorded), sorted(modelled));
}

template <int kFault>
bool makes_a_difference(const json& in) {
  return outcomes(in, kFault) != outcomes(in, kFault + 1);
}

// What the rules before left is what the remaining faults lead to.
template <int kFault>
void mend(const json& in, json& out) {
  const json& before = outcomes(in, kFault);
  const json& after = outcomes(in, kFault + 1);
  for (size_t i = 0; i < before.size(); ++i) {
    json& outcome = out.at("infer")[i];
    if (before[i] != after[i] && is_recorded(outcome, before[i])) outcome = after[i];
  }
}

template <MapFault kFault>
Decision mended(const char* name, const char* reason) {
  constexpr int kNumber = static_cast<int>(kFault);
  return {kFamily, name, reason, &makes_a_difference<kNumber>, &mend<kNumber>};
}

// ---- Balanced memory.

bool balances_a_disk(const json& in) {
  for (const json& balanced : field(in, "balanced")) {
    for (const json& limit : field(balanced, "max_memory")) {
      if (limit[0] == "disk") return true;
    }
  }
  return false;
}

// The disk keeps its limit, and the others' are what they are without it.
void leave_the_disk_alone(const json& in, json& out) {
  for (size_t i = 0; i < out.at("balanced").size(); ++i) {
    json& outcome = out["balanced"][i];
    if (!outcome.contains("error") || outcome["error"].value("type", "") != "RuntimeError")
      continue;
    outcome = balance_by_hand(in, field(in, "balanced")[i]);
  }
}

}  // namespace

std::vector<Decision> device_map_rules() {
  return {
      mended<MapFault::kSubstrings>("parts of names",
                                    "HF Accelerate takes a module for the holder of a tied tensor "
                                    "whose name has the module's "
                                    "anywhere in it; ours has it below the module"),
      mended<MapFault::kTiesCrash>(
          "ties of divided modules",
          "HF Accelerate ends in an IndexError where a tied tensor's module was divided or is the "
          "root; ours places what holds the tensor now, with all that is tied to that"),
      mended<MapFault::kTiesCountWrong>(
          "sizes with ties",
          "HF Accelerate counts a module twice that shares two tensors, and a tensor never whose "
          "first name is placed later; ours counts what is placed once"),
      mended<MapFault::kLeavesBuffers>(
          "buffers of divided modules",
          "HF Accelerate leaves the direct buffers of divided modules out of the map, which its "
          "own "
          "check refuses; ours places them behind the module's parameters"),
      mended<MapFault::kFractionsCrash>(
          "fallback with fractions of bytes",
          "HF Accelerate's fallback ends in an AttributeError where booleans make sizes fractions; "
          "ours goes on"),
      mended<MapFault::kForgetsBuffers>(
          "buffers that want room",
          "HF Accelerate warns of offloaded buffers without those of tied modules and those that "
          "are entries of the map; ours counts all"),
      {kFamily, "balanced memory and disk",
       "HF Accelerate's get_balanced_memory fails at \"disk\"; ours leaves its limit alone",
       &balances_a_disk, &leave_the_disk_alone},
  };
}

}  // namespace accelerate::golden
