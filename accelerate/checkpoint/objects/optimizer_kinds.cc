#include "accelerate/checkpoint/objects/optimizer_kinds.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/values/fields.h"

namespace accelerate::internal {
namespace {

using nlohmann::ordered_json;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// The fields of LibTorch's options and states; the optimizers of this library list theirs.
ACCELERATE_ARGUMENTS(torch::optim::AdamOptions, lr, betas, eps, weight_decay, amsgrad)
ACCELERATE_ARGUMENTS(torch::optim::AdamWOptions, lr, betas, eps, weight_decay, amsgrad)
ACCELERATE_ARGUMENTS(torch::optim::AdamParamState, step, exp_avg, exp_avg_sq, max_exp_avg_sq)
ACCELERATE_ARGUMENTS(torch::optim::AdamWParamState, step, exp_avg, exp_avg_sq, max_exp_avg_sq)
ACCELERATE_ARGUMENTS(torch::optim::SGDOptions, lr, momentum, dampening, weight_decay, nesterov)
ACCELERATE_ARGUMENTS(torch::optim::SGDParamState, momentum_buffer)
ACCELERATE_ARGUMENTS(torch::optim::AdagradOptions, lr, lr_decay, weight_decay,
                     initial_accumulator_value, eps)
ACCELERATE_ARGUMENTS(torch::optim::AdagradParamState, step, sum)
ACCELERATE_ARGUMENTS(torch::optim::RMSpropOptions, lr, momentum, alpha, eps, centered, weight_decay)
ACCELERATE_ARGUMENTS(torch::optim::RMSpropParamState, step, square_avg, momentum_buffer, grad_avg)
ACCELERATE_ARGUMENTS(torch::optim::LBFGSOptions, lr, max_iter, max_eval, tolerance_grad,
                     tolerance_change, history_size, line_search_fn)
ACCELERATE_ARGUMENTS(torch::optim::LBFGSParamState, func_evals, n_iter, d, t, old_dirs, old_stps,
                     ro, H_diag, prev_flat_grad, prev_loss, al)

// LOMO keeps nothing.
struct NoState : OptimizerParamState {};
ACCELERATE_ARGUMENTS(NoState)

// What the tensors of a state must be. Those of most optimizers are like their parameters.
at::ScalarType moment_dtype(const StateOwner& owner) {
  const at::ScalarType dtype = owner.parameter.scalar_type();
  return owner.wide_moments ? c10::promoteTypes(dtype, at::kFloat) : dtype;
}

StateTensorRule like_parameter(const StateOwner& owner, bool required) {
  return {.sizes = owner.parameter.sizes().vec(),
          .dtype = moment_dtype(owner),
          .like_parameter = true,
          .required = required};
}

template <typename State>
StateTensorRule rule_of(std::type_identity<State>, const std::string& field,
                        const StateOwner& owner) {
  constexpr std::array kOptional = {"max_exp_avg_sq", "momentum_buffer", "grad_avg"};
  const bool is_momentum = std::is_same_v<State, torch::optim::SGDParamState>;
  bool required = true;
  for (const char* optional : kOptional) required = required && field != optional;
  return like_parameter(owner, required || is_momentum);
}

StateTensorRule rule_of(std::type_identity<optim::AdaLomoParamState>, const std::string& field,
                        const StateOwner& owner) {
  const bool is_factored = owner.parameter.dim() >= 2;
  StateTensorRule rule = like_parameter(owner, (field != "exp_avg_sq") == is_factored);
  rule.dtype = c10::promoteTypes(owner.parameter.scalar_type(), at::kFloat);
  if (field == "exp_avg_sq") return rule;
  rule.like_parameter = false;
  if (is_factored) rule.sizes.erase(rule.sizes.end() - (field == "exp_avg_sq_row" ? 1 : 2));
  return rule;
}

StateTensorRule rule_of(std::type_identity<torch::optim::LBFGSParamState>, const std::string& field,
                        const StateOwner& owner) {
  const bool is_scalar = field == "H_diag" || field.starts_with("ro.") || field.starts_with("al.");
  StateTensorRule rule;
  if (!is_scalar) rule.sizes = {owner.group_numel};
  rule.required = field.find('.') != std::string::npos && !field.starts_with("al.");
  return rule;
}

// A user can put options of any class into a group.
template <typename To, typename From>
To& as(From& from, const char* kind) {
  auto* to = dynamic_cast<To*>(&from);
  TORCH_CHECK_VALUE(to != nullptr, "an optimizer of type ", kind,
                    " has options or state of another type");
  return *to;
}

struct StateWriter {
  const std::string& prefix;
  NamedTensors& tensors;
  ordered_json values = ordered_json::object();

