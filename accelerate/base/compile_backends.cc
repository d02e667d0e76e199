#include "accelerate/base/compile_backends.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

using enum DynamoBackend;

constexpr CompileBackendRow kRows[] = {
    {kNo, true, "nothing is compiled"},
    {kEager, true, "nothing but the guards, and counts of what would be regions"},
    {kAotEager, true, "each region is recorded and its text runs operator by operator"},
    {kInductor, true,
     "regions run packages of AOTInductor; without a package a region runs as it is"},
    {kAotTsNvfuser, false, "PyTorch has dropped nvFuser", kInductor},
    {kNvprimsNvfuser, false, "PyTorch has dropped nvFuser", kInductor},
    {kCudagraphs, false, "it captures CUDA graphs, which this version does not", kInductor},
    {kOfi, false, "it freezes TorchScript, which PyTorch has deprecated", kInductor},
    {kFx2trt, false, "TensorRT compiles graphs that Python traces", kInductor},
    {kOnnxrt, false, "ONNX Runtime compiles graphs that Python exports", kInductor},
    {kTensorrt, false, "TensorRT compiles graphs that Python traces", kInductor},
    {kAotTorchxlaTraceOnce, false, "PyTorch/XLA compiles graphs that Python traces", kAotEager},
    {kTorchxlaTraceOnce, false, "PyTorch/XLA compiles graphs that Python traces", kAotEager},
    {kIpex, false, "Intel's extension compiles graphs that Python traces", kInductor},
    {kTvm, false, "TVM compiles graphs that Python traces", kInductor},
    {kHpuBackend, false, "Habana's compiler needs its Python package", kAotEager},
    {kNeuron, false, "the Neuron compiler needs its Python package", kAotEager},
};
static_assert(std::size(kRows) == std::size(EnumTable<DynamoBackend>::kTexts));

std::string lower(DynamoBackend backend) { return absl::AsciiStrToLower(to_string(backend)); }

}  // namespace

absl::Span<const CompileBackendRow> compile_backend_rows() { return kRows; }

const CompileBackendRow& compile_backend_row(DynamoBackend backend) {
  return *std::ranges::find(kRows, backend, &CompileBackendRow::backend);
}

std::optional<DynamoBackend> find_compile_backend(absl::string_view name) {
  if (absl::EqualsIgnoreCase(name, kMisspeltTraceOnce)) return kTorchxlaTraceOnce;
  const int index = internal::index_of_text<DynamoBackend>({name.data(), name.size()});
  return index < 0 ? std::nullopt : std::make_optional(static_cast<DynamoBackend>(index));
}

std::string compile_backend_refusal(DynamoBackend backend) {
  const CompileBackendRow& row = compile_backend_row(backend);
  if (row.works) return "";
  return absl::StrCat("dynamo_backend=", lower(backend), ": ", row.says,
                      "; the nearest that works is ", lower(row.nearest));
}

}  // namespace accelerate
