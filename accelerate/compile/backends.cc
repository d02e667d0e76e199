#include "accelerate/compile/backends.h"

#include <map>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/base/compile_backends.h"
#include "accelerate/config/dynamo_plugin.h"

namespace accelerate {
namespace {

class Uncompiled final : public CompileBackend {
 public:
  bool records() const override { return false; }
  std::unique_ptr<const RegionCode> compile(std::shared_ptr<const RegionProgram>) override {
    return nullptr;
  }
};

class Interpreted final : public RegionCode {
 public:
  explicit Interpreted(std::shared_ptr<const RegionProgram> program)
      : program_(std::move(program)) {}

  RegionResult forward(const std::vector<at::Tensor>& inputs) const override {
    return run_forward(*program_, inputs);
  }
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& saved,
                                   const std::vector<at::Tensor>& grads) const override {
    return run_backward(*program_, saved, grads);
  }

 private:
  const std::shared_ptr<const RegionProgram> program_;
};

class Interpreter final : public CompileBackend {
 public:
  std::unique_ptr<const RegionCode> compile(std::shared_ptr<const RegionProgram> program) override {
    return std::make_unique<Interpreted>(std::move(program));
  }
};

// Packages are made before a job, and never by it.
class Packages final : public CompileBackend {
 public:
  std::unique_ptr<const RegionCode> compile(std::shared_ptr<const RegionProgram>) override {
    return nullptr;
  }
  std::string advice() const override {
    return "this version makes no packages of AOTInductor yet, so regions run as they are; "
           "aot_eager runs what was recorded";
  }
};

struct Registry {
  std::mutex mutex;
  std::map<DynamoBackend, CompileBackendFactory> factories = {
      {DynamoBackend::kEager,
       [](const TorchDynamoPlugin&) { return std::make_unique<Uncompiled>(); }},
      {DynamoBackend::kAotEager,
       [](const TorchDynamoPlugin&) { return std::make_unique<Interpreter>(); }},
      {DynamoBackend::kInductor,
       [](const TorchDynamoPlugin&) { return std::make_unique<Packages>(); }},
  };
};

Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

CompileBackendFactory factory_of(DynamoBackend backend) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().factories.find(backend);
  TORCH_CHECK_VALUE(found != registry().factories.end(),
                    "dynamo_plugin: ", compile_backend_refusal(backend));
  return found->second;
}

}  // namespace

void register_compile_backend(DynamoBackend backend, CompileBackendFactory factory) {
  const std::lock_guard lock(registry().mutex);
  registry().factories[backend] = std::move(factory);
}

void check_compile_backend(DynamoBackend backend) { factory_of(backend); }

std::unique_ptr<CompileBackend> make_compile_backend(const TorchDynamoPlugin& plugin) {
  return factory_of(backend_of(plugin))(plugin);
}

}  // namespace accelerate
