/// What programs with a MegatronLMPlugin include besides accelerate/accelerate.h: the engine, whose
/// step is one call, data and weights of Megatron-LM, and its command line. Includes only.
#pragma once

#include "accelerate/config/megatron_command_line.h"
#include "accelerate/megatron/checkpoint.h"
#include "accelerate/megatron/weights.h"
#include "accelerate/prepare_megatron_lm.h"
