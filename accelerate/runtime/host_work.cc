#include "accelerate/runtime/host_work.h"

#include "accelerate/runtime/runtime.h"

namespace accelerate {

HostWork* HostWork::find() {
  const Runtime* runtime = Runtime::find_current();
  return runtime != nullptr ? runtime->find_shared<HostWork>() : nullptr;
}

}  // namespace accelerate
