#include "accelerate/parallel/pipeline/window.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/empty.h>

#include "absl/cleanup/cleanup.h"
#include "accelerate/pipeline/messages.h"

namespace accelerate {
namespace {

using pipeline::Action;
using pipeline::Message;
using pipeline::Pass;
using pipeline::Step;

class Window {
 public:
  Window(const pipeline::Schedule& schedule, int rank, WindowMessages* messages,
         const StageWork& work)
      : ranks_(pipeline::stage_ranks(schedule)),
        rank_(rank),
        steps_(pipeline::schedule_steps(schedule)[static_cast<size_t>(rank)]),
        has_backward_(std::ranges::any_of(
            steps_, [](const Step& step) { return step.action.pass != Pass::kForward; })),
        messages_(messages),
        work_(work) {}

  void run() {
    const auto last = std::find_if(steps_.rbegin(), steps_.rend(), [](const Step& step) {
      return step.action.pass != Pass::kForward;
    });
    for (const Step& step : steps_) {
      const at::Tensor received = step.receive ? messages_->receive(*step.receive) : at::Tensor();
      switch (step.action.pass) {
        case Pass::kForward: forward(step.action, received); break;
        case Pass::kBackward:
        case Pass::kInputGradient: backward(step.action, received, &step == &*last); break;
        case Pass::kWeightGradient: work_.late_gradients(step.action); break;
      }
      for (const Message& message : step.sends) messages_->send(message, take(key_of(message)));
    }
    if (messages_ != nullptr) messages_->finish();
  }

 private:
  // What a stage keeps of a micro-batch between the passes.
  struct Kept {
    at::Tensor input;
    at::Tensor root;
  };
  // From stage, to stage, micro-batch.
  using Key = std::tuple<int, int, int>;

  static Key key_of(const Message& message) {
    return {message.from_stage, message.to_stage, message.micro_batch};
  }

  at::Tensor take(const Key& key) {
    const auto found = given_.find(key);
    at::Tensor tensor = std::move(found->second);
    given_.erase(found);
    return tensor;
  }

  bool is_here(int stage) const { return ranks_[static_cast<size_t>(stage)] == rank_; }
  int last_stage() const { return static_cast<int>(ranks_.size()) - 1; }

  void forward(const Action& action, const at::Tensor& received) {
    const auto& [pass, stage, micro_batch] = action;
    Kept kept;
    if (stage == 0) {
      kept.input = work_.input(micro_batch);
    } else {
      kept.input = is_here(stage - 1) ? take({stage - 1, stage, micro_batch}) : received;
      const bool wants_gradient = is_here(stage - 1)
                                      ? kept.input.requires_grad()
                                      : messages_->wants_gradient(stage - 1, micro_batch);
      kept.input = kept.input.detach();
      kept.input.set_requires_grad(wants_gradient);
    }
    // A leaf must not change in place, as the input of a stage that begins with ReLU may.
    const at::Tensor given =
        kept.input.requires_grad() ? at::_unsafe_view(kept.input, kept.input.sizes()) : kept.input;
    const at::Tensor output = work_.forward(stage, micro_batch, given);
    if (stage == last_stage()) {
      kept.root = work_.loss(output, micro_batch);
    } else {
      kept.root = output;
      given_[{stage, stage + 1, micro_batch}] = output;
    }
    if (has_backward_) kept_[{stage, micro_batch}] = std::move(kept);
  }

  void backward(const Action& action, const at::Tensor& received, bool is_last) {
    const auto& [pass, stage, micro_batch] = action;
    const auto found = kept_.find({stage, micro_batch});
    const Kept kept = std::move(found->second);
    kept_.erase(found);
    at::Tensor gradient;
    if (stage < last_stage()) {
      gradient = is_here(stage + 1) ? take({stage + 1, stage, micro_batch}) : received;
    }
    // Nothing is trained of a stage that wants no gradient, nor of those before.
    if (stage == last_stage() || gradient.defined()) {
      work_.backward(action, kept.root, gradient, is_last);
    }
    if (stage > 0) given_[{stage, stage - 1, micro_batch}] = kept.input.grad();
  }

  const std::vector<int> ranks_;
  const int rank_;
  const std::vector<Step> steps_;
  const bool has_backward_;
  WindowMessages* const messages_;
  const StageWork& work_;
  std::map<std::pair<int, int>, Kept> kept_;
  // What stages of this rank have made for others, until it is taken or sent.
  std::map<Key, at::Tensor> given_;
};

}  // namespace

void run_window(const pipeline::Schedule& schedule, int rank, WindowMessages* messages,
                const StageWork& work) {
  Window(schedule, rank, messages, work).run();
}

StageDraws::StageDraws() : generators_(all_generators()) {
  for (const auto& [name, generator] : generators_) {
    at::empty({1}, at::TensorOptions(generator.device()).dtype(at::kLong)).random_();
    common_[name] = generator_state(generator);
  }
}

void StageDraws::run(int stage, int micro_batch, absl::FunctionRef<void()> body) const {
  const int64_t number = (static_cast<int64_t>(stage) << 32) + micro_batch;
  const absl::Cleanup go_on = [this] {
    for (const auto& [name, generator] : generators_) {
      set_generator_state(generator, common_.at(name));
    }
  };
  for (const auto& [name, generator] : generators_) {
    set_generator_state(generator,
                        generator_state(derived_generator(generator, common_.at(name), number)));
  }
  body();
}

}  // namespace accelerate
