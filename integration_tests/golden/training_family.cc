// A small network trained with everything a step can have: optimizers, accumulation, clipping,
// precision, local SGD.
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerator.h"
#include "accelerate/base/enums.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/local_sgd.h"
#include "accelerate/values/texts.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// A list of lists of numbers as [rows, columns], a list as [columns]; in single precision.
at::Tensor to_tensor(const json& lists) {
  const bool flat = lists.empty() || !lists[0].is_array();
  std::vector<float> numbers;
  auto append = [&numbers](const json& list) {
    for (const json& number : list) numbers.push_back(number.get<float>());
  };
  if (flat) {
    append(lists);
    return torch::tensor(numbers);
  }
  for (const json& list : lists) append(list);
  return torch::tensor(numbers).reshape({static_cast<int64_t>(lists.size()), -1});
}

json to_lists(const at::Tensor& tensor) {
  if (tensor.dim() < 2) return to_list(tensor);
  json lists = json::array();
  for (const at::Tensor& row : tensor.unbind()) lists.push_back(to_list(row));
  return lists;
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const json& weights) {
    expect_fields(weights, {"w1", "b1", "w2", "b2"});
    for (const char* name : {"w1", "b1", "w2", "b2"}) {
      register_parameter(name, to_tensor(field(weights, name)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto own = named_parameters();
    const at::Tensor hidden = torch::tanh(torch::linear(x, own["w1"], own["b1"]));
    return torch::linear(hidden, own["w2"], own["b2"]);
  }
  json weights() const {
    json all;
    for (const auto& parameter : named_parameters()) {
      all[parameter.key()] = to_lists(parameter.value());
    }
    return all;
  }
};
TORCH_MODULE(Net);

std::shared_ptr<torch::optim::Optimizer> made_optimizer(const json& optimizer, const Net& net) {
  expect_fields(optimizer, {"kind", "args"});
  const std::string kind = string_field(optimizer, "kind");
  const json& args = field(optimizer, "args");
  auto given = [&args](const char* name) { return args.contains(name); };
  if (kind == "SGD") {
    expect_fields(args, {"lr", "momentum", "weight_decay"});
    torch::optim::SGDOptions options(double_field(args, "lr"));
    if (given("momentum")) options.momentum(double_field(args, "momentum"));
    if (given("weight_decay")) options.weight_decay(double_field(args, "weight_decay"));
    return std::make_shared<torch::optim::SGD>(net->parameters(), options);
  }
  if (kind == "AdamW") {
    expect_fields(args, {"lr", "betas", "eps", "weight_decay"});
    torch::optim::AdamWOptions options(double_field(args, "lr"));
    if (given("betas")) options.betas(field(args, "betas").get<std::tuple<double, double>>());
    if (given("eps")) options.eps(double_field(args, "eps"));
    if (given("weight_decay")) options.weight_decay(double_field(args, "weight_decay"));
    return std::make_shared<torch::optim::AdamW>(net->parameters(), options);
  }
  throw CaseError("unknown optimizer \"" + kind + "\"");
}

// Clips, and returns the norm if it is by norm.
std::function<json(Accelerator&, const PreparedModel<NetImpl>&)> made_clipping(const json& clip) {
  expect_fields(clip, {"kind", "max", "norm_type"});
  const std::string kind = string_field(clip, "kind");
  if (kind == "none") return [](auto& /*accelerator*/, const auto& /*model*/) { return nullptr; };
  const double max = double_field(clip, "max");
  if (kind == "value") {
    return [max](Accelerator& accelerator, const PreparedModel<NetImpl>& model) -> json {
      accelerator.clip_grad_value_(model, max);
      return nullptr;
    };
  }
  if (kind != "norm") throw CaseError("unknown clipping \"" + kind + "\"");
  const double type = field(clip, "norm_type") == "inf" ? std::numeric_limits<double>::infinity()
                                                        : double_field(clip, "norm_type");
  return [max, type](Accelerator& accelerator, const PreparedModel<NetImpl>& model) -> json {
    return accelerator.clip_grad_norm_(model, max, type).item<double>();
  };
}

json dtype_name(at::ScalarType type) {
  if (type == at::kFloat) return "float32";
  if (type == at::kBFloat16) return "bfloat16";
  return at::toString(type);
}

class Training {
 public:
  explicit Training(const json& in)
      : in_(in),
        kind_(string_field(in, "kind")),
        accelerator_(
            {.mixed_precision = from_string<PrecisionType>(string_field(in, "mixed_precision")),
             .gradient_accumulation_steps = int_field(in, "gas")}),
        net_(field(in, "weights")),
        model_(accelerator_.prepare(net_)),
        optimizer_(accelerator_.prepare(made_optimizer(field(in, "optimizer"), net_))),
        loader_(accelerator_.prepare(
            DataLoader(make_tensor_dataset(to_tensor(field(in, "x")), to_tensor(field(in, "y"))),
                       {.batch_size = count_field(in, "batch_size")}))),
        clip_(made_clipping(field(in, "clip"))) {
    for (const char* list : {"loss", "norm", "sync", "steps_w1_00"}) out_[list] = json::array();
  }

  json answer() {
    if (kind_ == "localsgd") {
      LocalSGD local_sgd(accelerator_, model_, int_field(in_, "local_sgd_steps"),
                         bool_field(in_, "enabled"));
      train([&local_sgd] { local_sgd.step(); });
      out_["before_exit"] = net_->weights();
    } else if (kind_ == "train" || kind_ == "autocast_ctx") {
      train([] {});
    } else {
      throw CaseError("unknown kind \"" + kind_ + "\"");
    }
    out_["final"] = net_->weights();
    return std::move(out_);
  }

 private:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  void train(const std::function<void()>& after_step) {
    const auto steps = static_cast<size_t>(count_field(in_, "micro_steps"));
    while (out_["loss"].size() < steps) {
      for (auto& batch : loader_) {
        micro_step(batch);
        after_step();
        out_["steps_w1_00"].push_back(net_->parameters()[0].flatten()[0].item<double>());
        if (out_["loss"].size() == steps) break;
      }
    }
  }

  void micro_step(const Batch& batch) {
    const NoSyncScope scope = accelerator_.accumulate(model_);
    const at::Tensor loss = forward_pass(batch);
    accelerator_.backward(loss);
    const bool sync = accelerator_.sync_gradients();
    out_["norm"].push_back(sync ? clip_(accelerator_, model_) : json());
    optimizer_.step();
    optimizer_.zero_grad();
    out_["loss"].push_back(loss.item<double>());
    out_["sync"].push_back(sync);
  }

  at::Tensor forward_pass(const Batch& batch) {
    const auto& [x, y] = batch;
    if (kind_ != "autocast_ctx") return loss_of(model_(x), y);
    const AutocastScope scope = accelerator_.autocast();
    return loss_of(net_->forward(x), y);
  }

  at::Tensor loss_of(const at::Tensor& output, const at::Tensor& y) {
    if (!out_.contains("out_dtype")) out_["out_dtype"] = dtype_name(output.scalar_type());
    return (output - y).square().mean();
  }

  const json& in_;
  const std::string kind_;
  Accelerator accelerator_;
  Net net_;
  PreparedModel<NetImpl> model_;
  AcceleratedOptimizer optimizer_;
  DataLoader<TensorDataset<2>> loader_;
  const std::function<json(Accelerator&, const PreparedModel<NetImpl>&)> clip_;
  json out_ = json::object();
};

json run_case(const json& in) {
  expect_fields(
      in, {"kind", "num_processes", "optimizer", "gas", "clip", "mixed_precision", "batch_size",
           "micro_steps", "local_sgd_steps", "enabled", "weights", "x", "y"});
  return {{"ranks", ask_ranks(ranks_field(in, "num_processes"),
                              [&](int /*rank*/) { return Training(in).answer(); })}};
}

// The tolerance that the file asks for. bf16 keeps three digits.
Tolerance tolerance(const json& in) {
  if (string_field(in, "mixed_precision") == "bf16") return {.relative = 1e-2, .absolute = 1e-3};
  return {.relative = 1e-5, .absolute = 1e-6};
}

const FamilyRegistration kRegistration("training", &run_case, &tolerance);

}  // namespace
}  // namespace accelerate::golden
