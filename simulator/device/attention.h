/// Scaled-dot-product attention as LibTorch computes it on GPUs.
///
/// Mirrors: LibTorch 2.6, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: flash attention
/// where it can be, else the memory-efficient kernel, else several operators (math). cuDNN's
/// attention, which newer releases prefer on Hopper, is not taken.
///
/// Threads: a rank's own.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include "simulator/device/host_section.h"
#include "simulator/device/sim_device.h"
#include "simulator/hardware/kernel_time.h"

namespace accelerate::simulator {

enum class AttentionBackend : uint8_t { kMath, kFlash, kMemoryEfficient };

/// Queries [batch, heads, length, size], keys and values, and what decides besides. With
/// `enable_gqa` there may be fewer heads of keys than of queries.
using AttentionCall = sdp::sdp_params;

/// What LibTorch takes on `device`, a GPU (SimDevice::gpu_capability).
AttentionBackend attention_backend(const SimDevice& device, const AttentionCall& call);

/// The operator of a fused backend.
const char* attention_name(AttentionBackend backend, bool backward);

/// What a GPU runs and keeps for a fused backend.
HostSection fused_attention(const AttentionCall& call, AttentionBackend backend);
/// The same for the operators of _scaled_dot_product_attention_math.
HostSection composed_attention(const AttentionCall& call);

}  // namespace accelerate::simulator
