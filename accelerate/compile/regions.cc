#include "accelerate/compile/regions.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/compile/backends.h"
#include "accelerate/compile/recorder.h"
#include "accelerate/compile/region_program.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/operators/graph_part.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/tensors/libtorch_releases.h"

namespace accelerate {
namespace {

using internal::CutPart;
using internal::GraphPart;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// A module with more sets of guards runs as it is under further ones.
constexpr size_t kMostRegions = 64;

// The first lines in which texts differ, one of each.
std::string difference_text(const std::string& first, const std::string& second) {
  const std::vector<std::string> a = absl::StrSplit(first, '\n');
  const std::vector<std::string> b = absl::StrSplit(second, '\n');
  const auto [x, y] = std::ranges::mismatch(a, b);
  return absl::StrCat(x == a.end() ? "nothing" : *x, " and then ", y == b.end() ? "nothing" : *y);
}

// Casts of parameters that automatic mixed precision has kept were made outside of the region, or
// inside of it for those outside.
void forget_casts() {
  if (at::autocast::is_autocast_cache_enabled()) at::autocast::clear_cache();
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

void check_backward(bool has_graph) {
  TORCH_CHECK(has_graph,
              "a second backward pass through a region whose graph was freed; the first one "
              "needs retain_graph");
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "gradients of gradients do not go through a compiled region; leave create_graph out, "
              "or do not compile the model");
}

// The outputs, those that require a gradient with the node as their history.
std::vector<at::Tensor> with_history(const std::vector<at::Tensor>& outputs,
                                     const std::vector<bool>& differentiable,
                                     const internal::NodePointer& node) {
  std::vector<at::Tensor> results;
  results.reserve(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!differentiable[i]) {
      results.push_back(outputs[i]);
      continue;
    }
    // The same memory and counter of changes without a history.
    c10::TensorImpl* const impl = outputs[i].unsafeGetTensorImpl();
    at::Tensor result(impl->shallow_copy_and_detach(impl->version_counter(),
                                                    /*allow_tensor_metadata_change=*/true));
    torch::autograd::set_history(result, node);
    results.push_back(std::move(result));
  }
  return results;
}

// Why a graph cannot be repeated by its operators alone; empty: it can.
std::string problem_of(edge_list roots, const GraphPart& part) {
  std::string problem;
  internal::for_each_edge(roots, part, [&](Edge& edge) {
    Node& node = *edge.function;
    if (!part.contains(node) || !problem.empty()) return;
    if (node.name() == "CheckpointBackward") {
      problem = "it recomputes a part by checkpoint()";
    } else if (!node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() ||
               !node.post_hooks().empty()) {
      problem = "a tensor in it has a hook";
    }
  });
  return problem;
}

// The nodes that add up the gradients of a module's parameters. A parameter alone does not keep its
// node, so each call would make all of them again; a node keeps its parameter. All regions of a
// module have one, so that the module's next call, whichever region runs, lets go of parameters
// that were replaced.
class ParameterNodes {
 public:
  // Drops the nodes of parameters that the call does not have.
  void let_go(const RegionCall& call) {
    nodes_.resize(call.first_buffer);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].parameter != call.tensors[i].unsafeGetTensorImpl()) nodes_[i] = {};
    }
  }

  // `edges` are those of the program's gradients in this call.
  void keep(const edge_list& edges, const RegionProgram& program, const RegionCall& call) {
    nodes_.resize(call.first_buffer);
    for (size_t i = 0; i < edges.size(); ++i) {
      const auto input = static_cast<size_t>(program.gradients[i].input);
      if (input >= nodes_.size() || !call.tensors[input].is_leaf()) continue;
      OfParameter& own = nodes_[input];
      if (own.node == edges[i].function) continue;
      own = {.parameter = call.tensors[input].unsafeGetTensorImpl(), .node = edges[i].function};
    }
  }

 private:
  struct OfParameter {
    const c10::TensorImpl* parameter = nullptr;  // which `node` keeps
    internal::NodePointer node = internal::NodePointer();
  };
  std::vector<OfParameter> nodes_;  // by the parameter's place in a call
};

}  // namespace

