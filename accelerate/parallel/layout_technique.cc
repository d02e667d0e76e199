#include "accelerate/parallel/layout_technique.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include "accelerate/mesh/device_mesh.h"
#include "accelerate/parallel/equal_along.h"
#include "accelerate/parallel/gradient_sums.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {
namespace {

// Whether this backward pass adds to gradients, and does not give them to its caller alone, as that
// of torch::autograd::grad does.
bool adds_to_gradients() {
  const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;
  return std::ranges::any_of(*nodes, [](const auto& each) {
    return each.second.needed_ &&
           dynamic_cast<const torch::autograd::AccumulateGrad*>(each.first) != nullptr;
  });
}

// What becomes of gradients at the end of backward passes.
class BackwardEnd {
 public:
  BackwardEnd(const std::vector<GradientSums::Owed>& owed, std::vector<EqualAlong> equal,
              bool gathers)
      : sums_(owed), equal_(std::move(equal)), runtime_(Runtime::current()), gathers_(gathers) {
    for (const EqualAlong& each : equal_) {
      check_equal_along(each.along, "values", each.trained, runtime_, gathers_);
    }
  }

  void set_synchronises(bool synchronises) { synchronises_ = synchronises; }

  GradientSums& sums() { return sums_; }

  // In a backward pass that has reached the model's outputs.
  static void reached(const std::shared_ptr<BackwardEnd>& end) {
    if (!adds_to_gradients()) return;
    const int backward = torch::autograd::get_current_graph_task_id();
    if (std::exchange(end->backward_, backward) == backward) return;
    end->sums_.begin();
    // Reductions of other techniques end in callbacks that hooks of the pass queue, or that such
    // callbacks queue. One of the third round comes after all of them.
    wait(end, /*rounds=*/3);
  }

  // Behind a backward pass, when all techniques have reduced gradients.
  void finish() {
    sums_.end(synchronises_);
    if (!synchronises_) return;
    for (const EqualAlong& each : equal_) check_equal_gradients(each, runtime_, gathers_);
  }

 private:
  static void wait(const std::weak_ptr<BackwardEnd>& end, int rounds) {
    torch::autograd::Engine::get_default_engine().queue_callback([end, rounds] {
      const auto alive = end.lock();
      if (alive == nullptr) return;
      if (rounds > 1) return wait(end, rounds - 1);
      alive->finish();
    });
  }

  GradientSums sums_;
  const std::vector<EqualAlong> equal_;
  Runtime& runtime_;
  const bool gathers_;
  bool synchronises_ = true;
  int backward_ = -1;  // the last backward pass that adds to gradients
};

class LayoutTechnique final : public Technique {
 public:
  // `is_alone`: whether no other technique of the model reduces gradients, and this one says which
  // passes synchronise.
  LayoutTechnique(std::shared_ptr<BackwardEnd> end, bool is_alone)
      : is_alone_(is_alone), end_(std::move(end)) {}

  std::string_view name() const override { return kLayoutTechnique; }
  void forward(ForwardPass& pass) override {
    if (is_alone_) pass.set_synchronises(*no_sync_count_ == 0);
    pass.proceed();
    if (!at::GradMode::is_enabled()) return;
    if (torch::autograd::get_current_graph_task_id() >= 0) {
      // A checkpoint around the model computes it again, in a backward pass that has reached the
      // outputs. The backward pass of what it computes is another one, which adds to no gradients.
      BackwardEnd::reached(end_);
    } else {
      end_->set_synchronises(*no_sync_count_ == 0);
    }
    for (const at::Tensor& output : pass.outputs()) {
      if (!output.defined() || !output.requires_grad()) continue;
      output.register_hook([end = std::weak_ptr(end_)](const at::Tensor& /*gradient*/) {
        if (const auto alive = end.lock()) BackwardEnd::reached(alive);
      });
    }
  }
  NoSyncCount no_sync_count() const override { return no_sync_count_; }
  void trigger_sync_in_backward() override { end_->set_synchronises(true); }
  void begin_adding(at::TensorList reduced) override {
    end_->set_synchronises(!reduced.empty());
    end_->sums().begin();
  }
  void end_adding() override { end_->finish(); }

