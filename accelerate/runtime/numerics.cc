#include "accelerate/runtime/numerics.h"

namespace accelerate {

bool has_shapes_alone(const Runtime& runtime) {
  return runtime.find_shared<ShapesAlone>() != nullptr;
}

FileSystem& lasting_files(Runtime& runtime) {
  const auto* shapes = runtime.find_shared<ShapesAlone>();
  return shapes != nullptr ? shapes->lasting_files : runtime.files();
}

}  // namespace accelerate
