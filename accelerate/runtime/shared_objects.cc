#include "accelerate/runtime/shared_objects.h"

namespace accelerate {
namespace {

thread_local int64_t own_optimizer_steps = 0;

template <typename T>
T* find_shared_of_current() {
  const Runtime* runtime = Runtime::find_current();
  return runtime != nullptr ? runtime->find_shared<T>() : nullptr;
}

}  // namespace

void name_memory(const at::Tensor& tensor, std::string_view name) {
  if (auto* names = find_shared_of_current<MemoryNames>()) names->name(tensor, name);
}

HostWork* HostWork::find() { return find_shared_of_current<HostWork>(); }

bool has_shapes_alone(const Runtime& runtime) {
  return runtime.find_shared<ShapesAlone>() != nullptr;
}

FileSystem& lasting_files(Runtime& runtime) {
  const auto* shapes = runtime.find_shared<ShapesAlone>();
  return shapes != nullptr ? shapes->lasting_files : runtime.files();
}

void record_optimizer_step() {
  ++own_optimizer_steps;
  if (Runtime* runtime = Runtime::find_current()) runtime->record_step();
}

int64_t optimizer_steps() { return own_optimizer_steps; }

}  // namespace accelerate
