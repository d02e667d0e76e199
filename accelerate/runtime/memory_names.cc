#include "accelerate/runtime/memory_names.h"

#include "accelerate/runtime/runtime.h"

namespace accelerate {

void name_memory(const at::Tensor& tensor, std::string_view name) {
  const Runtime* runtime = Runtime::find_current();
  if (runtime == nullptr) return;
  if (auto* names = runtime->find_shared<MemoryNames>()) names->name(tensor, name);
}

}  // namespace accelerate
