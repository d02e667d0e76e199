#include "simulator/device/op_support.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "simulator/device/op_info.h"

namespace accelerate::simulator {
namespace {

using c10::DispatchKey;

const char* to_string(OpSupport support) {
  switch (support) {
    case OpSupport::kCpuKernel: return "cpu kernel";
    case OpSupport::kDevice: return "device";
    case OpSupport::kComposed: return "composed";
    case OpSupport::kUnsupported: return "unsupported";
  }
  return "";
}

bool is_composed(const c10::OperatorHandle& op) {
  constexpr DispatchKey kComposites[] = {DispatchKey::CompositeImplicitAutograd,
                                         DispatchKey::CompositeExplicitAutograd,
                                         DispatchKey::CompositeExplicitAutogradNonFunctional};
  return std::any_of(std::begin(kComposites), std::end(kComposites),
                     [&op](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

}  // namespace

OpSupport op_support(const c10::OperatorHandle& op) {
  const bool own = op.hasKernelForDispatchKey(DispatchKey::PrivateUse1) ||
                   op.hasKernelForDispatchKey(DispatchKey::SparsePrivateUse1);
  if (op_info(op).has_own_cpu_kernel) return OpSupport::kCpuKernel;
  if (own) return OpSupport::kDevice;
  if (is_composed(op)) return OpSupport::kComposed;
  return op_info(op).has_cpu_kernel ? OpSupport::kCpuKernel : OpSupport::kUnsupported;
}

std::vector<std::string> list_op_support() {
  std::vector<std::string> lines;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!absl::StartsWith(name.name, "aten::")) continue;
    auto op = dispatcher.findSchema(name);
    // Mobile and scripting parts register some names that are not operators of the dispatcher and
    // have no kernel at all.
    if (!op || !op->hasKernelForAnyDispatchKey(c10::DispatchKeySet(c10::DispatchKeySet::FULL))) {
      continue;
    }
    lines.push_back(absl::StrCat(c10::toString(name), " ", to_string(op_support(*op))));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace accelerate::simulator