  void add(const std::string& field, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const std::string name = prefix + field;
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "an optimizer's \"", name, "\" is ",
                      tensor.layout(), ", which a checkpoint cannot hold");
    tensors.emplace_back(name, tensor.detach());
  }
  void operator()(const char* field, const at::Tensor& tensor) { add(field, tensor); }
  template <typename List>
  void add_list(const char* field, const List& list) {
    values[field] = list.size();
    for (size_t i = 0; i < list.size(); ++i) add(absl::StrCat(field, ".", i), list[i]);
  }
  void operator()(const char* field, const std::deque<at::Tensor>& list) { add_list(field, list); }
  void operator()(const char* field, const std::optional<std::vector<at::Tensor>>& list) {
    if (list) return add_list(field, *list);
    values[field] = nullptr;
  }
  template <typename T>
  void operator()(const char* field, const T& value) {
    values[field] = to_json_value(value);
  }
};

struct StateReader {
  const ordered_json& values;
  const std::string& where;
  // That of a field by its full name.
  const std::function<at::Tensor(const std::string& field)>& take;

  void operator()(const char* field, at::Tensor& tensor) const { tensor = take(field); }
  template <typename List>
  void read_list(const char* field, List& list) const {
    // More than any history holds, and than a hostile file may make us allocate.
    constexpr int64_t kMax = 1 << 20;
    const auto size = field_of<int64_t>(values, field, where);
    TORCH_CHECK_VALUE(size >= 0 && size <= kMax, where, ": \"", field, "\" is ", size,
                      ", which is not a length of a list");
    for (int64_t i = 0; i < size; ++i) list.push_back(take(absl::StrCat(field, ".", i)));
  }
  void operator()(const char* field, std::deque<at::Tensor>& list) const {
    list.clear();
    read_list(field, list);
  }
  void operator()(const char* field, std::optional<std::vector<at::Tensor>>& list) const {
    list.reset();
    if (!json_member(values, field, where).is_null()) read_list(field, list.emplace());
  }
  template <typename T>
  void operator()(const char* field, T& value) const {
    read_field(values, field, where, value);
  }
};

template <typename Options, typename State>
class KindOf final : public OptimizerKind {
 public:
  explicit KindOf(const char* name) : name_(name) {}

  const char* name() const override { return name_; }

  ordered_json options(const OptimizerOptions& options) const override {
    ordered_json values = ordered_json::object();
    visit_fields(
        as<const Options>(options, name_),
        [&values](const char* field, const auto& value) { values[field] = to_json_value(value); });
    return values;
  }

  std::unique_ptr<OptimizerOptions> read_options(const ordered_json& values,
                                                 const std::string& where) const override {
    auto options = std::make_unique<Options>(0);
    visit_fields(*options,
                 [&](const char* field, auto& value) { read_field(values, field, where, value); });
    return options;
  }

  void assign(OptimizerOptions& options, OptimizerOptions& from) const override {
    as<Options>(options, name_) = std::move(as<Options>(from, name_));
  }

  ordered_json state(const OptimizerParamState& state, const std::string& prefix,
                     NamedTensors& tensors) const override {
    StateWriter writer{prefix, tensors};
    visit_fields(as<const State>(state, name_), writer);
    return std::move(writer.values);
  }

  std::unique_ptr<OptimizerParamState> read_state(const ordered_json& values,
                                                  const std::string& where, const StateOwner& owner,
                                                  const TakeTensor& take) const override {
    TORCH_CHECK_VALUE(values.is_object(), where, " is ", json_excerpt(values),
                      ", which is not an object");
    auto state = std::make_unique<State>();
    const std::function<at::Tensor(const std::string&)> take_field = [&](const std::string& field) {
      return take(field, rule_of(std::type_identity<State>(), field, owner));
    };
    visit_fields(*state, StateReader{values, where, take_field});
    return state;
  }