struct CompiledRegions::Region {
  enum class Phase {
    kRecording,  // nothing is known, or a backward pass is awaited
    kRepeating,  // recorded once
    kCompiled,
    kAsItIs,
  };
  std::string name;
  Phase phase = Phase::kRecording;
  // Expired: the backward pass never came.
  std::weak_ptr<const void> awaited;
  std::shared_ptr<const RegionProgram> program;
  std::shared_ptr<const RegionCode> code;
  std::shared_ptr<const KeptOutput> output;
  // What the first call made beside outputs; expired once nothing holds that for a backward pass.
  std::vector<RegionRecorder::Memory> inner_memory;
  std::weak_ptr<const CutPart> graph;
  std::shared_ptr<ParameterNodes> nodes;  // the module's

  // Whether what the first call made is still there, though no backward pass needs it. Threads of
  // devices may hold tensors a little longer than the backward pass.
  bool leaves_tensors() const {
    return phase == Phase::kRepeating && graph.expired() && program->device.is_cpu() &&
           std::ranges::any_of(inner_memory, [](const auto& each) { return !each.expired(); });
  }
};

// Regions by module and guards, with their code by text. The mutex guards all of it.
struct CompiledRegions::Shared {
  struct OfModule {
    std::weak_ptr<torch::nn::Module> module;
    std::shared_ptr<ParameterNodes> nodes;
    absl::flat_hash_map<RegionKey, std::shared_ptr<Region>> by_key;
  };
  struct Compiled {
    std::shared_ptr<const RegionProgram> program;
    std::shared_ptr<const RegionCode> code;
  };

  std::mutex mutex;
  std::unique_ptr<CompileBackend> backend;
  bool is_strict = false;
  std::unordered_map<const torch::nn::Module*, OfModule> modules;
  std::map<std::string, Compiled> by_text;
  std::set<std::string> said;
  CompileReport report;

  // Null: the module has too many.
  std::shared_ptr<Region> find(const std::shared_ptr<torch::nn::Module>& module,
                               const RegionCall& call) {
    OfModule& all = modules[module.get()];
    // A new module can have the address of an old one.
    if (all.module.lock() != module) {
      all = {.module = module, .nodes = std::make_shared<ParameterNodes>()};
    }
    all.nodes->let_go(call);
    const auto found = all.by_key.find(call.key);
    if (found != all.by_key.end()) return found->second;
    if (all.by_key.size() == kMostRegions) return nullptr;
    // Regions of modules that have ended would keep parameters.
    std::erase_if(modules, [](const auto& each) { return each.second.module.expired(); });
    ++report.regions;
    auto region = std::make_shared<Region>();
    region->name = module->name();
    region->nodes = all.nodes;
    all.by_key.emplace(call.key, region);
    return region;
  }

  void say(const std::string& name, const std::string& why) {
    TORCH_CHECK(!is_strict, "dynamo_plugin: fullgraph, but a region is not compiled: ", name, ": ",
                why);
    if (said.insert(why).second) {
      TORCH_WARN("a region is not compiled and runs as it is: ", name, ": ", why);
    }
  }

  void give_up(Region& region, const std::string& why) {
    region.phase = Region::Phase::kAsItIs;
    region.output.reset();
    region.program.reset();
    region.inner_memory.clear();
    ++report.not_compiled[why];
    say(region.name, why);
  }

  // A recording is complete.
  void set_program(Region& region, const std::string& text) {
    region.program = parse_region(text);
    region.phase = Region::Phase::kRepeating;
  }

