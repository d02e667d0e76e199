#include "integration_tests/golden/grad_sync_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/prepared_dataloader_model.h"
#include "integration_tests/golden/regression_data.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// One number each for w0, w1 and b.
using Numbers = std::array<double, 3>;

Setting setting_of(const json& in) {
  Setting setting{.ranks = ranks_field(in, "num_processes"),
                  .n = count_field(in, "n"),
                  .batch_size = count_field(in, "batch_size"),
                  .drop_last = bool_field(in, "drop_last"),
                  .split = bool_field(in, "split_batches"),
                  .gather = false};
  if (setting.batch_size == 0) throw CaseError("batch_size: 0");
  return setting;
}

// ---- Rates

double raised_cosine(double part) { return (1 + std::cos(std::numbers::pi * part)) / 2; }

// From `from` to `to`.
double annealed(double from, double to, double part) {
  return to + (from - to) * raised_cosine(part);
}

class Schedule {
 public:
  explicit Schedule(const json& in)
      : kind_(string_field(field(in, "scheduler"), "kind")),
        args_(field(field(in, "scheduler"), "args")),
        base_(double_field(in, "lr")) {}

  std::optional<int64_t> last_step() const {
    if (kind_ != "OneCycleLR") return std::nullopt;
    return int_field(args_, "total_steps");
  }

  double rate(int64_t step) const {
    const auto t = static_cast<double>(step);
    if (kind_ == "StepLR") {
      const int64_t drops = step / int_field(args_, "step_size");
      return base_ * std::pow(double_field(args_, "gamma"), drops);
    }
    if (kind_ == "ExponentialLR") return base_ * std::pow(double_field(args_, "gamma"), t);
    if (kind_ == "LinearLR") {
      const double start = double_field(args_, "start_factor");
      const double part = std::min(1.0, t / double_field(args_, "total_iters"));
      return base_ * (start + (double_field(args_, "end_factor") - start) * part);
    }
    if (kind_ == "CosineAnnealingLR")
      return base_ * raised_cosine(t / double_field(args_, "T_max"));
    if (kind_ == "OneCycleLR") {
      const double top = double_field(args_, "max_lr");
      return cycled(t, top / 25, top, top / 25 / 1e4);
    }
    if (kind_ == "inverse") return base_ / (1 + t);
    throw CaseError("unknown scheduler \"" + kind_ + "\"");
  }

  double momentum(int64_t step) const {
    return kind_ == "OneCycleLR" ? cycled(static_cast<double>(step), 0.95, 0.85, 0.95) : 0;
  }

 private:
  double cycled(double t, double from, double top, double to) const {
    const double total = double_field(args_, "total_steps");
    const double peak = 0.3 * total - 1;
    if (t <= peak) return annealed(from, top, peak == 0 ? 1 : t / peak);
    return annealed(top, to, (t - peak) / (total - 1 - peak));
  }

  const std::string kind_;
  const json& args_;
  const double base_;
};

// ---- The loop

struct LossAndGradient {
  double loss = 0;
  Numbers gradient = {};
};

LossAndGradient loss_of(const Numbers& weights, const json& rows) {
  LossAndGradient mean;
  const auto count = static_cast<double>(rows.size());
  for (const json& index : rows) {
    const RegressionRow row = regression_row(index.get<int64_t>());
    const double error = weights[0] * row.x[0] + weights[1] * row.x[1] + weights[2] - row.y;
    mean.loss += error * error / count;
    for (size_t i = 0; i < 3; ++i) {
      mean.gradient[i] += 2 * error * (i < 2 ? row.x[i] : 1.0) / count;
    }
  }
  return mean;
}

Numbers mean_of(const std::vector<Numbers>& ranks) {
  Numbers mean = {};
  for (const Numbers& numbers : ranks) {
    for (size_t i = 0; i < 3; ++i) mean[i] += numbers[i] / static_cast<double>(ranks.size());
  }
  return mean;
}