 private:
  const char* name_;
};

using namespace torch::optim;
const KindOf<AdamOptions, AdamParamState> kAdam("Adam");
const KindOf<AdamWOptions, AdamWParamState> kAdamW("AdamW");
const KindOf<SGDOptions, SGDParamState> kSgd("SGD");
const KindOf<AdagradOptions, AdagradParamState> kAdagrad("Adagrad");
const KindOf<RMSpropOptions, RMSpropParamState> kRmsprop("RMSprop");
const KindOf<LBFGSOptions, LBFGSParamState> kLbfgs("LBFGS");
const KindOf<optim::LionOptions, optim::LionParamState> kLion("Lion");
const KindOf<optim::LambOptions, optim::LambParamState> kLamb("Lamb");
const KindOf<optim::ScheduleFreeAdamWOptions, optim::ScheduleFreeAdamWParamState> kScheduleFree(
    "ScheduleFreeAdamW");
const KindOf<optim::LomoOptions, optim::LomoParamState> kLomo("Lomo");
const KindOf<optim::AdaLomoOptions, optim::AdaLomoParamState> kAdaLomo("AdaLomo");

// Where the optimizer's parameters are; absent: in several places.
std::optional<c10::Device> device_of(const torch::optim::Optimizer& optimizer) {
  std::optional<c10::Device> device;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (device && *device != parameter.device()) return std::nullopt;
      device = parameter.device();
    }
  }
  return device;
}

// For LibTorch's reader of zips.
class MemoryAdapter final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MemoryAdapter(absl::string_view bytes) : bytes_(bytes) {}
  size_t size() const override { return bytes_.size(); }
  size_t read(uint64_t offset, void* buffer, size_t count, const char* /*what*/) const override {
    if (offset > bytes_.size() || count > bytes_.size() - offset) return 0;
    std::memcpy(buffer, bytes_.data() + offset, count);
    return count;
  }

 private:
  const absl::string_view bytes_;
};

constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";

// Classes that C++ registered, whose functions construct them.
constexpr char kNativeClasses[] = "torch.classes";

bool is_made_of(absl::string_view text, absl::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == absl::string_view::npos;
}

bool is_type(absl::string_view text) {
  const std::string type = absl::StrReplaceAll(text, {{"[()]", ""}});  // that of an empty tuple
  return is_made_of(type, absl::StrCat(kLetters, "., []")) &&
         !absl::StrContains(type, kNativeClasses);
}

// Between its quotes: nothing that could end them.
bool consume_name(absl::string_view& text) {
  if (!absl::ConsumePrefix(&text, "\"")) return false;
  size_t size = 0;
  while (size < text.size() && text[size] != '"') {
    if (text[size] == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(text[size]))) {
      return false;
    }
    ++size;
  }
  text.remove_prefix(size);
  return absl::ConsumePrefix(&text, "\"");
}

// Whether a line of a class's source declares something, and that is all.
bool is_declaration(absl::string_view line) {
  if (line.empty()) return true;
  if (absl::ConsumePrefix(&line, "class ")) {
    return absl::ConsumeSuffix(&line, "(Module):") && is_made_of(line, kLetters);
  }
  if (!absl::ConsumePrefix(&line, "  ")) return false;
  if (line == "__annotations__ = []") return true;
  if (absl::ConsumePrefix(&line, "__annotations__[")) {
    return consume_name(line) && absl::ConsumePrefix(&line, "] = ") && is_type(line);
  }
  if (absl::ConsumePrefix(&line, "__parameters__ = [") ||
      absl::ConsumePrefix(&line, "__buffers__ = [")) {
    while (consume_name(line)) {
      if (!absl::ConsumePrefix(&line, ", ")) return false;
    }
    return line == "]";
  }
  const size_t colon = line.find(" : ");
  return colon != absl::string_view::npos && is_made_of(line.substr(0, colon), kLetters) &&
         is_type(line.substr(colon + 3));
}

// Whether a record holds tensors or is read as numbers.
bool is_data(const std::string& record) {
  return absl::StartsWith(record, "data/") || absl::StartsWith(record, "constants/") ||
         absl::StartsWith(record, ".data/") || record == "version" || record == "byteorder";
}

