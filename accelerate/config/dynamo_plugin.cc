#include "accelerate/config/dynamo_plugin.h"

#include <utility>
#include <variant>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/compile_backends.h"
#include "accelerate/config/option_fields.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

DynamoBackend member(DynamoBackend backend) { return backend; }
DynamoBackend member(const std::string& text) {
  const std::optional<DynamoBackend> backend = find_compile_backend(text);
  TORCH_CHECK_VALUE(backend, "'", absl::AsciiStrToUpper(text),
                    "' is not a valid DynamoBackend: it is one of ",
                    absl::StrJoin(EnumTable<DynamoBackend>::kTexts, ", "));
  return *backend;
}

}  // namespace

TorchDynamoPlugin resolve(TorchDynamoPlugin plugin, const Environment& environment) {
  fill_fields(plugin, options::Section::kDynamo, environment, {"backend"});
  if (!plugin.backend) {
    plugin.backend = environment.get_or(options::option("dynamo_backend").variable_name(), "no");
  }
  plugin.backend = std::visit([](const auto& backend) { return member(backend); }, *plugin.backend);
  if (!plugin.use_regional_compilation) plugin.use_regional_compilation = false;
  return plugin;
}

DynamoBackend backend_of(const TorchDynamoPlugin& plugin) {
  const auto* backend = plugin.backend ? std::get_if<DynamoBackend>(&*plugin.backend) : nullptr;
  TORCH_CHECK_VALUE(backend != nullptr, "dynamo_plugin: it is not resolved");
  return *backend;
}

bool compiles(const TorchDynamoPlugin& plugin) {
  return backend_of(plugin) != DynamoBackend::kNo && !plugin.disable;
}

void check(const TorchDynamoPlugin& plugin) {
  if (!compiles(plugin)) return;
  check_choices(plugin, options::Section::kDynamo, "dynamo_plugin: ");
  TORCH_CHECK_VALUE(!plugin.options || plugin.mode.value_or("default") == "default",
                    "dynamo_plugin: mode is \"", *plugin.mode,
                    "\" and there are options; give one of them");
  TORCH_CHECK_VALUE(!plugin.options || plugin.options->is_object(),
                    "dynamo_plugin: options are an object, as in {\"name\": value}");
  if (!plugin.options) return;
  if (plugin.options->contains("memory_budget")) {
    const Json& budget = plugin.options->at("memory_budget");
    TORCH_CHECK_VALUE(budget.is_number() && budget >= 0 && budget <= 1,
                      "dynamo_plugin: memory_budget is ", budget.dump(),
                      "; it is a share from 0 to 1");
  }
  if (plugin.options->contains("package")) {
    const Json& package = plugin.options->at("package");
    TORCH_CHECK_VALUE(package.is_string() && !package.get<std::string>().empty(),
                      "dynamo_plugin: package is ", package.dump(), "; it is the path of a folder");
  }
}

Json to_dict(const TorchDynamoPlugin& plugin) {
  Json dict;
  visit_fields(plugin, [&](const char* name, const auto& field) {
    if constexpr (requires { field->index(); }) {
      dict[name] = absl::AsciiStrToLower(to_string(backend_of(plugin)));
    } else {
      dict[name] = internal::to_json_value(field);
    }
  });
  return dict;
}

Json to_kwargs(const TorchDynamoPlugin& plugin) {
  // The environment does not count.
  const Json defaults = to_dict({.backend = DynamoBackend::kNo,
                                 .mode = "default",
                                 .fullgraph = false,
                                 .use_regional_compilation = false});
  const Json dict = to_dict(plugin);
  Json kwargs = Json::object();
  for (const auto& [name, value] : dict.items()) {
    if (name != "use_regional_compilation" && value != defaults.at(name)) kwargs[name] = value;
  }
  return kwargs;
}

std::string to_text(const TorchDynamoPlugin& plugin) { return to_dict(plugin).dump(); }

}  // namespace accelerate
