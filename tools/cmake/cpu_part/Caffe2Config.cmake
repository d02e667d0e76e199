# In place of the package of this name inside of LibTorch, which TorchConfig.cmake asks for: LibTorch's targets,
# without CUDA, which those for CPUs do not need (accelerate_find_torch).
foreach(target protobuf::libprotobuf caffe2::mkl)
  if(NOT TARGET ${target})
    add_library(${target} INTERFACE IMPORTED)
  endif()
endforeach()
include("${TORCH_INSTALL_PREFIX}/share/cmake/Caffe2/Caffe2Targets.cmake")
set(Caffe2_MAIN_LIBS torch_cpu_library)