// What of any other record could be executed; empty for nothing.
std::string code_in(const std::string& record, absl::string_view contents) {
  if (record == "data.pkl" || record == "constants.pkl") {
    // A class is named in one or two lines.
    const std::string text = absl::StrReplaceAll(contents, {{"\n", "."}});
    return absl::StrContains(text, kNativeClasses) ? kNativeClasses : "";
  }
  if (!absl::StartsWith(record, "code/")) return "a record that no optimizer writes";
  // Where lines of the source were, for errors.
  if (absl::EndsWith(record, ".py.debug_pkl")) return "";
  if (!absl::EndsWith(record, ".py")) return "a record that no optimizer writes";
  for (const absl::string_view line : absl::StrSplit(contents, '\n')) {
    if (!is_declaration(line)) return absl::CHexEscape(line.substr(0, 80));
  }
  return "";
}

void check_no_code(const torch::optim::Optimizer& optimizer, absl::string_view archive) {
  caffe2::serialize::PyTorchStreamReader zip(std::make_shared<MemoryAdapter>(archive));
  for (const std::string& record : zip.getAllRecords()) {
    if (is_data(record)) continue;
    const auto [data, size] = zip.getRecord(record);
    const std::string code =
        code_in(record, absl::string_view(static_cast<const char*>(data.get()), size));
    TORCH_CHECK_VALUE(code.empty(), "the archive of an optimizer of type ",
                      c10::demangle(typeid(optimizer).name()),
                      " holds code, which is not executed: ", record, ": ", code);
  }
}

absl::string_view view_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

void load(torch::optim::Optimizer& optimizer, const at::Tensor& bytes) {
  check_no_code(optimizer, view_of(bytes));
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()),
                    static_cast<size_t>(bytes.numel()), device_of(optimizer));
  optimizer.load(archive);
}

}  // namespace

const OptimizerKind* find_optimizer_kind(const torch::optim::Optimizer& optimizer) {
  const std::pair<std::type_index, const OptimizerKind*> kinds[] = {
      {typeid(torch::optim::Adam), &kAdam},
      {typeid(optim::Adam), &kAdam},
      {typeid(torch::optim::AdamW), &kAdamW},
      {typeid(optim::AdamW), &kAdamW},
      {typeid(torch::optim::SGD), &kSgd},
      {typeid(optim::SGD), &kSgd},
      {typeid(torch::optim::Adagrad), &kAdagrad},
      {typeid(torch::optim::RMSprop), &kRmsprop},
      {typeid(torch::optim::LBFGS), &kLbfgs},
      {typeid(optim::Lion), &kLion},
      {typeid(optim::Lamb), &kLamb},
      {typeid(optim::ScheduleFreeAdamW), &kScheduleFree},
      {typeid(optim::Lomo), &kLomo},
      {typeid(optim::AdaLomo), &kAdaLomo},
  };
  const std::type_index type = typeid(optimizer);
  for (const auto& [known, kind] : kinds) {
    if (known == type) return kind;
  }
  return nullptr;
}

at::Tensor optimizer_archive(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  auto bytes = std::make_shared<std::string>();
  archive.save_to([&bytes](const void* data, size_t size) {
    bytes->append(static_cast<const char*>(data), size);
    return size;
  });
  // Nothing is saved that could not be loaded.
  check_no_code(optimizer, *bytes);
  torch::serialize::InputArchive written;
  written.load_from(bytes->data(), bytes->size(), c10::kCPU);
  TORCH_CHECK_VALUE(!written.keys().empty(), "an optimizer of type ",
                    c10::demangle(typeid(optimizer).name()),
                    " saves nothing: its class must override save and load");
  return at::from_blob(
      bytes->data(), {static_cast<int64_t>(bytes->size())}, [bytes](void*) {}, at::kByte);
}

void load_optimizer_archive(torch::optim::Optimizer& optimizer, const at::Tensor& archive) {
  const at::Tensor before = optimizer_archive(optimizer);
  std::string what;
  try {
    return load(optimizer, archive);
  } catch (const c10::Error& error) {
    what = error.what_without_backtrace();
  } catch (const std::exception& error) {
    what = error.what();
  }
  load(optimizer, before);
  TORCH_CHECK_VALUE(false, "the state of an optimizer of type ",
                    c10::demangle(typeid(optimizer).name()), " cannot be loaded: ", what);
}

}  // namespace accelerate::internal
