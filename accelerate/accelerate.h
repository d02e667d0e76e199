/// Everything a training program needs: `accelerate::run`, `accelerate::Accelerator`, data loaders.
/// Includes only.
#pragma once

#include "accelerate/accelerator.h"
#include "accelerate/config/constants.h"
#include "accelerate/config/enums.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/parallel/local_sgd.h"
#include "accelerate/run.h"
#include "accelerate/runtime/numa_affinity.h"
#include "accelerate/state/job_operations.h"
#include "accelerate/util/availability.h"
#include "accelerate/util/checkpoint.h"
#include "accelerate/util/environment_report.h"
#include "accelerate/util/environment_scope.h"
#include "accelerate/util/executable_batch_size.h"
#include "accelerate/util/logger.h"
#include "accelerate/util/memory.h"
#include "accelerate/util/progress_bar.h"
#include "accelerate/util/random.h"
#include "accelerate/util/rng_state.h"
