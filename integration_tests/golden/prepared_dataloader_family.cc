// A prepared DataLoader walked by a script: what ranks read, are told and gather.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerator.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/state/seed.h"
#include "accelerate/testing/recorded_warnings.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/streams.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// ---- Datasets. Those of dictionaries have a second tensor, which follows from the index.

struct Item {
  at::Tensor idx;
  at::Tensor val;
};
auto tree_members(Item& item) { return std::tie(item.idx, item.val); }

Item make_item(int64_t index) {
  const auto value = static_cast<float>(index);
  return {at::scalar_tensor(index, at::kLong), torch::tensor({value / 2, -value})};
}

class ItemMap {
 public:
  explicit ItemMap(int64_t n) : n_(n) {}
  Item get(size_t index) const { return make_item(static_cast<int64_t>(index)); }
  size_t size() const { return static_cast<size_t>(n_); }

 private:
  int64_t n_;
};

template <typename Numbers>
class ItemStream : public Numbers {
 public:
  using Numbers::Numbers;
  std::optional<Item> next() {
    const std::optional<int64_t> index = Numbers::next();
    return index ? std::optional(make_item(*index)) : std::nullopt;
  }
};

const at::Tensor& indices_of(const at::Tensor& batch) { return batch; }
const at::Tensor& indices_of(const std::tuple<at::Tensor>& batch) { return std::get<0>(batch); }
const at::Tensor& indices_of(const Item& batch) {
  // Members that travelled with the index must still belong to it.
  const at::Tensor index = batch.idx.to(at::kFloat);
  const at::Tensor expected = at::stack({index / 2, -index}, 1);
  if (!at::equal(batch.val, expected)) throw CaseError("val does not belong to idx in a batch");
  return batch.idx;
}

// ---- A rank's walk.

template <typename Dataset>
class Walk {
 public:
  Walk(const json& in, Accelerator& accelerator, const DataLoader<Dataset>& loader)
      : in_(in),
        accelerator_(accelerator),
        gathers_(bool_field(in, "gather")),
        loader_(accelerator.prepare(loader)) {}

  json answer() {
    json out = {{"len", length(loader_)},
                {"total_batch_size", total_batch_size(loader_)},
                {"total_dataset_length", part([&] { return loader_.total_dataset_length(); })},
                {"log", json::array()}};
    const json& script = field(in_, "script");
    if (!script.is_array()) throw CaseError("script: expected a list");
    for (const json& step : script) {
      out["log"].push_back(part([&] { return run_step(step); }));
    }
    out["final"] = state();
    out["final"]["iteration"] = loader_.epoch();
    return out;
  }

 private:
  static json length(const DataLoader<Dataset>& loader) {
    return part([&] { return loader.size(); });
  }
  static json total_batch_size(const DataLoader<Dataset>& loader) {
    return part([&] { return loader.total_batch_size(); });
  }

  json state() const {
    const GradientState& state = accelerator_.gradient_state();
    return {{"end", state.end_of_dataloader()},
            {"rem", state.remainder()},
            {"in_dataloader", state.in_dataloader()}};
  }

  json run_step(const json& step) {
    if (!step.is_array() || step.empty() || !step[0].is_string()) {
      throw CaseError("script: unknown step " + step.dump());
    }
    const auto verb = step[0].get<std::string>();
    const size_t arguments = step.size() - 1;
    if (verb == "epoch" && arguments == 0) return one_pass(loader_);
    if (verb == "set_epoch" && arguments == 1) {
      loader_.set_epoch(to_int(step[1], verb));
      return nullptr;
    }
    if (verb == "skip" && arguments == 1) return skip(to_int(step[1], verb));
    if (verb == "break" && arguments == 1) return stop_after(to_int(step[1], verb));
    if (verb == "join" && arguments == 1 && (step[1].is_null() || step[1].is_boolean())) {
      return join(step[1].is_null() ? std::nullopt : std::optional(step[1].get<bool>()));
    }
    throw CaseError("script: unknown step " + step.dump());
  }

  template <typename Batch>
  json record(const Batch& batch) {
    json entry = state();
    entry.erase("in_dataloader");
    entry["b"] = to_list(indices_of(batch));
    entry["g"] = nullptr;
    if (gathers_) entry["g"] = to_list(indices_of(accelerator_.gather_for_metrics(batch)));
    return entry;
  }

  json one_pass(const DataLoader<Dataset>& loader) {
    json records = json::array();
    for (auto& batch : loader) records.push_back(record(batch));
    return records;
  }

