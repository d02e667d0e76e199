/// All learning-rate schedulers.
#pragma once

#include "accelerate/optim/schedulers/combined.h"
#include "accelerate/optim/schedulers/cosine.h"
#include "accelerate/optim/schedulers/cyclic.h"
#include "accelerate/optim/schedulers/decay.h"
#include "accelerate/optim/schedulers/lambda.h"
#include "accelerate/optim/schedulers/one_cycle.h"
#include "accelerate/optim/schedulers/plateau.h"
#include "accelerate/optim/schedulers/ramp.h"
#include "accelerate/optim/schedulers/scheduler.h"
#include "accelerate/optim/schedulers/warm_up.h"
