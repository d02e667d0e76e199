/// Everything a training program needs: `accelerate::run`, `accelerate::Accelerator`, data loaders.
/// Includes only.
#pragma once

#include "accelerate/accelerator.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/run.h"
#include "accelerate/util/progress_bar.h"
#include "accelerate/util/random.h"