  // It was recorded twice.
  void compile(Region& region) {
    Compiled& compiled = by_text[region.program->text];
    if (compiled.code == nullptr) {
      compiled.code = backend->compile(region.program);
      if (compiled.code == nullptr) {
        by_text.erase(region.program->text);
        return give_up(region, backend->advice());
      }
      compiled.program = region.program;
    }
    region.inner_memory.clear();
    region.program = compiled.program;
    region.code = compiled.code;
    region.phase = Region::Phase::kCompiled;
    ++report.compiled;
  }
};

// ---- The first call: the graph as it is, whose backward pass is recorded.

class CompiledRegions::RecordedNode final : public Node {
 public:
  RecordedNode(const edge_list& border, std::shared_ptr<CutPart> part, std::vector<int> inputs,
               std::shared_ptr<RegionRecorder> recorder, std::shared_ptr<Region> region,
               std::shared_ptr<Shared> shared)
      : Node(edge_list(border)),
        part_(std::move(part)),
        inputs_(std::move(inputs)),
        recorder_(std::move(recorder)),
        region_(std::move(region)),
        shared_(std::move(shared)) {
    const std::lock_guard lock(shared_->mutex);
    region_->awaited = recorder_;
    region_->graph = part_;
  }

  std::string name() const override { return "RecordedRegionBackward"; }
  void release_variables() override { part_.reset(); }

  variable_list apply(variable_list&& grads) override {
    check_backward(part_ != nullptr);
    std::vector<size_t> all(inputs_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    if (recorder_ == nullptr) {
      return part_->gradients(std::move(grads), all, /*keep_graph=*/true, /*create_graph=*/false);
    }
    for (size_t i = 0; i < grads.size(); ++i) grads[i] = apart(grads, i);
    const std::shared_ptr<RegionRecorder> recorder = std::exchange(recorder_, nullptr);
    recorder->begin_backward(grads);
    variable_list caught;
    {
      const OperatorModeScope scope(recorder);
      // The recorder's numbers are those of the tensors that are here.
      caught = part_->gradients(grads, all, /*keep_graph=*/true, /*create_graph=*/false);
    }
    std::vector<std::pair<int, at::Tensor>> gradients;
    for (size_t i = 0; i < caught.size(); ++i) gradients.emplace_back(inputs_[i], caught[i]);
    recorder->end_backward(gradients);
    const std::lock_guard lock(shared_->mutex);
    if (region_->phase == Region::Phase::kRecording) {
      if (recorder->problem().empty()) {
        shared_->set_program(*region_, recorder->text());
      } else {
        shared_->give_up(*region_, recorder->problem());
      }
    }
    return caught;
  }

 private:
  // A gradient in memory of its own, without gaps; zeros for one that does not arrive.
  at::Tensor apart(const variable_list& grads, size_t index) const {
    const at::Tensor& grad = grads[index];
    if (!grad.defined()) return input_metadata(index).zeros_like();
    if (!grad.is_non_overlapping_and_dense()) return grad.contiguous();
    bool is_shared = recorder_->has(grad);
    for (size_t i = 0; i < index; ++i) is_shared |= grads[i].is_alias_of(grad);
    return is_shared ? grad.clone() : grad;
  }

  std::shared_ptr<CutPart> part_;
  const std::vector<int> inputs_;
  std::shared_ptr<RegionRecorder> recorder_;
  const std::shared_ptr<Region> region_;
  const std::shared_ptr<Shared> shared_;
};

// ---- Later calls: the code's backward half.

class CompiledRegions::RegionNode final : public Node {
 public:
  RegionNode(edge_list&& edges, const Region& region, std::vector<at::Tensor> saved)
      : Node(std::move(edges)),
        program_(region.program),
        code_(region.code),
        saved_(std::move(saved)) {
    versions_.reserve(saved_.size());
    for (const at::Tensor& tensor : saved_) versions_.push_back(version_of(tensor));
  }

  std::string name() const override { return "RegionBackward"; }
  void release_variables() override {
    is_released_ = true;
    saved_.clear();
  }

