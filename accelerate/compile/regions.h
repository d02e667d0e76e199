/// The regions of one model: parts of it that are recorded, compiled by a backend and then run in
/// the place of their modules' forward passes.
///
/// A region is a module under one set of guards (region_key.h). Its first call is recorded, forward
/// and in its backward pass; its second call is recorded forward and must have done the same; from
/// the third one on its code runs. Until then, and where a region cannot be compiled, the module
/// runs as it is. Regions with equal texts share their code, as the equal blocks of a model do.
///
/// The module's own C++ does not run then, so that its other members stay as the second call left
/// them. On a CPU a module whose first call leaves a tensor behind is not compiled for that reason.
///
/// Parameters and buffers are inputs of a region, so weights are what they are at each call, hooks
/// of parameters fire, and parameters that ranks divide come and go as for any operator. One that
/// its module has replaced by another tensor is let go at the module's next call.
///
/// Gradients equal those of plain calls, bit by bit with the backend AOT_EAGER, but for these:
/// where an input is also used outside of the region, its gradients are added in another order; a
/// gradient that does not lie in memory as it did when the region was recorded is copied before; an
/// output that gets no gradient counts as one that gets zeros, so that what only this output needs
/// gets zeros in the place of none. Gradients of gradients are an error.
///
/// Errors:  of a call, c10::Error with `fullgraph` for a region that cannot be compiled, naming the
///          reason; of a backward pass, c10::Error for gradients of gradients, a graph that was
///          freed, and a tensor that was changed in place since the forward pass.
/// Threads: passes on several threads do not disturb each other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/compile/region_key.h"
#include "accelerate/operators/block.h"

namespace accelerate {

struct TorchDynamoPlugin;

struct CompileReport {
  /// Modules under different guards.
  int64_t regions = 0;
  /// Those that have code, and how many different texts they have.
  int64_t compiled = 0;
  int64_t programs = 0;
  /// Calls that were recorded, that ran a region's code, and all others.
  int64_t recorded_calls = 0;
  int64_t compiled_calls = 0;
  int64_t eager_calls = 0;
  /// Why regions are not compiled, with how many there are of each.
  std::map<std::string, int64_t> not_compiled = {};
};

class CompiledRegions final : public BlockRunner {
 public:
  /// `plugin` is resolved.
  explicit CompiledRegions(const TorchDynamoPlugin& plugin);
  ~CompiledRegions() override;

  void run(const std::shared_ptr<torch::nn::Module>& module, ForwardCall& call) override;

  CompileReport report() const;

  /// The texts of the regions that have code.
  std::vector<std::string> texts() const;

 private:
  struct Region;
  struct Shared;
  class RecordedNode;
  class RegionNode;

  void record(const std::shared_ptr<Region>& region, ForwardCall& call, const RegionCall& tensors);
  void run_code(Region& region, ForwardCall& call, const RegionCall& tensors);
  // `why`: what to say once; empty: it was said.
  void run_as_it_is(ForwardCall& call, const std::string& why = "");

  // Also what backward passes of regions need, which may come after the regions have ended.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace accelerate