  // What ranks have summed of gradients, by name. It is loaded after the gradients themselves: it
  // is of these very ones, or of no use.
  StateDict state_dict() const override { return {.tensors = end_->sums().summed()}; }
  void load_state_dict(const StateDict& state, bool same_ranks) override {
    end_->sums().set_summed(same_ranks ? state.tensors : NamedTensors());
  }

 private:
  const bool is_alone_;
  const std::shared_ptr<BackwardEnd> end_;
  const NoSyncCount no_sync_count_ = std::make_shared<int>(0);
};

}  // namespace

std::unique_ptr<Technique> make_layout_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (!context.trains || plan.layout == nullptr || plan.device_mesh == nullptr) return nullptr;
  const DeviceMesh& mesh = *plan.device_mesh;
  std::vector<GradientSums::Owed> owed;  // in the same order on all ranks
  const auto owe = [&owed](const ProcessGroupPtr& group, const TrainedParameter& each) {
    auto found = std::ranges::find(owed, group, &GradientSums::Owed::group);
    if (found == owed.end()) found = owed.insert(found, GradientSums::Owed{.group = group});
    found->trained.emplace_back(each.name, each.trained);
  };
  std::vector<EqualAlong> equal;
  const auto equal_along = [&equal](RanksAlong along) -> EqualAlong& {
    const auto found = std::ranges::find_if(
        equal, [&along](const auto& each) { return each.along.group == along.group; });
    if (found != equal.end()) return *found;
    equal.push_back({.along = std::move(along)});
    return equal.back();
  };
  // Along axes of shards ranks have other rows of what nothing else cuts. Copies in several stages
  // of a pipeline are summed and compared by its technique, when windows end.
  const AxisSet model =
      mesh.mesh().several(plan.layout->cuts() - plan.roles.shard_axes - AxisSet{MeshAxis::kPp});
  for (const MeshAxis axis : model.axes()) {
    equal_along(
        {.axis = axis, .group = mesh.group(axis), .ranks = mesh.mesh().group(mesh.rank(), axis)});
  }
  const auto is_cut = [&plan](const std::string& name) {
    const TensorPlacement* const placement = plan.layout->find(name);
    return placement != nullptr && !placement->cuts.empty() &&
           part_number(*placement, plan.mesh, plan.rank) >= 0;
  };
  for (const TrainedParameter& each :
       trained_under(context.made, *context.model.module(), is_cut)) {
    const TensorPlacement* placement = plan.layout->find(each.name);
    if (placement == nullptr) continue;
    const AxisSet sums = mesh.mesh().several(placement->sums);
    if (!sums.empty()) owe(mesh.group(sums), each);
    for (const MeshAxis axis : model.axes()) {
      if (!placement->equal().contains(axis)) continue;
      equal_along({.axis = axis, .group = mesh.group(axis)})
          .trained.emplace_back(each.name, each.trained);
    }
    for (const Cut& cut : placement->cuts) {
      if (cut.copies == 1) continue;
      const std::vector<int> ranks = mesh.mesh().group(mesh.rank(), cut.axis);
      const auto first = ranks.begin() + mesh.coordinate(cut.axis) / cut.copies * cut.copies;
      const ProcessGroupPtr group = mesh.part(cut.axis, cut.copies);
      owe(group, each);
      equal_along({.axis = cut.axis, .group = group, .ranks = {first, first + cut.copies}})
          .trained.emplace_back(each.name, each.trained);
    }
  }
  if (owed.empty() && equal.empty()) return nullptr;
  return std::make_unique<LayoutTechnique>(
      std::make_shared<BackwardEnd>(owed, std::move(equal), plan.compares_ranks),
      /*is_alone=*/context.group == nullptr && !context.makes_shards);
}

}  // namespace accelerate
