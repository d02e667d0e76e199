#include "accelerate/config/option_fields.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using options::Section;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Environment with(const std::vector<std::pair<std::string, std::string>>& variables) {
  Environment environment;
  for (const options::Option& row : options::all_options()) {
    if (!row.variable_name().empty()) environment.unset(row.variable_name());
  }
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

// Fields by name, and whether fill_fields knows the type that each struct gives them.
using FieldNames = std::map<std::string, bool>;

template <typename... Objects>
FieldNames fields_of() {
  FieldNames names;
  const auto add = [&]<typename Object>(const Object& object) {
    visit_fields(object, [&]<typename Field>(const char* name, const Field& /*field*/) {
      const auto found = names.emplace(name, true).first;
      found->second = found->second && internal::kIsFilled<Field>;
    });
  };
  (add(Objects()), ...);
  return names;
}

// The fields of the structs that are filled from a section.
const FieldNames& fields_of(Section section) {
  static const std::map<Section, FieldNames> kFields = [] {
    std::map<Section, FieldNames> fields;
    fields[Section::kFsdp] = fields_of<FullyShardedDataParallelPlugin>();
    fields[Section::kDynamo] = fields_of<TorchDynamoPlugin>();
    fields[Section::kMegatron] = fields_of<MegatronLMPlugin>();
    fields[Section::kDeepSpeed] = fields_of<DeepSpeedPlugin>();
    fields[Section::kDeepSpeed]["hf_ds_config"] = false;  // JSON, which has no text of its own
    fields[Section::kFp8] =
        fields_of<TERecipeKwargs, MSAMPRecipeKwargs, AORecipeKwargs, FP8RecipeKwargs>();
    fields[Section::kParallelism] = fields_of<ParallelismOptions, TorchContextParallelConfig,
                                              DeepSpeedSequenceParallelConfig, PipelineVariables>();
    return fields;
  }();
  return kFields.at(section);
}

constexpr Section kFilled[] = {Section::kFsdp,      Section::kDynamo, Section::kMegatron,
                               Section::kDeepSpeed, Section::kFp8,    Section::kParallelism};

// Fields with a row whose values their resolve() reads: the JSON file, and three variables.
const std::set<std::string>& read_apart() {
  static const std::set<std::string> kFields = {"hf_ds_config", "override_linear_precision"};
  return kFields;
}

TEST(OptionFields, EachVariableOfAnEngineFillsAField) {
  for (const Section section : kFilled) {
    std::set<std::string> rows;
    for (const auto& [field, is_filled] : fields_of(section)) {
      const options::Option* row = options::find_field(section, field);
      if (row != nullptr && (is_filled || read_apart().contains(field))) rows.insert(row->name);
    }
    for (const options::Option& row : options::all_options()) {
      if (row.section != section || row.variable_name().empty()) continue;
      EXPECT_TRUE(rows.contains(row.name)) << "no field has " << row.variable_name();
    }
  }
}

// A bool, an optional of a float or an array would stay as it is, whatever the variable says.
TEST(OptionFields, WithARowAreOfATypeThatIsFilled) {
  std::set<std::string> unfilled;
  for (const Section section : kFilled) {
    for (const auto& [field, is_filled] : fields_of(section)) {
      if (options::find_field(section, field) != nullptr && !is_filled) unfilled.insert(field);
    }
  }
  EXPECT_EQ(unfilled, read_apart());
  static_assert(!internal::kIsFilled<bool> && !internal::kIsFilled<std::optional<float>>);
}

TEST(OptionFields, EachFieldHasARowUnlessAProgramAloneCanSayIt) {
  // Objects and functions of the program, and what follows from other fields.
  const std::set<std::string> kOfPrograms = {
      "mixed_precision_policy", "state_dict_config", "optim_state_dict_config", "limit_all_gathers",
      "param_init_fn",
      // DeepSpeed's: its fp8 has the rows of fp8.
      "is_train_batch_min", "enable_msamp", "msamp_opt_level", "hidden_size",
      // The fp8 kwargs have three.
      "keep_first_and_last", "config", "module_filter_func",
      // An axis of a mesh has its handler.
      "tp_handler", "cp_handler", "sp_handler",
      // The compiler's own options, and whether a program compiles nothing.
      "options", "disable",
      // The training of Megatron-LM's scripts.
      "pipeline_model_parallel_split_rank", "num_layers_per_virtual_pipeline_stage", "train_iters",
      "train_samples", "weight_decay_incr_style", "start_weight_decay", "end_weight_decay",
      "lr_decay_style", "lr_decay_iters", "lr_decay_samples", "lr_warmup_iters",
      "lr_warmup_samples", "lr_warmup_fraction", "min_lr", "consumed_samples", "no_wd_decay_cond",
      "scale_lr_cond", "lr_mult", "megatron_dataset_flag", "seq_length", "encoder_seq_length",
      "decoder_seq_length", "tensorboard_dir", "set_all_logging_options", "eval_iters",
      "eval_interval", "return_logits", "custom_train_step_class", "custom_train_step_kwargs",
      "custom_model_provider_function", "custom_prepare_model_function",
      "custom_megatron_datasets_provider_function", "custom_get_batch_function",
      "custom_loss_function", "other_megatron_args"};
  std::set<std::string> without;
  for (const Section section : kFilled) {
    for (const auto& [field, is_filled] : fields_of(section)) {
      if (options::find_field(section, field) == nullptr) without.insert(field);
    }
  }
  EXPECT_EQ(without, kOfPrograms);
}

