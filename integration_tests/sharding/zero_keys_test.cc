// Every honoured key of a DeepSpeed configuration changes what training does. Each has a row in one
// of the tables below: a configuration in which it counts, a value that it does not have there,
// what is measured, and how that compares with the training without the key.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/zero_keys.h"
#include "accelerate/examples/lm/model.h"
#include "integration_tests/sharding/small_models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using simulator::Cluster;
using simulator::MemoryCategory;
using simulator::Rank;
using simulator::Trace;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::Tensor;
using Numbers = std::vector<double>;

// ---- One training.

// On rank 0.
struct Measured {
  std::string error;  // what ended the training; empty: nothing
  // By backward pass: the loss, the scale of the next one, the learning rate, AdamW's first beta,
  // and whether the step was skipped.
  Numbers losses, scales, rates, betas, skipped;
  Numbers norms;  // by step
  // At the end, on the device.
  int64_t parameters = 0, state = 0;
  bool is_pinned = false;  // what the optimizer trains
  std::string saving_error;
  Trace trace;
};

struct Program {
  Json config;
  std::vector<int> overflows;  // passes
};

// The optimizer and the schedule are the configuration's where it has them.
void train_on(Rank& rank, const Program& program, Measured& measured) {
  AcceleratorOptions options{.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = program.config}};
  options.kwargs_handlers = {ShardedDataParallelKwargs{.group_bytes = 1}};
  Accelerator accelerator(options);
  torch::manual_seed(5);
  lm::Lm net(tiny());
  const auto passes = [&](auto& model, AcceleratedOptimizer& optimizer, auto&& rate) {
    for (int pass = 0; pass < 6; ++pass) {
      const auto scope = accelerator.accumulate(model);
      const Tensor loss = loss_of([&](const Tensor& x) { return model(x); }, *net, pass,
                                  rank.index(), accelerator.device());
      const bool overflows = std::ranges::count(program.overflows, pass) > 0 && rank.index() == 1;
      accelerator.backward(overflows ? loss * std::numeric_limits<float>::infinity() : loss);
      measured.losses.push_back(loss.detach().cpu().item<float>());
      if (accelerator.scaler() != nullptr) {
        measured.scales.push_back(accelerator.scaler()->get_scale());
      }
      measured.rates.push_back(rate());
      const auto* adam =
          dynamic_cast<const torch::optim::AdamWOptions*>(&optimizer->param_groups()[0].options());
      if (adam != nullptr) measured.betas.push_back(std::get<0>(adam->betas()));
      measured.skipped.push_back(accelerator.optimizer_step_was_skipped() ? 1 : 0);
      if (!accelerator.sync_gradients()) continue;
      measured.norms.push_back(*accelerator.deepspeed_engine_wrapped()->get_global_grad_norm());
    }
    if (rank.device() != nullptr) {
      const auto held = rank.device()->memory().by_category();
      measured.parameters = held[static_cast<size_t>(MemoryCategory::kParameters)];
      measured.state = held[static_cast<size_t>(MemoryCategory::kOptimizerState)];
    }
    const Tensor trained = optimizer->param_groups()[0].params()[0];
    measured.is_pinned = trained.is_cpu() && trained.is_pinned();
    try {
      accelerator.get_state_dict(model);
    } catch (const c10::ValueError& error) {
      measured.saving_error = error.what_without_backtrace();
    }
  };
  const auto train = [&](auto& own) {
    if (!program.config.contains("scheduler")) {
      auto [model, optimizer] = accelerator.prepare(net, own);
      return passes(model, optimizer, [] { return 0.; });
    }
    DummyScheduler dummy(own, {.total_num_steps = 40, .warmup_num_steps = 2});
    auto [model, optimizer, scheduler] = accelerator.prepare(net, own, dummy);
    passes(model, optimizer, [&scheduler = scheduler] { return scheduler.get_last_lr()[0]; });
  };
  if (program.config.contains("optimizer")) {
    DummyOptim dummy(net->parameters(), {.lr = 0.01});
    return train(dummy);
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(sgd);
}

Measured measured(const Program& program) {
  Measured result;
  Cluster cluster("2x2:h100", {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    Measured own;
    try {
      train_on(rank, program, own);
    } catch (const c10::Error& error) {
      own.error = error.what_without_backtrace();
    }
    if (rank.index() == 0) result = std::move(own);
  });
  result.trace = cluster.trace();
  return result;
}

