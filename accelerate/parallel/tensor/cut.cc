#include "accelerate/parallel/tensor/cut.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/files/box_view.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/tensor/plan_layout.h"
#include "accelerate/plan/plan.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

// The cuts along tp alone.
TensorPlacement along_tp(const TensorPlacement& placement) {
  TensorPlacement cut = placement;
  std::erase_if(cut.cuts, [](const Cut& each) { return each.axis != MeshAxis::kTp; });
  cut.rows = {};
  cut.stages = {};
  return cut;
}

// A part of values that a tensor without memory waits for.
class PartOfValues final : public DeferredValues {
 public:
  // `whole`: recorded, or deferred.
  PartOfValues(at::Tensor whole, TensorPlacement placement, const Mesh& mesh, int rank)
      : whole_(std::move(whole)),
        placement_(std::move(placement)),
        mesh_(mesh),
        rank_(rank),
        part_shape_(cut_shape(placement_, mesh, rank)),
        boxes_(boxes_of(placement_, mesh, rank)) {}

  void read(int64_t first, const at::Tensor& into) override {
    const at::NoGradGuard no_grad;
    DeferredValues* const stored = deferred_values(whole_);
    if (stored != nullptr && into.is_cpu()) return read_stored(*stored, first, into);
    if (stored != nullptr) return read_in_pieces(*stored, first, into);
    const at::Tensor whole = recorded_values({whole_}).front();
    const at::Tensor part = cut_part(whole, placement_, mesh_, rank_);
    into.copy_(part.flatten().narrow(0, first, into.numel()));
  }

  std::string description() const override {
    std::string text;
    for (const PlacedBox& box : boxes_) absl::StrAppend(&text, box_text(box.whole), " of ");
    const DeferredValues* const stored = deferred_values(whole_);
    return text + (stored != nullptr ? stored->description() : "a construction");
  }
  at::Tensor recorded() const override {
    const DeferredValues* const stored = deferred_values(whole_);
    return stored != nullptr ? stored->recorded() : whole_;
  }
  std::string place() const override {
    const DeferredValues* const stored = deferred_values(whole_);
    return stored != nullptr ? stored->place() : "its construction";
  }

 private:
  // A device gets one copy for many runs.
  void read_in_pieces(DeferredValues& stored, int64_t first, const at::Tensor& into) const {
    constexpr int64_t kElements = 1 << 20;
    const at::Tensor host =
        at::empty({std::min(kElements, into.numel())}, into.options().device(at::kCPU));
    for (int64_t done = 0; done < into.numel(); done += kElements) {
      const int64_t count = std::min(kElements, into.numel() - done);
      const at::Tensor piece = host.narrow(0, 0, count);
      read_stored(stored, first + done, piece);
      into.narrow(0, done, count).copy_(piece);
    }
  }

  // Runs of elements that follow each other in the file and in the part.
  void read_stored(DeferredValues& stored, int64_t first, const at::Tensor& into) const {
    const int64_t end = first + into.numel();
    const auto read_run = [&](int64_t from, int64_t to, int64_t count) {
      const int64_t skipped = std::max<int64_t>(first - to, 0);
      const int64_t wanted = std::min(to + count, end) - (to + skipped);
      if (wanted <= 0) return;
      stored.read(from + skipped, into.narrow(0, to + skipped - first, wanted));
    };
    for (const PlacedBox& box : boxes_) {
      const BoxRuns from(whole_.sizes().vec(), box.whole, /*item_bytes=*/1);
      const BoxRuns to(part_shape_, box.part, /*item_bytes=*/1);
      for (int64_t run = 0; run < from.count(); ++run) {
        const int64_t element = run * from.bytes();
        read_run(from.offset(run), to.offset(element / to.bytes()) + element % to.bytes(),
                 from.bytes());
      }
    }
  }

  const at::Tensor whole_;
  const TensorPlacement placement_;
  const Mesh mesh_;
  const int rank_;
  const std::vector<int64_t> part_shape_;
  const std::vector<PlacedBox> boxes_;
};

void cut(const at::Tensor& parameter, const TensorPlacement& placement, const ModelPlan& plan) {
  const Mesh& mesh = plan.layout->mesh();
  if (!parameter.is_meta()) {
    internal::rebind(parameter, cut_part(parameter.detach(), placement, mesh, plan.rank));
    return;
  }
  const at::Tensor whole = parameter.detach();
  const at::ScalarType dtype = whole.scalar_type();
  internal::rebind(parameter, at::empty(cut_shape(placement, mesh, plan.rank), whole.options()));
  if (!is_recorded(whole)) return;
  defer({parameter}, dtype, std::make_shared<PartOfValues>(whole, placement, mesh, plan.rank));
}

}  // namespace

at::Tensor cut_part(const at::Tensor& whole, const TensorPlacement& placement, const Mesh& mesh,
                    int rank) {
  TensorPlacement cut = placement;
  cut.rows = {};
  const at::Tensor part = at::empty(cut_shape(cut, mesh, rank), whole.options());
  for (const PlacedBox& box : boxes_of(cut, mesh, rank)) {
    box_view(part, box.part).copy_(box_view(whole, box.whole));
  }
  return part;
}

void cut_tensor_parallel(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.mesh.size(MeshAxis::kTp) == 1) return;
  const torch::nn::Module& module = *context.model.module();
  const std::optional<TensorParallelPlan> rules = find_plan(module, plan.handlers);
  if (!rules) return;
  const at::NoGradGuard no_grad;
  std::unordered_set<const c10::TensorImpl*> done;  // one that is tied is cut once
  for (const PlannedParameter& each : planned_parameters(module, *rules)) {
    if (!each.cut_dim() || !done.insert(each.tensor.unsafeGetTensorImpl()).second) continue;
    const TensorPlacement& placement = *plan.layout->find(each.name);
    // What other stages of a pipeline have is dropped.
    if (part_number(placement, plan.layout->mesh(), plan.rank) < 0) continue;
    cut(each.tensor, along_tp(placement), plan);
  }
}

}  // namespace accelerate
