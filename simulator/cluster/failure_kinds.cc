#include "simulator/cluster/failure_kinds.h"

#include <c10/util/Exception.h>

#include "simulator/faults/deaths.h"

namespace accelerate::simulator {

FailureCause cause_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::DistError&) {
    return FailureCause::kPeers;
  } catch (const RankKilled& death) {
    return death.is_cause() ? FailureCause::kOwn : FailureCause::kEnded;
  } catch (...) {
    return FailureCause::kOwn;
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
