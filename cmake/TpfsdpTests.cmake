# SPDX-License-Identifier: Apache-2.0
# The folder decides what a test is: drop a file into it and it is built and registered.
#
#   tests/unit/<dir>/*.cpp      unit_<dir>: GoogleTest over the core's insides
#   tests/unit/host_scheduled/  the host engine alone, compiled with its yield points
#   tests/capi/*.c              capi_<name>_c99 and _cxx20: one C program, built in both languages over the library
#   tests/{conformance,numerics}/*.cpp   <folder>_<name>: GoogleTest over the library and the core
#   tests/embed/*.{c,cpp}       embed_<name>: a host that links nothing and loads the library itself
#
# Labels: fast (make test), full (make test-full only), fsdp (run once more in each debugging mode), tsan (run under
# the thread sanitizer). A test may be registered again, under a suffix: _full is its long form (TPFSDP_TEST_SCALE=full),
# _processes has ranks that are processes instead of threads, _shm is the host engine's tests on its other provider.

find_package(GTest REQUIRED)
# The real dlpack.h, of the package in tools/requirements.txt.
file(GLOB dlpack_hints ${PROJECT_SOURCE_DIR}/build/venv/lib/python3*/site-packages/tvm_ffi/include)
find_path(TPFSDP_DLPACK_INCLUDE_DIR dlpack/dlpack.h HINTS ${dlpack_hints}
          DOC "Folder of dlpack/dlpack.h, which a test compares with core/tensor/dlpack.hpp" REQUIRED)

set(tests_dir ${PROJECT_SOURCE_DIR}/tests)
# Tests that have a long form.
set(scaled_tests unit_comm conformance_test_collectives)
# Folders of tests/unit whose subject runs on several threads.
set(threaded_units base memory comm host fsdp)

function(tpfsdp_add_test name)
  cmake_parse_arguments(arg "" "SUFFIX" "LABELS;ENVIRONMENT" ${ARGN})
  set(test ${name}${arg_SUFFIX})
  if(arg_SUFFIX)
    # Under a name of its own, by which GoogleTest calls its report.
    file(CREATE_LINK ${name} ${CMAKE_BINARY_DIR}/${test} SYMBOLIC)
    add_test(NAME ${test} COMMAND ${CMAKE_BINARY_DIR}/${test})
  else()
    add_test(NAME ${test} COMMAND ${name})
  endif()
  set(timeout 300)
  if("full" IN_LIST arg_LABELS)
    set(timeout 1800)
  endif()
  set(environment ${arg_ENVIRONMENT})
  if(TARGET tpfsdp)
    list(APPEND environment TPFSDP_LIBRARY=$<TARGET_FILE:tpfsdp>)
  endif()
  set_tests_properties(${test} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${timeout} ENVIRONMENT "${environment}"
                       SKIP_RETURN_CODE 77)
endfunction()

# Includes and constants common to all tests, whatever they link.
function(tpfsdp_test_target name)
  tpfsdp_compile_options(${name})
  # Tests are compiled for speed of compiling: what they measure is counts.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Debug>:-O0> $<$<CONFIG:Debug>:-g1>)
  target_include_directories(${name} PRIVATE ${tests_dir} ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(${name} PRIVATE TPFSDP_TESTS_DIR="${tests_dir}")
endfunction()

# Tests whose operator new is that of tests/support/allocation.cpp.
set(allocation_tests unit_comm unit_tensor conformance_test_fully_shard_out_of_memory numerics_test_memory)

function(tpfsdp_gtest_target name)
  add_executable(${name} ${ARGN})
  if(name IN_LIST allocation_tests)
    target_sources(${name} PRIVATE ${tests_dir}/support/allocation.cpp)
  endif()
  tpfsdp_test_target(${name})
  target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main Threads::Threads nlohmann_json::nlohmann_json)
endfunction()

