/// All learning-rate schedulers.
#pragma once

#include "accelerate/optim/schedulers/combined.h"
#include "accelerate/optim/schedulers/cyclic.h"
#include "accelerate/optim/schedulers/decay.h"
#include "accelerate/optim/schedulers/deepspeed.h"
#include "accelerate/optim/schedulers/lambda.h"
#include "accelerate/optim/schedulers/plateau.h"
#include "accelerate/optim/schedulers/scheduler.h"
