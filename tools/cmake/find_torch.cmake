# accelerate_find_torch(ARGUMENTS): find_package(Torch ARGUMENTS). The CMake package of a LibTorch that was built for CUDA,
# as that of PyPI is, asks for CUDA's toolkit. Where the toolkit is not installed, or ACCELERATE_CUDA is OFF, the part of
# such a LibTorch for CPUs is used, and ACCELERATE_TORCH_PART is "cpu". Installed, because programs need the same: they look
# first where accelerate_torch_dir says. Where accelerate_torch_version is set, a LibTorch of another version is left as it
# is: Torch_FOUND is false, Torch_VERSION and Torch_DIR are those of the one that was found.
set(ACCELERATE_CUDA AUTO CACHE STRING "The part of LibTorch for CUDA: ON, OFF or AUTO")
set(accelerate_cpu_part "${CMAKE_CURRENT_LIST_DIR}/cpu_part")

macro(accelerate_find_torch)
  # Nothing here is CUDA's language, so any architecture will do; without one the machine's GPUs are asked for.
  if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST 9.0)
  endif()
  set(ACCELERATE_TORCH_PART whole)
  # What an earlier run chose.
  if("${Caffe2_DIR}" STREQUAL "${accelerate_cpu_part}")
    unset(Caffe2_DIR CACHE)
  endif()
  # This file of the package only tells its version, and so where the package is.
  find_package(Torch QUIET CONFIG CONFIGS TorchConfigVersion.cmake HINTS ${accelerate_torch_dir})
  # The targets of another release may want what is not there, and end the configuration before anybody says why.
  set(accelerate_is_other_torch FALSE)
  if(Torch_FOUND AND DEFINED accelerate_torch_version AND NOT "${accelerate_torch_version}" STREQUAL "${PACKAGE_VERSION}")
    set(accelerate_is_other_torch TRUE)
  endif()
  if(Torch_FOUND AND NOT accelerate_is_other_torch AND NOT ACCELERATE_CUDA STREQUAL ON
      AND EXISTS "${Torch_DIR}/../../../lib/libtorch_cuda.so")
    find_package(CUDAToolkit QUIET)
    if(NOT ACCELERATE_CUDA OR NOT CUDAToolkit_NVCC_EXECUTABLE)
      set(ACCELERATE_TORCH_PART cpu)
      set(Caffe2_DIR "${accelerate_cpu_part}" CACHE PATH "" FORCE)
    endif()
  endif()
  if(accelerate_is_other_torch)
    set(Torch_FOUND FALSE)
    set(Torch_VERSION "${PACKAGE_VERSION}")
  else()
    find_package(Torch ${ARGN} HINTS ${accelerate_torch_dir})
  endif()
  if(Torch_FOUND AND ACCELERATE_TORCH_PART STREQUAL cpu)
    message(STATUS "Accelerate: the part for CPUs of a LibTorch for CUDA (ACCELERATE_CUDA: ${ACCELERATE_CUDA})")
    set(TORCH_LIBRARIES torch_cpu_library c10)
  endif()
endmacro()
