#include "accelerate/compile/backends.h"

#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/compile_backends.h"
#include "accelerate/base/message_text.h"
#include "accelerate/compile/packages/package.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/simulated_run.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/values/texts.h"

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
    return interpreted(std::move(program));
  }
};

Environment current_environment() {
  const Runtime* const runtime = Runtime::find_current();
  return runtime != nullptr ? runtime->environment() : Environment();
}

// The command that runs this program as it runs here and makes packages of its regions in that
// cache, as a shell reads it.
std::string compile_command(const Environment& environment, const std::string& cache) {
  std::vector<std::string> words = shaping_variables(environment.variables());
  // `accelerate compile` sets this variable itself.
  std::erase_if(words, [](const std::string& word) {
    return absl::StartsWith(word, "ACCELERATE_DYNAMO_BACKEND=");
  });
  const absl::StatusOr<std::string> usual_cache = region_cache([&](std::string_view name) {
    return name == env::kCompileCache ? std::string() : environment.get_or(name, "");
  });
  if (!usual_cache.ok() || *usual_cache != cache) {
    words.push_back(absl::StrCat(env::kCompileCache, "=", shell_quoted(cache)));
  }
  words.emplace_back("accelerate compile");
  if (parse_flag_from_env("ACCELERATE_USE_CPU", false, environment)) words.emplace_back("--cpu");
  const Runtime* const runtime = Runtime::find_current();
  const int ranks = runtime != nullptr ? runtime->topology().world_size : 1;
  words.push_back(
      absl::StrCat("--num_processes ", ranks, " --no_default_config ", shell_line(command_line())));
  return absl::StrJoin(words, " ");
}

RegionCompiler compiler_of(c10::DeviceType type);

// Packages are made before a job, and never by it.
class Packages final : public CompileBackend {
 public:
  explicit Packages(const TorchDynamoPlugin& plugin)
      : machine_(RegionMachine::current()), mode_(plugin.mode.value_or("default")) {
    const Environment environment = current_environment();
    nlohmann::ordered_json options = plugin.options.value_or(nlohmann::ordered_json::object());
    if (options.contains("package")) {
      cache_ = options["package"].get<std::string>();
      options.erase("package");
    } else {
      cache_ = region_cache([&](std::string_view name) { return environment.get_or(name, ""); });
    }
    options_ = options.dump();
    records_ = parse_flag_from_env(env::kCompileRecord, false, environment);
  }

  std::unique_ptr<const RegionCode> compile(std::shared_ptr<const RegionProgram> program) override {
    if (const RegionCompiler compiler = compiler_of(program->device.type())) {
      return compiler(std::move(program));
    }
    if (!program->device.is_cpu()) {
      advice_ = absl::StrCat("packages are for CPUs, and it is on ", program->device.str());
      return nullptr;
    }
    // That of the Python which makes packages. A text has the dtypes that an operator was given.
    if (const at::ScalarType dtype = c10::get_default_dtype_as_scalartype(); dtype != at::kFloat) {
      advice_ = absl::StrCat("packages make new tensors in Float, and the default dtype is ",
                             c10::toString(dtype),
                             "; give tensors their dtypes, and leave torch::set_default_dtype out");
      return nullptr;
    }
    if (!cache_.ok()) {
      advice_ = std::string(cache_.status().message());
      return nullptr;
    }
    const RegionRequest request = {
        .libtorch = TORCH_VERSION, .mode = mode_, .options = options_, .text = program->text};
    const absl::StatusOr<RegionPackage> package = find_package(*cache_, request, machine_);
    if (package.ok()) return loaded(*package, std::move(program));
    advice_ = std::string(package.status().message());
    if (!absl::IsNotFound(package.status())) return nullptr;
    if (records_) {
      const absl::Status written = write_region(*cache_, request);
      TORCH_CHECK(written.ok(), "a region cannot be recorded: ", written.message());
      return interpreted(std::move(program));
    }
    absl::StrAppend(&advice_, "; this makes it: ", compile_command(current_environment(), *cache_));
    return nullptr;
  }

  std::string advice() const override { return advice_; }

 private:
  std::unique_ptr<const RegionCode> loaded(const RegionPackage& package,
                                           std::shared_ptr<const RegionProgram> program) {
    try {
      return load_package(package, std::move(program));
    } catch (const std::exception& error) {
      const std::string why = exception_text(error);
      advice_ = absl::StrCat("the package ", package.folder,
                             " is not loaded: ", why.substr(0, why.find('\n')));
      return nullptr;
    }
  }

  const RegionMachine machine_;
  const std::string mode_;
  std::string options_;
  absl::StatusOr<std::string> cache_ = std::string();
  bool records_ = false;
  std::string advice_;
};

struct Registry {
  std::mutex mutex;
  std::map<DynamoBackend, CompileBackendFactory> factories = {
      {DynamoBackend::kEager,
       [](const TorchDynamoPlugin&) { return std::make_unique<Uncompiled>(); }},
      {DynamoBackend::kAotEager,
       [](const TorchDynamoPlugin&) { return std::make_unique<Interpreter>(); }},
      {DynamoBackend::kInductor,
       [](const TorchDynamoPlugin& plugin) { return std::make_unique<Packages>(plugin); }},
  };
  std::map<c10::DeviceType, RegionCompiler> compilers;
};

Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

// Empty: there is none.
RegionCompiler compiler_of(c10::DeviceType type) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().compilers.find(type);
  return found == registry().compilers.end() ? RegionCompiler() : found->second;
}

CompileBackendFactory factory_of(DynamoBackend backend) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().factories.find(backend);
  TORCH_CHECK_VALUE(found != registry().factories.end(),
                    "dynamo_plugin: ", compile_backend_refusal(backend));
  return found->second;
}

}  // namespace

std::unique_ptr<const RegionCode> interpreted(std::shared_ptr<const RegionProgram> program) {
  return std::make_unique<Interpreted>(std::move(program));
}

void register_region_compiler(c10::DeviceType type, RegionCompiler compiler) {
  const std::lock_guard lock(registry().mutex);
  registry().compilers[type] = std::move(compiler);
}

void register_compile_backend(DynamoBackend backend, CompileBackendFactory factory) {
  const std::lock_guard lock(registry().mutex);
  registry().factories[backend] = std::move(factory);
}

void check_compile_backend(DynamoBackend backend) { factory_of(backend); }

std::unique_ptr<CompileBackend> make_compile_backend(const TorchDynamoPlugin& plugin) {
  return factory_of(backend_of(plugin))(plugin);
}

}  // namespace accelerate
