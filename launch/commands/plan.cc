// `accelerate plan MODEL --on CLUSTER`: starts the program that simulates a language model's step
// in each layout of the cluster's ranks. `accelerate plan --layouts_markdown`: which layouts there
// are.

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/rank_layout.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "plan";

struct Options {
  std::string model;
  std::string cluster;
  std::optional<int64_t> batch_size, sequence_length, layers, experts, most_pp, most_cp, most_sp;
  std::optional<double> skew;
  int64_t micro_batch_size = 1;
  std::string mixed_precision = "bf16";
  bool exact = false;
  bool as_json = false;
  bool layouts_markdown = false;
};

nlohmann::ordered_json request_of(const Options& options) {
  nlohmann::ordered_json request = {{"model", options.model},
                                    {"cluster", options.cluster},
                                    {"micro_batch_size", options.micro_batch_size},
                                    {"mixed_precision", options.mixed_precision},
                                    {"exact", options.exact}};
  const auto add = [&request](const char* name, const auto& value) {
    if (value) request[name] = *value;
  };
  add("batch_size", options.batch_size);
  add("sequence_length", options.sequence_length);
  add("layers", options.layers);
  add("experts", options.experts);
  add("skew", options.skew);
  add("most_pp", options.most_pp);
  add("most_cp", options.most_cp);
  add("most_sp", options.most_sp);
  if (options.as_json) request["json"] = true;
  return request;
}

int run(const Options& options, Invocation& invocation) {
  if (options.layouts_markdown) {
    invocation.out << layouts_markdown();
    return finish(invocation);
  }
  if (options.model.empty() || options.cluster.empty()) {
    return refuse(invocation, kName,
                  "a model and a cluster are needed: accelerate plan "
                  "llama-70b --on 16x8:h100");
  }
  const auto spec = simulator::ClusterSpec::parse(options.cluster);
  if (!spec.ok()) return fail(invocation, kName, spec.status(), kExitBadCommandLine);
  // Devices have a memory and a time.
  if (!spec->device) {
    return refuse(invocation, kName,
                  absl::StrCat("--on=", options.cluster,
                               " names no device; expected a cluster as 16x8:h100"));
  }
  return run_companion(invocation, kName, kPlanProgram,
                       {accelerate::internal::exact_json_text(request_of(options))});
}

void declare(CLI::App& app, Options& options) {
  app.footer(
      "Layouts that fit come first, by the time of a step; the others have the reason. Nothing is "
      "trained: see accelerate/docs/plan_a_cluster.md.");
  add_value(app, "model", options.model, "",
            "a language model of the examples: llama-7b, llama-70b, gpt-1b");
  add_value(app, "--on", options.cluster, "CLUSTER", "the cluster: 16x8:h100");
  const auto count = [&app](const char* name, auto& value, const char* help) {
    add_value(app, name, value, "N", help)->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  };
  count("--batch_size", options.batch_size,
        "sequences of a step, over all ranks; default: one for each rank");
  count("--micro_batch_size", options.micro_batch_size,
        "sequences of a rank in one forward pass; default 1");
  count("--sequence_length", options.sequence_length,
        "tokens of a sequence, instead of the model's");
  count("--layers", options.layers, "blocks, instead of the model's");
  count("--experts", options.experts,
        "in Llama's blocks: so many perceptrons, of which each token has two");
  add_value(app, "--skew", options.skew, "X",
            "how many times the mean the first expert has of tokens; default: all have as many")
      ->check(CLI::Range(0.0, 1e9));
  count("--most_pp", options.most_pp, "also layouts with up to so many stages; default 1");
  count("--most_cp", options.most_cp,
        "also layouts with up to so many parts of each sequence along cp; default 1");
  count("--most_sp", options.most_sp, "the same along sp; default 1");
  add_value(app, "--mixed_precision", options.mixed_precision, "", "default bf16")
      ->check(CLI::IsMember({"no", "bf16", "fp16", "fp8"}));
  app.add_flag("--exact", options.exact,
               "simulate all blocks and micro-steps, instead of few that the others follow from");
  app.add_flag("--json", options.as_json, "print the layouts as a list in JSON, for programs");
  app.add_flag("--layouts_markdown", options.layouts_markdown,
               "print which axes and techniques go together, as in accelerate/docs/layouts.md");
}

}  // namespace

const Command kPlan = {kName, "Compare the layouts of a model on a cluster.",
                       with_options<declare, run>};

}  // namespace accelerate::launcher::commands