# ---- unit -------------------------------------------------------------------------------------------------------
file(GLOB unit_sources CONFIGURE_DEPENDS ${tests_dir}/unit/*/*.cpp)
set(unit_dirs)
foreach(source IN LISTS unit_sources)
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(folder ${folder} NAME)
  list(APPEND unit_dirs ${folder})
  list(APPEND unit_sources_${folder} ${source})
endforeach()
list(REMOVE_DUPLICATES unit_dirs)
file(GLOB host_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/core/backends/host/*.cpp)

foreach(folder IN LISTS unit_dirs)
  set(name unit_${folder})
  if(folder STREQUAL "host_scheduled")
    if(host_sources)
      # Its own copy of the engine: every word that crosses ranks yields to the test's scheduler.
      tpfsdp_gtest_target(${name} ${unit_sources_${folder}} ${host_sources})
      target_compile_definitions(${name} PRIVATE TPFSDP_HOST_SCHEDULER)
      target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/core)
      tpfsdp_add_test(${name} LABELS fast)
    endif()
  elseif(TARGET tpfsdp_core)
    tpfsdp_gtest_target(${name} ${unit_sources_${folder}})
    target_link_libraries(${name} PRIVATE tpfsdp_core)
    if(folder STREQUAL "tensor")
      target_include_directories(${name} SYSTEM PRIVATE ${TPFSDP_DLPACK_INCLUDE_DIR})
    endif()
    set(labels fast)
    if(folder IN_LIST threaded_units)
      list(APPEND labels tsan)
    endif()
    if(folder STREQUAL "fsdp")
      list(APPEND labels fsdp)
    endif()
    tpfsdp_add_test(${name} LABELS ${labels})
    if(name IN_LIST scaled_tests)
      tpfsdp_add_test(${name} SUFFIX _full LABELS full ENVIRONMENT TPFSDP_TEST_SCALE=full)
    endif()
    if(folder STREQUAL "host")
      # The caller's own memory is not shown to other processes, so that there is nothing to hold back.
      tpfsdp_add_test(${name} SUFFIX _shm LABELS ${labels} ENVIRONMENT TPFSDP_HOST_PROVIDER=shm
                      GTEST_FILTER=-Withdrawal.*:AllReduce.HostBufferHeldUntilDone)
    endif()
  endif()
endforeach()

if(NOT TARGET tpfsdp)
  return()
endif()

# ---- conformance, numerics --------------------------------------------------------------------------------------
foreach(folder conformance numerics)
  file(GLOB sources CONFIGURE_DEPENDS ${tests_dir}/${folder}/*.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(stem ${source} NAME_WE)
    set(name ${folder}_${stem})
    tpfsdp_gtest_target(${name} ${source})
    target_link_libraries(${name} PRIVATE tpfsdp tpfsdp_core)
    tpfsdp_add_test(${name} LABELS fast fsdp tsan)
    # One source, both kinds of ranks; but threads have no meaning across processes.
    if(NOT stem MATCHES "_threads$")
      tpfsdp_add_test(${name} SUFFIX _processes LABELS fast ENVIRONMENT TPFSDP_TEST_RANKS=processes)
    endif()
    if(name IN_LIST scaled_tests)
      tpfsdp_add_test(${name} SUFFIX _full LABELS full ENVIRONMENT TPFSDP_TEST_SCALE=full)
    endif()
  endforeach()
endforeach()

# ---- goldens: the runner of PyTorch's numbers, for the test above and for any folder (tools/goldens) -------------
file(GLOB sources CONFIGURE_DEPENDS ${tests_dir}/goldens/*.cpp)
list(REMOVE_ITEM sources ${tests_dir}/goldens/runner.cpp)
tpfsdp_gtest_target(goldens_runner ${tests_dir}/goldens/runner.cpp)
add_library(goldens STATIC ${sources})
tpfsdp_test_target(goldens)
target_link_libraries(goldens PUBLIC tpfsdp GTest::gmock nlohmann_json::nlohmann_json)
foreach(name numerics_test_goldens goldens_runner)
  target_link_libraries(${name} PRIVATE goldens)
endforeach()
add_test(NAME goldens_runner COMMAND goldens_runner ${tests_dir}/goldens)
set_tests_properties(goldens_runner PROPERTIES LABELS fast TIMEOUT 300)

# ---- capi: the same program as C99 and as C++20 -----------------------------------------------------------------
file(GLOB sources CONFIGURE_DEPENDS ${tests_dir}/capi/*.c)
foreach(source IN LISTS sources)
  get_filename_component(stem ${source} NAME_WE)
  # A source file has one language per directory, so the second build goes through a file that includes the first.
  set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/capi_cxx20/${stem}.cpp)
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n" @ONLY)
  add_executable(capi_${stem}_c99 ${source})
  add_executable(capi_${stem}_cxx20 ${wrapper})
  foreach(name capi_${stem}_c99 capi_${stem}_cxx20)
    tpfsdp_test_target(${name})
    target_include_directories(${name} PRIVATE ${tests_dir}/capi)
    set_target_properties(${name} PROPERTIES C_EXTENSIONS OFF CXX_EXTENSIONS OFF)
    target_compile_options(${name} PRIVATE -pedantic-errors)
    target_link_libraries(${name} PRIVATE tpfsdp Threads::Threads m)
    tpfsdp_add_test(${name} LABELS fast)
  endforeach()
endforeach()

# ---- embed ------------------------------------------------------------------------------------------------------
file(GLOB sources CONFIGURE_DEPENDS ${tests_dir}/embed/*.c ${tests_dir}/embed/*.cpp)
foreach(source IN LISTS sources)
  get_filename_component(stem ${source} NAME_WE)
  set(name embed_${stem})
  add_executable(${name} ${source})
  tpfsdp_test_target(${name})
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(${name} tpfsdp)
  tpfsdp_add_test(${name} LABELS fast)
endforeach()

# ---- kill: a rank that tools/kill_matrix.py starts -----------------------------------------------------------------
add_executable(kill_rank EXCLUDE_FROM_ALL ${tests_dir}/kill/rank.cpp)
tpfsdp_test_target(kill_rank)
# GTest: the headers of tests/support mention it.
target_link_libraries(kill_rank PRIVATE tpfsdp GTest::gmock)

# ---- bench: what `make bench` measures -----------------------------------------------------------------------------
add_executable(bench_latency EXCLUDE_FROM_ALL ${tests_dir}/bench/latency.c)
tpfsdp_test_target(bench_latency)
target_link_libraries(bench_latency PRIVATE tpfsdp)