// Measures a configuration that several rows have once.
const Measured& measured_before(const Program& program) {
  static std::map<std::pair<std::string, std::vector<int>>, Measured> all;
  auto& known = all[{program.config.dump(), program.overflows}];
  if (known.trace.world_size == 0) known = measured(program);
  return known;
}

// ---- What is measured.

double sum(const Numbers& numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.); }

// Collectives of this kind in groups of this name: how many, and of how many bytes.
Numbers collectives(const Measured& measured, const char* kind, const char* group, bool in_bytes) {
  double found = 0;
  for (const simulator::TraceOperation& each : measured.trace.operations) {
    if (!absl::StrContains(measured.trace.names[each.name], kind)) continue;
    if (!absl::StrContains(measured.trace.names[each.group], group)) continue;
    found += in_bytes ? static_cast<double>(each.bytes) : 1;
  }
  return {found};
}

constexpr char kGather[] = "all_gather", kReduce[] = "reduce_scatter";

using Measure = Numbers (*)(const Measured& measured);

Numbers losses(const Measured& m) { return m.losses; }
Numbers norms(const Measured& m) { return m.norms; }
Numbers scales(const Measured& m) { return m.scales; }
Numbers rates(const Measured& m) { return m.rates; }
Numbers betas(const Measured& m) { return m.betas; }
Numbers skipped(const Measured& m) { return m.skipped; }
Numbers steps(const Measured& m) { return {static_cast<double>(m.norms.size())}; }
Numbers parameters(const Measured& m) { return {static_cast<double>(m.parameters)}; }
Numbers state(const Measured& m) { return {static_cast<double>(m.state)}; }
Numbers pinned(const Measured& m) { return {m.is_pinned ? 1. : 0.}; }
Numbers saves(const Measured& m) { return {m.saving_error.empty() ? 1. : 0.}; }
Numbers gathers(const Measured& m) { return collectives(m, kGather, "", false); }
Numbers gathered_bytes(const Measured& m) { return collectives(m, kGather, "", true); }
Numbers second_gathers(const Measured& m) { return collectives(m, kGather, "zero_hpz", true); }
Numbers reductions(const Measured& m) { return collectives(m, kReduce, "", false); }
Numbers reduced_bytes(const Measured& m) { return collectives(m, kReduce, "", true); }
// When rank 0's gathers begin: kernels are too short here to hide them.
Numbers starts_of_gathers(const Measured& m) {
  Numbers starts;
  for (const simulator::Slice& each : m.trace.slices) {
    if (each.rank != 0 || each.kind != simulator::SliceKind::kCollective) continue;
    if (!absl::StrContains(m.trace.names[each.name], kGather)) continue;
    starts.push_back(static_cast<double>(each.start_ns));
  }
  return starts;
}
Numbers operators(const Measured& m) {
  double calls = 0;
  for (const simulator::OperatorSummary& each : m.trace.operators) {
    calls += static_cast<double>(each.calls);
  }
  return {calls};
}

// ---- The tables.

enum class Change {
  kLess,     // the sum is
  kMore,     // the sum is
  kAnother,  // some number is
  kRefused,  // the training fails, in these words
};

struct Row {
  const char* key;
  Json value;
  Json around = nullptr;  // with what the configuration below has
  Measure measure = nullptr;
  Change change = Change::kAnother;
  const char* words = "";
  std::vector<int> overflows = {};
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.key; }

// In stage 3 nothing stays unless a row says so.
Json configuration(const Json& around) {
  Json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"gradient_clipping", 0},
                 {"zero_optimization",
                  {{"stage", 2},
                   {"stage3_param_persistence_threshold", 0},
                   {"stage3_max_reuse_distance", 0}}}};
  if (!around.is_null()) config.merge_patch(around);
  return config;
}

void put(Json& config, const std::string& key, const Json& value) {
  Json* node = &config;
  for (const auto part : absl::StrSplit(key, '.')) node = &(*node)[std::string(part)];
  *node = value;
}

Json zero(Json block) { return {{"zero_optimization", std::move(block)}}; }
Json stage(int number) { return zero({{"stage", number}}); }
Json optimizer(const char* type, const Json& params = Json::object(), int stage_number = 2) {
  Json config = stage(stage_number);
  config["optimizer"] = {{"type", type}, {"params", params}};
  return config;
}
Json schedule(const char* type, const Json& params = Json::object()) {
  return {{"scheduler", {{"type", type}, {"params", params}}}};
}

