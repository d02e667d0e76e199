/// How the members of a group learn of each other's place among MPI's ranks: through the store that
/// the group is made with, so that a member that does not come is missed by name, and in time.
#pragma once

#include <memory>

#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/backends/mpi/mpi_group.h"

namespace accelerate::internal {

/// Collective over the group.
/// Errors: c10::ValueError for processes that mpirun or srun did not start together;
///         c10::DistBackendError naming the members that did not come.
std::shared_ptr<MpiGroup> make_group(const BackendOptions& options);

}  // namespace accelerate::internal
