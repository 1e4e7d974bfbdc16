# Suites of backend mpi: mpirun starts them, here also as root, in containers, without a network and
# with more ranks than cores; rank 0 reports. groups/mpi_job starts mpirun itself.
if(NOT TARGET pl_groups_mpi)
  set(why_no_mpi "")
elseif(NOT MPIEXEC_EXECUTABLE)
  set(why_no_mpi "there is no mpirun (openmpi-bin)")
elseif(PLEAT_SANITIZE MATCHES "thread")
  set(why_no_mpi "MPI libraries are not made for the thread sanitizer")
endif()
if(DEFINED why_no_mpi)
  if(why_no_mpi)
    message(STATUS "suites of backend mpi are left out: ${why_no_mpi}")
  endif()
  list(REMOVE_ITEM suites groups/test_mpi_job.c)
  return()
endif()

# After a failure a process ends, and what MPI may still read stays: not so in the suite of failures.
file(READ ${CMAKE_CURRENT_SOURCE_DIR}/groups/mpi_leaks.txt leaks)
file(CONFIGURE OUTPUT mpi_leaks_conformance.txt CONTENT "${leaks}" @ONLY)
file(CONFIGURE OUTPUT mpi_leaks_failure.txt CONTENT "${leaks}leak:make_message\n" @ONLY)

set(mpi_environment
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  OMPI_MCA_btl_vader_single_copy_mechanism=none)
set(mpi_leaks LSAN_OPTIONS=print_suppressions=0:suppressions=${CMAKE_CURRENT_BINARY_DIR}/mpi_leaks)

# mpi_suite(NAME PROCESSES): tests/groups/mpi_NAME.c
function(mpi_suite name processes)
  set(target test_groups_mpi_${name})
  add_executable(${target} groups/mpi_${name}.c groups/mpi_ranks.c groups/mpi_keep_loaded.c
    ${group_cases})
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  target_link_libraries(${target} PRIVATE pl_sim pl_groups_mpi pl_groups_self pl_groups_threads
    MPI::MPI_C PkgConfig::CMOCKA Threads::Threads m)
  add_test(NAME groups/mpi_${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${processes} $<TARGET_FILE:${target}>)
  set_tests_properties(groups/mpi_${name} PROPERTIES LABELS groups TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "${mpi_environment};${mpi_leaks}_${name}.txt")
  if(NOT TARGET suites_groups)
    add_custom_target(suites_groups)
  endif()
  add_dependencies(suites_groups ${target})
endfunction()
mpi_suite(conformance 8)
mpi_suite(failure 4)

# A rank of a job that ends well or badly; groups/mpi_job looks at how.
add_executable(mpi_rank groups/mpi_rank.c groups/mpi_keep_loaded.c)
set_target_properties(mpi_rank PROPERTIES ENABLE_EXPORTS ON)
target_link_libraries(mpi_rank PRIVATE pl_groups_mpi MPI::MPI_C)
