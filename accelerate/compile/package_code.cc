#include <dlfcn.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
// The one source with these headers.
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include "accelerate/compile/backends.h"
#include "accelerate/compile/packages/package.h"
#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

using Kind = PackageSource::Kind;
using Runner = torch::inductor::AOTIModelContainerRunner;
using Tensors = std::vector<at::Tensor>;

// What makes runners takes one argument more in later releases.
template <typename Create>
std::unique_ptr<Runner> make_runner(const Create& create, const std::string& path) {
  if constexpr (std::is_invocable_v<Create, std::string, size_t, std::string, std::string>) {
    return create(path, 1, "cpu", "");
  } else {
    return create(path, 1, "cpu", "", /*run_single_threaded=*/false);
  }
}

std::unique_ptr<Runner> runner_of(const std::string& path) {
  const auto& registry = torch::inductor::getAOTIModelRunnerRegistry();
  const auto found = registry.find("cpu");
  TORCH_CHECK(found != registry.end(), "this LibTorch runs no packages of AOTInductor");
  return make_runner(found->second, path);
}

void check_sources(const std::vector<PackageSource>& sources, size_t count, const char* what) {
  TORCH_CHECK(sources.size() == count, "its package gives ", sources.size(), " ", what,
              ", and the region has ", count);
}

// That what is there is within what the region has.
void check_indices(const std::vector<PackageSource>& sources, Kind kind, size_t count) {
  for (const PackageSource& each : sources) {
    TORCH_CHECK(each.kind != kind || static_cast<size_t>(each.index) < count,
                "its package names tensor ", each.index, " of ", count);
  }
}

class PackageCode final : public RegionCode {
 public:
  PackageCode(RegionPackage package, std::shared_ptr<const RegionProgram> program)
      : package_(std::move(package)), program_(std::move(program)) {
    const auto num_inputs = static_cast<size_t>(program_->num_inputs);
    TORCH_CHECK(!program_->forward.empty(), "it computes nothing");
    TORCH_CHECK(package_.has_backward == program_->has_backward,
                "its package and the region differ in the backward half");
    check_sources(package_.outputs, program_->outputs.size(), "outputs");
    check_sources(package_.gradients, program_->gradients.size(), "gradients");
    check_indices(package_.outputs, Kind::kInput, num_inputs);
    check_indices(package_.saved, Kind::kInput, num_inputs);
    check_indices(package_.gradients, Kind::kSaved, package_.saved.size());
    check_indices(package_.gradients, Kind::kGrad, program_->gradients_of.size());
    for (const int input : package_.inputs) {
      TORCH_CHECK(input >= 0 && static_cast<size_t>(input) < num_inputs, "its package takes input ",
                  input, " of ", num_inputs);
    }
    // Code names LibTorch's library as Python's torch does. Where the dynamic linker finds another
    // file of that name, or none, the process would get a second LibTorch.
    void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    TORCH_CHECK(library != nullptr,
                "it needs libtorch_cpu.so, and the dynamic linker does not find this program's "
                "LibTorch by that name");
    dlclose(library);
    forward_ = runner_of(package_.forward_code());
    if (package_.has_backward) backward_ = runner_of(package_.backward_code());
  }

  RegionResult forward(const Tensors& inputs) const override {
    Tensors taken;
    taken.reserve(package_.inputs.size());
    for (const int input : package_.inputs) taken.push_back(inputs[input]);
    const Tensors results = run(*forward_, taken);
    return {.outputs = tensors_of(package_.outputs, results, inputs),
            .saved = tensors_of(package_.saved, results, inputs)};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads) const override {
    Tensors taken = saved;
    taken.insert(taken.end(), grads.begin(), grads.end());
    return tensors_of(package_.gradients, run(*backward_, taken), saved, grads);
  }

 private:
  // What a half gives, of its code's results and of what the half was given.
  static Tensors tensors_of(const std::vector<PackageSource>& sources, const Tensors& results,
                            const Tensors& given, const Tensors& grads = {}) {
    Tensors tensors;
    tensors.reserve(sources.size());
    for (const PackageSource& each : sources) {
      switch (each.kind) {
        case Kind::kNone: tensors.emplace_back(); break;
        case Kind::kInput:
        case Kind::kSaved: tensors.push_back(given[each.index]); break;
        case Kind::kGrad: tensors.push_back(grads[each.index]); break;
        case Kind::kResult:
          TORCH_CHECK(static_cast<size_t>(each.index) < results.size(), "a package gave ",
                      results.size(), " tensors, and the region needs one more");
          tensors.push_back(results[each.index]);
      }
    }
    return tensors;
  }

  Tensors run(Runner& runner, const Tensors& taken) const {
    // It reads memory by itself.
    UseOfMemory use;
    for (const at::Tensor& each : taken)
      use.add(each, program_->forward.front().op, /*writes=*/false);
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
    return runner.run(taken);
  }

  const RegionPackage package_;
  const std::shared_ptr<const RegionProgram> program_;
  std::unique_ptr<Runner> forward_;
  std::unique_ptr<Runner> backward_;
};

}  // namespace

std::unique_ptr<const RegionCode> load_package(const RegionPackage& package,
                                               std::shared_ptr<const RegionProgram> program) {
  return std::make_unique<PackageCode>(package, std::move(program));
}

}  // namespace accelerate