  json skip(int64_t count) {
    auto skipped = accelerator_.skip_first_batches(loader_, count);
    json entry = {{"len", length(skipped)}, {"total_batch_size", total_batch_size(skipped)}};
    entry["batches"] = one_pass(skipped);
    return entry;
  }

  json stop_after(int64_t count) {
    json records = json::array();
    for (auto& batch : loader_) {
      records.push_back(record(batch));
      if (static_cast<int64_t>(records.size()) == count) break;
    }
    return {{"batches", std::move(records)}, {"after", state()}};
  }

  json join(std::optional<bool> even_batches) {
    torch::nn::Linear linear(1, 1);
    {
      torch::NoGradGuard no_grad;
      linear->weight.fill_(1);
      linear->bias.fill_(0);
    }
    auto model = accelerator_.prepare(linear);
    json records = json::array();
    RecordedWarnings warnings;
    {
      auto scope = accelerator_.join_uneven_inputs({.even_batches = even_batches}, model);
      for (auto& batch : loader_) {
        records.push_back(record(batch));
        const at::Tensor input = indices_of(batch).to(at::kFloat).unsqueeze(1);
        accelerator_.backward(model(input).mean());
      }
    }
    json gradients = json::array();
    for (const at::Tensor& parameter : {linear->weight, linear->bias}) {
      gradients.push_back(parameter.grad().defined() ? to_list(parameter.grad()) : json());
    }
    return {{"batches", std::move(records)},
            {"warnings", warnings.texts()},
            {"even_batches_after", loader_.even_batches()},
            {"grad", std::move(gradients)}};
  }

  const json& in_;
  Accelerator& accelerator_;
  const bool gathers_;
  DataLoader<Dataset> loader_;
};

DataLoaderConfiguration configuration(const json& config) {
  expect_fields(config, {"split_batches", "dispatch_batches", "even_batches",
                         "use_seedable_sampler", "data_seed"});
  return {.split_batches = bool_field(config, "split_batches"),
          .dispatch_batches = optional_bool_field(config, "dispatch_batches"),
          .even_batches = bool_field(config, "even_batches"),
          .use_seedable_sampler = bool_field(config, "use_seedable_sampler"),
          .data_seed = optional_seed_field(config, "data_seed")};
}

template <typename Dataset>
json walk(const json& in, Accelerator& accelerator, const Dataset& dataset) {
  const std::optional<uint64_t> seed = optional_seed_field(in, "generator_seed");
  const DataLoader<Dataset> loader(
      dataset, {.batch_size = int_field(in, "batch_size"),
                .shuffle = bool_field(in, "shuffle"),
                .drop_last = bool_field(in, "drop_last"),
                .generator = seed ? at::detail::createCPUGenerator(*seed) : at::Generator()});
  return Walk<Dataset>(in, accelerator, loader).answer();
}

json rank_answer(const json& in) {
  Accelerator accelerator({.dataloader_config = configuration(field(in, "config"))});
  set_seed(seed_field(in, "seed"), {.device_specific = bool_field(in, "device_specific")});
  const std::string dataset = string_field(in, "dataset");
  const std::string batch = string_field(in, "batch");
  const int64_t n = count_field(in, "n");
  if (batch == "tensor") {
    if (dataset == "map") {
      return walk(in, accelerator, make_tensor_dataset(at::arange(n, at::kLong)));
    }
    if (dataset == "iterable") return walk(in, accelerator, Range(n));
    if (dataset == "iterable_unsized") return walk(in, accelerator, UnsizedRange(n));
  } else if (batch == "dict") {
    if (dataset == "map") return walk(in, accelerator, ItemMap(n));
    if (dataset == "iterable") return walk(in, accelerator, ItemStream<Range>(n));
    if (dataset == "iterable_unsized") return walk(in, accelerator, ItemStream<UnsizedRange>(n));
  }
  throw CaseError("unknown dataset \"" + dataset + "\" of batches \"" + batch + "\"");
}

json run_case(const json& in) {
  expect_fields(in, {"num_processes", "dataset", "batch", "n", "batch_size", "shuffle", "drop_last",
                     "seed", "device_specific", "generator_seed", "force_multi_device", "script",
                     "config", "gather"});
  // It lets HF Accelerate join uneven inputs on CPUs; we always do.
  bool_field(in, "force_multi_device");
  return {{"ranks", ask_ranks(ranks_field(in, "num_processes"),
                              [&](int /*rank*/) { return rank_answer(in); })}};
}

const FamilyRegistration kRegistration("prepared_dataloader", &run_case);

}  // namespace
}  // namespace accelerate::golden