class Training {
 public:
  explicit Training(const json& in)
      : setting_(setting_of(in)),
        schedule_(in),
        reduces_always_(setting_.ranks == 1 ||
                        bool_field_or(field(in, "plugin"), "sync_each_batch", false)),
        losses_(string_field(in, "loop") == "two_models" ? 2 : 1),
        advance_(setting_.split ? 1 : setting_.ranks),
        gradients_(static_cast<size_t>(setting_.ranks)) {
    std::vector<int64_t> order(static_cast<size_t>(setting_.n));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t rank = 0; rank < setting_.ranks; ++rank) {
      batches_.push_back(share_records(setting_, order, rank, /*even=*/setting_.ranks > 1));
    }
  }

  // All ranks' micro-step number `index`, on the epoch's batch number `batch`.
  void micro_step(json& ranks, size_t index, size_t batch) {
    const json& recorded = ranks[0].at("steps").at(index);
    const bool sync = recorded.at("sync").get<bool>();
    const double scale = recorded.at("scale").get<double>();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto [loss, gradient] = loss_of(weights_, batches_[rank].at(batch).at("b"));
      ranks[rank]["steps"][index]["loss"] = losses_ * loss;
      for (size_t i = 0; i < 3; ++i) gradients_[rank][i] += scale * gradient[i];
    }
    if (sync || reduces_always_) {
      std::fill(gradients_.begin(), gradients_.end(), mean_of(gradients_));
    }
    const std::vector<Numbers> used = gradients_;
    if (sync) optimizer_step(used[0]);
    scheduler_step();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      json& step = ranks[rank]["steps"][index];
      step["grad"] = used[rank];
      step["grad_after"] = sync ? json() : json(used[rank]);
      step["w"] = weights_;
      step["lr"] = schedule_.rate(time_);
      step["sched"] = {time_, time_ + 1};
    }
  }

  void note_final(json& rank) const {
    rank["final"]["weight"] = {weights_[0], weights_[1]};
    rank["final"]["bias"] = {weights_[2]};
  }

 private:
  void optimizer_step(const Numbers& gradient) {
    const double momentum = schedule_.momentum(time_);
    for (size_t i = 0; i < 3; ++i) {
      velocity_[i] = momentum * velocity_[i] + gradient[i];
      weights_[i] -= schedule_.rate(time_) * velocity_[i];
    }
    std::fill(gradients_.begin(), gradients_.end(), Numbers{});
  }

  void scheduler_step() {
    time_ += advance_;
    if (auto last = schedule_.last_step()) time_ = std::min(time_, *last);
  }

  const Setting setting_;
  const Schedule schedule_;
  const bool reduces_always_;
  const double losses_;
  const int64_t advance_;
  std::vector<json> batches_;
  Numbers weights_ = {0.5, -0.25, 0.1};
  Numbers velocity_ = {};
  std::vector<Numbers> gradients_;
  int64_t time_ = 0;
};

}  // namespace

int64_t accumulation_steps(const json& in) {
  const json& plugin = field(in, "plugin");
  if (!plugin.is_null()) return int_field(plugin, "num_steps");
  return optional_int_field(in, "gas").value_or(1);
}

int64_t batches_per_epoch(const json& in) { return setting_of(in).rounds(); }

void train_with_adjusted_scheduler(const json& in, json& out) {
  if (out.contains("error")) return;
  Training training(in);
  json& ranks = out.at("ranks");
  int64_t epoch = batches_per_epoch(in);
  if (auto stop = optional_int_field(in, "break_after")) epoch = std::min(epoch, *stop);
  for (size_t index = 0; index < ranks.at(0).at("steps").size(); ++index) {
    training.micro_step(ranks, index, index % static_cast<size_t>(epoch));
  }
  for (json& rank : ranks) training.note_final(rank);
}

}  // namespace accelerate::golden
