#include "accelerate/tracking/process_end.h"

#include <atomic>

namespace accelerate {
namespace {

std::atomic<bool> is_ending = false;

}  // namespace

bool process_is_ending() { return is_ending; }

void set_process_is_ending(bool ending) { is_ending = ending; }

}  // namespace accelerate
