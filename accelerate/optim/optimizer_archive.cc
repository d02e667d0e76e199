#include "accelerate/optim/optimizer_archive.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/serialize/archive.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace accelerate::internal {
namespace {

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

// A quoted name without escapes and control characters.
bool consume_name(absl::string_view& text) {
  if (!absl::ConsumePrefix(&text, "\"")) return false;
  while (!text.empty() && text[0] != '"') {
    if (text[0] == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(text[0]))) return false;
    text.remove_prefix(1);
  }
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

void load(torch::optim::Optimizer& optimizer, const at::Tensor& tensor) {
  const absl::string_view bytes(static_cast<const char*>(tensor.const_data_ptr()),
                                static_cast<size_t>(tensor.numel()));
  check_no_code(optimizer, bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device_of(optimizer));
  optimizer.load(archive);
}

}  // namespace

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
