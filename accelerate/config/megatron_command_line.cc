#include "accelerate/config/megatron_command_line.h"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/fields.h"
#include "accelerate/config/megatron_arguments.h"

namespace accelerate {
namespace {

using enum MegatronArgumentForm;
using Json = nlohmann::ordered_json;

constexpr char kTp[] = "tensor_model_parallel_size";
constexpr char kExpertTp[] = "expert_tensor_parallel_size";
constexpr char kMicroBatch[] = "micro_batch_size";
constexpr char kGlobalBatch[] = "global_batch_size";

// ---- Flags and what stands behind them.

struct GivenFlag {
  std::string flag;
  std::vector<std::string> values = {};
};

bool is_flag(absl::string_view text) { return absl::StartsWith(text, "--") && text.size() > 2; }

std::vector<GivenFlag> flags_of(const std::vector<std::string>& arguments) {
  std::vector<GivenFlag> flags;
  for (const std::string& each : arguments) {
    if (!is_flag(each)) {
      TORCH_CHECK_VALUE(!flags.empty(), "Megatron-LM's command line: expected a flag, got \"", each,
                        "\"");
      flags.back().values.push_back(each);
      continue;
    }
    const size_t equals = each.find('=');
    flags.push_back({.flag = each.substr(0, equals)});
    if (equals != std::string::npos) flags.back().values.push_back(each.substr(equals + 1));
  }
  return flags;
}

Json value_of(const GivenFlag& given, MegatronArgumentForm form) {
  const std::vector<std::string>& values = given.values;
  const auto expect = [&](bool is_right, const char* what) {
    TORCH_CHECK_VALUE(
        is_right, given.flag, ": expected ", what, " behind it, got ",
        values.empty() ? "nothing" : absl::StrCat("\"", absl::StrJoin(values, " "), "\""));
  };
  if (form == kOn || form == kOff) {
    expect(values.empty(), "nothing");
    return form == kOn;
  }
  if (form == kTexts) {
    expect(!values.empty(), "texts");
    return values;
  }
  if (form == kInteger) {
    int64_t number = 0;
    expect(values.size() == 1 && absl::SimpleAtoi(values[0], &number), "a whole number");
    return number;
  }
  if (form == kNumber) {
    double number = 0;
    expect(values.size() == 1 && absl::SimpleAtod(values[0], &number), "a number");
    return number;
  }
  expect(values.size() == 1, "a text");
  return values[0];
}

// ---- Fields.

// What Megatron-LM has where its command line says nothing, and a plug-in does not have.
Json usual_arguments() {
  return {{kTp, 1},
          {"pipeline_model_parallel_size", 1},
          {"context_parallel_size", 1},
          {"expert_model_parallel_size", 1},
          {"sequence_parallel", false},
          {"use_distributed_optimizer", false},
          {"attention_dropout", 0.1},
          {"hidden_dropout", 0.1},
          {"attention_softmax_in_fp32", false},
          {"calculate_per_token_loss", false},
          {"use_rotary_position_embeddings", false},
          {"clip_grad", 1.0},
          {"optimizer", "adam"},
          {"adam_beta1", 0.9},
          {"adam_beta2", 0.999},
          {"adam_eps", 1e-8},
          {"sgd_momentum", 0.9},
          {"weight_decay", 0.01}};
}

template <typename T>
concept IsPlainField = std::same_as<T, bool> || std::same_as<T, int64_t> ||
                       std::same_as<T, double> || std::same_as<T, std::string>;

void set_fields(MegatronLMPlugin& plugin, const Json& args) {
  for (const auto& item : args.items()) {
    const std::string& argument = item.key();
    const Json& value = item.value();
    const absl::string_view wanted = megatron_field(argument);
    visit_fields(plugin, [&](const char* name, auto& field) {
      using Value = typename internal::Unwrapped<std::remove_cvref_t<decltype(field)>>::Type;
      if constexpr (IsPlainField<Value>) {
        if (wanted == name) field = value.template get<Value>();
      }
    });
  }
}

// ---- Batches.

// How many micro-batches of a rank a step has.
int64_t micro_batches_of(const Json& args, int64_t num_ranks) {
  const auto global = args.find(kGlobalBatch);
  const auto micro = args.find(kMicroBatch);
  MegatronLMPlugin degrees;
  degrees.megatron_lm_default_args = args;
  const ParallelismOptions mesh = parallelism_of(degrees, num_ranks);
  if (global == args.end() && micro == args.end()) return 1;
  TORCH_CHECK_VALUE(micro != args.end(),
                    "--global-batch-size needs --micro-batch-size, of which a step has several");
  TORCH_CHECK_VALUE(micro->get<int64_t>() >= 1, "--micro-batch-size is ", micro->get<int64_t>(),
                    ", but it is at least 1");
  if (global == args.end()) return 1;
  const int64_t rows = global->get<int64_t>();
  const int64_t ranks = *mesh.dp_replicate_size * *mesh.dp_shard_size;
  const int64_t once = ranks * micro->get<int64_t>();
  const int64_t below = rows / once * once;
  TORCH_CHECK_VALUE(
      rows >= once && rows == below, "--global-batch-size is ", rows,
      ", which is not a multiple of --micro-batch-size=", micro->get<int64_t>(), " times ", ranks,
      " data-parallel ranks; the nearest that are: ",
      below >= once ? absl::StrCat(below, " and ", below + once) : absl::StrCat(once));
  return rows / once;
}

}  // namespace

MegatronCommandLine read_megatron_command_line(const std::vector<std::string>& arguments,
                                               const MegatronCommandLineOptions& options) {
  TORCH_CHECK_VALUE(options.num_ranks >= 1, "Megatron-LM's command line: num_ranks is ",
                    options.num_ranks, ", but a job has at least 1");
  MegatronCommandLine line;
  Json args = usual_arguments();
  std::vector<std::string> unknown;
  std::vector<IdleMegatronArgument> idle;
  for (const GivenFlag& given : flags_of(arguments)) {
    const MegatronArgument* const argument = find_megatron_flag(given.flag);
    if (argument == nullptr) {
      if (std::ranges::count(unknown, given.flag) == 0) unknown.push_back(given.flag);
      continue;
    }
    Json value = value_of(given, argument->form);
    if (argument->use == MegatronArgumentUse::kUsed) {
      args[argument->name] = std::move(value);
    } else if (std::ranges::count(idle, given.flag, &IdleMegatronArgument::name) == 0) {
      idle.push_back({given.flag, argument->why});
    }
  }
  TORCH_CHECK_VALUE(unknown.empty(), "Megatron-LM's command line: nothing here reads ",
                    absl::StrJoin(unknown, ", "),
                    "; leave them out, because the run would differ from what they ask for");
  // Shards of sequences are along tp, and Megatron-LM has none without.
  if (args["sequence_parallel"] == true && args[kTp] == 1) {
    args["sequence_parallel"] = false;
    idle.push_back({"--sequence-parallel", "one rank along tp has whole sequences"});
  }
  if (!idle.empty()) TORCH_WARN("Megatron-LM's command line: ", text_of(idle));
  for (const IdleMegatronArgument& each : idle) line.without_effect.push_back(each.name);
  if (!args.contains(kExpertTp)) args[kExpertTp] = Json(args[kTp]);
  const bool is_fp16 = args.contains("fp16"), is_bf16 = args.contains("bf16");
  TORCH_CHECK_VALUE(!is_fp16 || !is_bf16, "--fp16 and --bf16 are two precisions; give one of them");
  if (is_fp16) line.mixed_precision = PrecisionType::kFp16;
  if (is_bf16) line.mixed_precision = PrecisionType::kBf16;
  args["num_micro_batches"] = micro_batches_of(args, options.num_ranks);
  args["model_type_name"] = options.model_type_name;
  // The vocabulary's size as the tokenizer has it; it is padded where a model is prepared.
  if (args.contains("vocab_size")) args["orig_vocab_size"] = Json(args["vocab_size"]);
  set_fields(line.plugin, args);
  line.plugin.megatron_dataset_flag = args.contains("data_path");
  if (args.contains(kMicroBatch)) {
    line.dataset_args = Json::object();
    line.dataset_args[kMicroBatch] = args[kMicroBatch];
  }
  line.plugin.other_megatron_args = std::move(args);
  return line;
}

}  // namespace accelerate