  variable_list apply(variable_list&& grads) override {
    check_backward(!is_released_);
    for (size_t i = 0; i < saved_.size(); ++i) {
      TORCH_CHECK(version_of(saved_[i]) == versions_[i], "a tensor of shape ", saved_[i].sizes(),
                  " that a compiled region needs for its backward pass was changed in place since "
                  "its forward pass");
    }
    for (size_t i = 0; i < grads.size(); ++i) grads[i] = as_recorded(grads[i], i);
    return code_->backward(saved_, grads);
  }

 private:
  at::Tensor as_recorded(const at::Tensor& grad, size_t index) const {
    const std::vector<int64_t>& strides = program_->gradient_strides[index];
    const at::Tensor given = grad.defined() ? grad : input_metadata(index).zeros_like();
    if (given.strides().equals(strides)) return given;
    at::Tensor copy = at::empty_strided(given.sizes(), strides, given.options());
    copy.copy_(given);
    return copy;
  }

  const std::shared_ptr<const RegionProgram> program_;
  const std::shared_ptr<const RegionCode> code_;
  std::vector<at::Tensor> saved_;
  std::vector<int64_t> versions_;
  bool is_released_ = false;
};

// ---- Calls.

CompiledRegions::CompiledRegions(const TorchDynamoPlugin& plugin)
    : shared_(std::make_shared<Shared>()) {
  shared_->backend = make_compile_backend(plugin);
  shared_->is_strict = plugin.fullgraph.value_or(false);
}

CompiledRegions::~CompiledRegions() = default;

void CompiledRegions::run_as_it_is(ForwardCall& call, const std::string& why) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (!why.empty()) shared_->say("a block", why);
    ++shared_->report.eager_calls;
  }
  call.run(std::nullopt);
}

void CompiledRegions::run(const std::shared_ptr<torch::nn::Module>& module, ForwardCall& call) {
  if (!current_operator_handlers().empty()) {
    return run_as_it_is(call,
                        "its operators are computed in another way, as in fp8 or where ranks "
                        "divide layers or sequences");
  }
  const RegionCall tensors = region_call(*module, call);
  if (!tensors.is_known) {
    return run_as_it_is(call, "it takes what is neither a tensor, nor a number, nor a text");
  }
  if (tensors.has_hooks) {
    return run_as_it_is(call, "a hook runs around its forward pass, or that of a module in it");
  }
  std::shared_ptr<Region> region;
  Region::Phase phase = Region::Phase::kAsItIs;
  {
    const std::lock_guard lock(shared_->mutex);
    region = shared_->find(module, tensors);
    if (region == nullptr) {
      shared_->say(module->name(), "its inputs have too many different sizes or types");
    } else if (shared_->backend->records()) {
      phase = region->phase;
      // Its backward pass says what the region is.
      if (phase == Region::Phase::kRecording && !region->awaited.expired()) {
        phase = Region::Phase::kAsItIs;
      }
    }
  }
  switch (phase) {
    case Region::Phase::kAsItIs: return run_as_it_is(call);
    case Region::Phase::kCompiled: return run_code(*region, call, tensors);
    default: return record(region, call, tensors);
  }
}