std::vector<Row> rows_of_steps() {
  const auto fp16 = [](Json block) {
    block["enabled"] = true;
    return Json{{"fp16", std::move(block)}};
  };
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  Json in_msamp = optimizer("AdamW");
  in_msamp["msamp"] = {{"enabled", true}};
  const Json sent_in_fp16 = {{"communication_data_type", "fp16"}, {"gradient_predivide_factor", 3}};
  return {
      {"train_batch_size", 16, {}, nullptr, Change::kRefused, "train_batch_size is 16, but"},
      {"train_micro_batch_size_per_gpu",
       4,
       {{"train_batch_size", 8}},
       nullptr,
       Change::kRefused,
       "train_batch_size is 8, but train_micro_batch_size_per_gpu 4"},
      {"gradient_accumulation_steps", 2, {}, &steps, Change::kLess},
      {"gradient_clipping", 0.01, {}, &losses},
      {"communication_data_type", "bf16", {}, &reduced_bytes, Change::kLess},
      {"prescale_gradients", true, sent_in_fp16, &norms},
      {"gradient_predivide_factor", 3, {{"communication_data_type", "fp16"}}, &norms},
      {"fp16.enabled", true, stage(3), &gathered_bytes, Change::kLess},
      {"fp16.loss_scale", 64, fp16({}), &scales, Change::kLess},
      {"fp16.initial_scale_power", 4, fp16({}), &scales, Change::kLess},
      {"fp16.loss_scale_window", 1, fp16({{"initial_scale_power", 4}}), &scales, Change::kMore},
      {"fp16.hysteresis", 1, fp16({{"initial_scale_power", 9}}), &scales, Change::kLess, "", {1}},
      {"fp16.consecutive_hysteresis",
       true,
       fp16({{"initial_scale_power", 9}}),
       &scales,
       Change::kMore,
       "",
       {1, 3}},
      {"fp16.min_loss_scale",
       4,
       fp16({{"initial_scale_power", 2}, {"hysteresis", 1}}),
       nullptr,
       Change::kRefused,
       "scale",
       {1}},
      {"bf16.enabled", true, stage(3), &gathered_bytes, Change::kLess},
      {"bf16.check_grad_overflow", true, bf16, &skipped, Change::kMore, "", {1}},
      {"msamp.enabled", true, {}, &operators, Change::kMore},
      {"msamp.opt_level", "O2", in_msamp, &state, Change::kLess},
      {"activation_checkpointing", Json::object(), {}, &operators, Change::kMore},
  };
}

std::vector<Row> rows_of_optimizers() {
  const Json lamb = optimizer("Lamb", {{"lr", 0.01}}, /*stage_number=*/0);
  const Json sgd = optimizer("SGD", {{"lr", 0.1}, {"momentum", 0.5}});
  return {
      {"optimizer.type", "SGD", optimizer("Adam"), &state, Change::kLess},
      {"optimizer.params.lr", 0.1, optimizer("Adam"), &losses},
      {"optimizer.params.betas", {0.5, 0.6}, optimizer("Adam"), &losses},
      {"optimizer.params.eps", 0.1, optimizer("Adam"), &losses},
      {"optimizer.params.weight_decay", 0.5, optimizer("Adam"), &losses},
      {"optimizer.params.bias_correction", false, lamb, &losses},
      {"optimizer.params.amsgrad", true, optimizer("Adam"), &state, Change::kMore},
      {"optimizer.params.adam_w_mode", false, optimizer("Adam", {{"weight_decay", 0.5}}), &losses},
      {"optimizer.params.max_coeff", 0.02, lamb, &losses},
      {"optimizer.params.min_coeff", 5, lamb, &losses},
      {"optimizer.params.momentum", 0.9, optimizer("SGD", {{"lr", 0.1}}), &losses},
      {"optimizer.params.dampening", 0.5, sgd, &losses},
      {"optimizer.params.nesterov", true, sgd, &losses},
  };
}