struct Fields {
  std::optional<bool> activation_checkpointing;
  std::optional<int64_t> min_num_params;
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap;
  std::optional<std::variant<bool, CPUOffload>> cpu_offload;
  std::optional<std::variant<int64_t, std::string>> state_dict_type;
  std::optional<BackwardPrefetch> backward_prefetch;
  std::optional<std::string> not_an_option;
  int64_t fsdp_version = 0;
};
ACCELERATE_FIELDS(Fields, activation_checkpointing, min_num_params, transformer_cls_names_to_wrap,
                  cpu_offload, state_dict_type, backward_prefetch, not_an_option, fsdp_version)

Fields filled(const std::vector<std::pair<std::string, std::string>>& variables,
              Fields fields = {}) {
  fill_fields(fields, Section::kFsdp, with(variables));
  return fields;
}

TEST(OptionFields, AreReadFromVariablesInTheirTypes) {
  const Fields fields = filled({{"FSDP_ACTIVATION_CHECKPOINTING", "Yes"},
                                {"FSDP_MIN_NUM_PARAMS", "7"},
                                {"FSDP_TRANSFORMER_CLS_TO_WRAP", "A,B"},
                                {"FSDP_OFFLOAD_PARAMS", "1"},
                                {"FSDP_STATE_DICT_TYPE", "2"},
                                {"FSDP_BACKWARD_PREFETCH", "backward_post"},
                                {"FSDP_VERSION", "2"}});
  EXPECT_EQ(fields.activation_checkpointing, true);
  EXPECT_EQ(fields.min_num_params, 7);
  EXPECT_THAT(fields.transformer_cls_names_to_wrap.value(), ElementsAre("A", "B"));
  EXPECT_TRUE(std::get<bool>(fields.cpu_offload.value()));
  EXPECT_EQ(std::get<std::string>(fields.state_dict_type.value()), "2");
  EXPECT_EQ(fields.backward_prefetch, BackwardPrefetch::kBackwardPost);
  EXPECT_EQ(fields.not_an_option, std::nullopt);
  EXPECT_EQ(fields.fsdp_version, 0) << "what is never absent stays";
}

struct Numbers {
  std::optional<double> gradient_clipping;
};
ACCELERATE_FIELDS(Numbers, gradient_clipping)

TEST(OptionFields, AreNumbersWithFractions) {
  const auto clipping = [](const Environment& environment) {
    Numbers numbers;
    fill_fields(numbers, Section::kMegatron, environment);
    return numbers.gradient_clipping;
  };
  EXPECT_EQ(clipping(with({})), 1.0);
  EXPECT_EQ(clipping(with({{"MEGATRON_LM_GRADIENT_CLIPPING", "2.5"}})), 2.5);
  EXPECT_THAT(value_error_of([&] { clipping(with({{"MEGATRON_LM_GRADIENT_CLIPPING", "a"}})); }),
              HasSubstr("MEGATRON_LM_GRADIENT_CLIPPING=\"a\" is not a number"));
}

TEST(OptionFields, HaveTheirDefaultsWithoutVariables) {
  const Fields fields = filled({});
  EXPECT_EQ(fields.activation_checkpointing, false);
  EXPECT_EQ(fields.min_num_params, 0) << "the launcher's default is another one";
  EXPECT_EQ(fields.state_dict_type, std::nullopt);
  EXPECT_EQ(fields.backward_prefetch, std::nullopt);
}

TEST(OptionFields, StayAsTheProgramGivesThem) {
  EXPECT_EQ(filled({{"FSDP_MIN_NUM_PARAMS", "many"}}, {.min_num_params = 3}).min_num_params, 3);
}

TEST(OptionFields, NameTheVariableThatCannotBeRead) {
  const auto error = [](const char* variable, const char* text) {
    return value_error_of([&] { filled({{variable, text}}); });
  };
  EXPECT_THAT(error("FSDP_ACTIVATION_CHECKPOINTING", "maybe"),
              HasSubstr("FSDP_ACTIVATION_CHECKPOINTING=\"maybe\" is neither true nor false"));
  EXPECT_THAT(error("FSDP_OFFLOAD_PARAMS", ""), HasSubstr("FSDP_OFFLOAD_PARAMS=\"\""));
  EXPECT_THAT(error("FSDP_MIN_NUM_PARAMS", "4x"), HasSubstr("is not a whole number"));
  EXPECT_THAT(error("FSDP_BACKWARD_PREFETCH", "LATE"),
              HasSubstr("FSDP_BACKWARD_PREFETCH=\"LATE\" is none of BACKWARD_PRE, BACKWARD_POST"));
}

TEST(OptionFields, AreOneOfTheirRowsChoices) {
  const auto error = [](const TERecipeKwargs& kwargs) {
    return value_error_of([&] { check_choices(kwargs, Section::kFp8, "Kwargs: "); });
  };
  EXPECT_EQ(error({.fp8_format = "E4M3", .amax_compute_algo = "max"}), "no error");
  EXPECT_EQ(error({.amax_compute_algo = "mean"}),
            "Kwargs: amax_compute_algo is \"mean\", but it is one of max, most_recent");
}

}  // namespace
}  // namespace accelerate