void CompiledRegions::record(const std::shared_ptr<Region>& region, ForwardCall& call,
                             const RegionCall& tensors) {
  const auto recorder = std::make_shared<RegionRecorder>();
  {
    const std::lock_guard lock(shared_->mutex);
    if (region->leaves_tensors()) {
      recorder->note("its forward pass leaves a tensor behind, as in a member of the module");
    }
  }
  recorder->begin(tensors.tensors, tensors.first_buffer, tensors.first_input);
  GraphPart part;
  for (const at::Tensor& each : tensors.tensors) {
    if (each.defined() && each.grad_fn()) part.sources.insert(each.grad_fn().get());
  }
  part.first_number = at::sequence_number::peek();
  forget_casts();
  {
    const BlockRunnerScope plain(nullptr);
    const OperatorModeScope scope(recorder);
    call.run(std::nullopt);
  }
  forget_casts();
  const std::vector<at::Tensor> outputs = call.outputs().tensors();
  ValuesKey key;
  call.outputs().append_key(key);
  std::shared_ptr<const KeptOutput> kept = call.keep_output();
  if (key.has_others || !key.is_known || kept == nullptr) {
    recorder->note("its output has other values than tensors");
  }
  recorder->end_forward(outputs);
  edge_list roots = internal::roots_of(outputs);
  recorder->note(problem_of(roots, part));
  const edge_list border = internal::border_of(roots, part);
  std::map<std::pair<const Node*, uint32_t>, int> by_edge;
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const at::Tensor& tensor = tensors.tensors[i];
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    const Edge edge = torch::autograd::impl::gradient_edge(tensor);
    by_edge.emplace(std::pair(edge.function.get(), edge.input_nr), static_cast<int>(i));
  }
  std::vector<int> inputs;
  for (const Edge& edge : border) {
    const auto found = by_edge.find(std::pair(edge.function.get(), edge.input_nr));
    if (found == by_edge.end()) {
      recorder->note(
          "it uses a tensor that requires a gradient and is neither an input nor a "
          "parameter of it");
      break;
    }
    inputs.push_back(found->second);
  }
  {
    const std::lock_guard lock(shared_->mutex);
    ++shared_->report.recorded_calls;
    const bool is_second = region->phase == Region::Phase::kRepeating;
    if (region->phase != Region::Phase::kRecording && !is_second) return;
    if (!recorder->problem().empty()) return shared_->give_up(*region, recorder->problem());
    if (is_second) {
      if (recorder->text() == region->program->forward_text) return shared_->compile(*region);
      return shared_->give_up(
          *region, absl::StrCat("two calls of it did not do the same: ",
                                difference_text(region->program->forward_text, recorder->text())));
    }
    region->output = std::move(kept);
    region->inner_memory = recorder->inner_memory(outputs);
    if (border.empty()) return shared_->set_program(*region, recorder->text());
  }
  auto cut = std::make_shared<CutPart>(std::move(roots), part, border);
  const auto node = internal::make_node<RecordedNode>(border, std::move(cut), std::move(inputs),
                                                      recorder, region, shared_);
  std::vector<bool> differentiable;
  for (const at::Tensor& output : outputs) {
    differentiable.push_back(output.defined() && output.requires_grad());
  }
  call.outputs().set_tensors(with_history(outputs, differentiable, node));
}

void CompiledRegions::run_code(Region& region, ForwardCall& call, const RegionCall& tensors) {
  RegionResult result = region.code->forward(tensors.tensors);
  const RegionProgram& program = *region.program;
  edge_list edges;
  edges.reserve(program.gradients.size());
  for (const RegionGradient& each : program.gradients) {
    edges.push_back(torch::autograd::impl::gradient_edge(tensors.tensors[each.input]));
  }
  {
    const std::lock_guard lock(shared_->mutex);
    ++shared_->report.compiled_calls;
    region.nodes->keep(edges, program, tensors);
  }
  if (program.has_backward) {
    const auto node =
        internal::make_node<RegionNode>(std::move(edges), region, std::move(result.saved));
    result.outputs = with_history(result.outputs, program.differentiable, node);
  }
  call.set_kept_output(*region.output);
  call.outputs().set_tensors(std::move(result.outputs));
}

CompileReport CompiledRegions::report() const {
  const std::lock_guard lock(shared_->mutex);
  CompileReport report = shared_->report;
  report.programs = static_cast<int64_t>(shared_->by_text.size());
  return report;
}

std::vector<std::string> CompiledRegions::texts() const {
  const std::lock_guard lock(shared_->mutex);
  std::vector<std::string> texts;
  for (const auto& [text, compiled] : shared_->by_text) texts.push_back(text);
  return texts;
}

}  // namespace accelerate
