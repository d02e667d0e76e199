/// big_modeling's cases of kind dispatch: models that are placed and called.
///
/// Threads: the rank's thread.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer of such a case. Tensors that are in memory only while operators use them lie on
/// "meta". `hooks` and `calls` are there where hooks are: of attach_align_device_hook.
nlohmann::json run_big_modeling_dispatch(const nlohmann::json& in);

}  // namespace accelerate::golden