std::vector<Row> rows_of_schedules() {
  const Json warmup = schedule("WarmupLR", {{"warmup_num_steps", 4}, {"warmup_max_lr", 0.1}});
  const Json decay = schedule("WarmupDecayLR", {{"warmup_num_steps", 2}, {"total_num_steps", 8}});
  const Json cosine = schedule("WarmupCosineLR", {{"warmup_num_steps", 2}, {"total_num_steps", 4}});
  const auto cycle = [](const Json& more = Json::object()) {
    Json params = {{"cycle_min_lr", 0.01}, {"cycle_max_lr", 0.1}, {"cycle_first_step_size", 2}};
    params.merge_patch(more);
    Json config = schedule("OneCycle", params);
    config.merge_patch(optimizer("Adam"));
    return config;
  };
  const Json decays = cycle({{"cycle_first_step_size", 1}, {"decay_step_size", 1}});
  const Json decays_both =
      cycle({{"cycle_first_step_size", 1}, {"decay_step_size", 1}, {"decay_lr_rate", 0.5}});
  const Json range = schedule("LRRangeTest", {{"lr_range_test_step_size", 3}});
  const auto param = [](const char* name, Json value, Json around, Measure measure = &rates) {
    return Row{name, std::move(value), std::move(around), measure};
  };
  return {
      param("scheduler.type", "LRRangeTest", schedule("WarmupLR")),
      param("scheduler.params.last_batch_iteration", 1, warmup),
      param("scheduler.params.warmup_min_lr", 0.05, warmup),
      param("scheduler.params.warmup_max_lr", 0.2, warmup),
      param("scheduler.params.warmup_num_steps", 3, warmup),
      param("scheduler.params.warmup_type", "linear", warmup),
      param("scheduler.params.total_num_steps", 4, decay),
      param("scheduler.params.warmup_min_ratio", 0.5, cosine),
      param("scheduler.params.cos_min_ratio", 0.5, cosine),
      param("scheduler.params.cycle_min_lr", 0.02, cycle()),
      param("scheduler.params.cycle_max_lr", 0.2, cycle()),
      param("scheduler.params.decay_lr_rate", 0.5, decays),
      param("scheduler.params.cycle_first_step_size", 3, cycle()),
      param("scheduler.params.cycle_second_step_size", 4, cycle()),
      param("scheduler.params.cycle_first_stair_count", 1, cycle()),
      param("scheduler.params.cycle_second_stair_count", 1, cycle()),
      param("scheduler.params.decay_step_size", 2, decays_both),
      param("scheduler.params.cycle_momentum", false, cycle(), &betas),
      param("scheduler.params.cycle_min_mom", 0.7, cycle(), &betas),
      param("scheduler.params.cycle_max_mom", 0.95, cycle(), &betas),
      param("scheduler.params.decay_mom_rate", 0.01, decays, &betas),
      param("scheduler.params.lr_range_test_min_lr", 0.01, range),
      param("scheduler.params.lr_range_test_step_size", 2, range),
      param("scheduler.params.lr_range_test_step_rate", 2, range),
      param("scheduler.params.lr_range_test_staircase", true, range),
  };
}

std::vector<Row> rows_of_zero() {
  const Json on_host = zero({{"stage", 3}, {"offload_optimizer", {{"device", "cpu"}}}});
  const Json all_on_host = zero({{"stage", 3}, {"offload_param", {{"device", "cpu"}}}});
  const Json stays = zero({{"stage", 3}, {"stage3_max_reuse_distance", 1'000'000}});
  const Json small = zero({{"stage", 3}, {"stage3_param_persistence_threshold", 1'000'000}});
  const auto key = [](const char* name, Json value, Json around, Measure measure, Change change) {
    return Row{name, std::move(value), std::move(around), measure, change};
  };
  return {
      key("zero_optimization.stage", 3, {}, &parameters, Change::kLess),
      key("zero_optimization.reduce_bucket_size", 100, {}, &reductions, Change::kMore),
      key("zero_optimization.sub_group_size", 1000, optimizer("Adam"), &operators, Change::kMore),
      key("zero_optimization.stage3_prefetch_bucket_size", 0, stage(3), &starts_of_gathers,
          Change::kMore),
      key("zero_optimization.stage3_param_persistence_threshold", 1000, stage(3), &gathers,
          Change::kLess),
      key("zero_optimization.stage3_model_persistence_threshold", 0, small, &gathers,
          Change::kMore),
      key("zero_optimization.stage3_max_live_parameters", 0, stays, &gathers, Change::kMore),
      key("zero_optimization.stage3_max_reuse_distance", 1'000'000, stage(3), &gathers,
          Change::kLess),
      key("zero_optimization.stage3_gather_16bit_weights_on_model_save", true, stage(3), &saves,
          Change::kMore),
      key("zero_optimization.stage3_gather_fp16_weights_on_model_save", true, stage(3), &saves,
          Change::kMore),
      key("zero_optimization.zero_hpz_partition_size", 2, stage(3), &second_gathers, Change::kMore),
      key("zero_optimization.leaf_module.classes", {"Block"}, stage(3), &gathers, Change::kLess),
      key("zero_optimization.offload_optimizer.device", "cpu", {}, &state, Change::kLess),
      key("zero_optimization.offload_optimizer.pin_memory", true, on_host, &pinned, Change::kMore),
      key("zero_optimization.offload_param.device", "cpu", stage(3), &parameters, Change::kLess),
      key("zero_optimization.offload_param.pin_memory", true, all_on_host, &pinned, Change::kMore),
      key("zero_optimization.cpu_offload", true, {}, &state, Change::kLess),
      key("zero_optimization.cpu_offload_params", true, stage(3), &parameters, Change::kLess),
      key("zero_optimization.cpu_offload_param", true, stage(3), &parameters, Change::kLess),
      key("zero_optimization.cpu_offload_use_pin_memory", true, on_host, &pinned, Change::kMore),
      key("zero_optimization.offload_optimizer.ratio", 0.5, on_host, &state, Change::kMore),
  };
}

