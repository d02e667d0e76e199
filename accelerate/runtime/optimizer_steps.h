/// Steps of the job's optimizers, for those who tell what comes before a step from what comes
/// after it.
///
/// Local. Threads: any; each thread has a count of its own, that of the steps which it has made.
#pragma once

#include <cstdint>

namespace accelerate {

/// An optimizer of the job has made a step, skipped or not: counts it, and lets the Runtime note
/// it.
void note_optimizer_step();

/// The steps that this thread has noted so far, in all jobs.
int64_t optimizer_steps();

}  // namespace accelerate
