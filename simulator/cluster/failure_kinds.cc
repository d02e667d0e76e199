#include "simulator/cluster/failure_kinds.h"

#include <c10/util/Exception.h>

#include "simulator/faults/deaths.h"

namespace accelerate::simulator {

bool is_consequence(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::DistError&) {
    return true;
  } catch (const RankKilled& death) {
    return !death.is_cause();
  } catch (...) {
    return false;
  }
}

bool is_out_of_memory(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace accelerate::simulator