std::vector<Row> all_rows() {
  std::vector<Row> all;
  for (auto* part : {&rows_of_steps, &rows_of_optimizers, &rows_of_schedules, &rows_of_zero}) {
    for (Row& row : part()) all.push_back(std::move(row));
  }
  return all;
}

// Tests of what is on a disk between steps show these.
bool is_about_a_disk(const std::string& key) {
  static const std::vector<std::string> kOffload = {
      "offload_optimizer.nvme_path",     "offload_optimizer.buffer_count",
      "offload_optimizer.pipeline_read", "offload_optimizer.pipeline_write",
      "offload_param.nvme_path",         "offload_param.buffer_count",
      "offload_param.buffer_size",       "offload_param.max_in_cpu"};
  return absl::StartsWith(key, "aio.") || std::ranges::any_of(kOffload, [&](const auto& each) {
           return key == absl::StrCat("zero_optimization.", each);
         });
}

TEST(ZeroKeys, HaveARowEach) {
  std::vector<std::string> keys;
  for (const Row& row : all_rows()) keys.emplace_back(row.key);
  for (const internal::ZeroKey& each : internal::zero_keys()) {
    const bool is_shown_here =
        each.info.state == DeepSpeedKeyState::kHonoured && !is_about_a_disk(each.info.key);
    EXPECT_EQ(std::ranges::count(keys, each.info.key), is_shown_here ? 1 : 0) << each.info.key;
    std::erase(keys, each.info.key);
  }
  EXPECT_TRUE(keys.empty()) << "there is no such key: " << keys.front();
}

class EachZeroKey : public ::testing::TestWithParam<Row> {};

TEST_P(EachZeroKey, ChangesTheTraining) {
  const Row& row = GetParam();
  Program without{.config = configuration(row.around), .overflows = row.overflows};
  Program with = without;
  put(with.config, row.key, row.value);
  const Measured& before = measured_before(without);
  const Measured after = measured(with);
  if (row.change == Change::kRefused) {
    EXPECT_THAT(after.error, HasSubstr(row.words));
    EXPECT_THAT(before.error, Not(HasSubstr(row.words)));
    return;
  }
  EXPECT_EQ(before.error, "");
  EXPECT_EQ(after.error, "");
  const Numbers numbers_before = row.measure(before), numbers_after = row.measure(after);
  EXPECT_FALSE(numbers_before.empty());
  switch (row.change) {
    case Change::kLess: EXPECT_LT(sum(numbers_after), sum(numbers_before)); break;
    case Change::kMore: EXPECT_GT(sum(numbers_after), sum(numbers_before)); break;
    case Change::kAnother:
      EXPECT_NE(numbers_after, numbers_before);
      // What differs without a cause shows nothing.
      EXPECT_EQ(row.measure(measured(without)), numbers_before);
      break;
    case Change::kRefused: break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachZeroKey, ::testing::ValuesIn(all_rows()), [](const auto& info) {
  return absl::StrReplaceAll(info.param.key, {{".", "_"}});
});

}  // namespace
}  // namespace accelerate
