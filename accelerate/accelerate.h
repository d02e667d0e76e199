/// Everything a training program needs: `accelerate::run`, `accelerate::Accelerator`, data loaders.
/// Includes only.
#pragma once

#include "accelerate/accelerator.h"
#include "accelerate/config/constants.h"
#include "accelerate/config/enums.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/run.h"
#include "accelerate/util/logger.h"
#include "accelerate/util/progress_bar.h"
#include "accelerate/util/random.h"
#include "accelerate/util/rng_state.h"
