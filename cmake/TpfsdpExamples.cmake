# SPDX-License-Identifier: Apache-2.0
# examples/c: one program per file, over the shared library. A file X_*.c beside an X.c belongs to that program.

if(NOT TARGET tpfsdp)
  return()
endif()

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/c/*.c)
set(parts)
foreach(source IN LISTS sources)
  string(REGEX REPLACE "\\.c$" "" stem ${source})
  file(GLOB own CONFIGURE_DEPENDS ${stem}_*.c)
  list(APPEND parts ${own})
endforeach()

foreach(source IN LISTS sources)
  if(source IN_LIST parts)
    continue()
  endif()
  get_filename_component(stem ${source} NAME_WE)
  file(GLOB own CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/c/${stem}_*.c)
  set(name example_${stem})
  add_executable(${name} ${source} ${own})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${stem} C_EXTENSIONS ON
                        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)
  tpfsdp_compile_options(${name})
  if(stem STREQUAL "dlopen") # it shows how to start without the library
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(${name} tpfsdp)
  else()
    target_link_libraries(${name} PRIVATE tpfsdp Threads::Threads m)
  endif()
endforeach()

# The small programs are tests too: they must end well, run alone.
if(BUILD_TESTING)
  foreach(stem dlopen host_storage scope)
    if(TARGET example_${stem})
      tpfsdp_add_test(example_${stem} LABELS fast)
    endif()
  endforeach()
endif()

# The transformer: ranks of every kind equal the unsharded run to the bit, and a wrong gradient is told.
if(NOT BUILD_TESTING OR NOT TARGET example_transformer)
  return()
endif()
find_program(TPFSDP_GZIP gzip REQUIRED)
set(text ${CMAKE_BINARY_DIR}/examples/devil.txt)
add_custom_command(OUTPUT ${text} COMMAND ${TPFSDP_GZIP} -dc ${PROJECT_SOURCE_DIR}/data/devil.txt.gz > ${text}
                   DEPENDS ${PROJECT_SOURCE_DIR}/data/devil.txt.gz VERBATIM)
add_custom_target(example_text ALL DEPENDS ${text})
add_dependencies(example_transformer example_text)

set(small --steps 30 --batch 2 --width 32 --length 16 --held-out 64)
set(transformer $<TARGET_FILE:example_transformer> ${text} ${small} --compare)
function(tpfsdp_add_transformer_test name)
  add_test(NAME example_transformer_${name} COMMAND ${ARGN})
  set_tests_properties(example_transformer_${name} PROPERTIES LABELS fast TIMEOUT 300)
endfunction()

set(options_plain)
set(options_recompute --recompute)
set(options_shared --recompute --mode shared)
set(options_mapped --recompute --mode mapped)
foreach(variant plain recompute shared mapped)
  foreach(ranks 2 4)
    tpfsdp_add_transformer_test(${variant}_threads_${ranks} ${transformer} --ranks ${ranks} ${options_${variant}})
  endforeach()
  tpfsdp_add_transformer_test(${variant}_processes_2 $<TARGET_FILE:tpfsdp-run> -n 2 ${transformer}
                              ${options_${variant}})
endforeach()
foreach(fault scale_grad:1.01 drop_rank:1)
  string(REGEX REPLACE ":.*" "" name ${fault})
  tpfsdp_add_transformer_test(${name} ${transformer} --ranks 2)
  set_tests_properties(example_transformer_${name} PROPERTIES ENVIRONMENT TPFSDP_FAULT=${fault}
                       PASS_REGULAR_EXPRESSION "differ from the unsharded run")
endforeach()

# And the losses are those of the same model in Python, which has gradients checked by numerical ones.
find_program(TPFSDP_NUMPY_PYTHON python PATHS ${PROJECT_SOURCE_DIR}/build/venv/bin NO_DEFAULT_PATH)
if(TPFSDP_NUMPY_PYTHON)
  tpfsdp_add_transformer_test(python ${TPFSDP_NUMPY_PYTHON} ${PROJECT_SOURCE_DIR}/tests/examples/transformer.py
                              $<TARGET_FILE:example_transformer> ${text})
else()
  message(STATUS "No build/venv (tools/setup.sh makes it): the C transformer is not compared with the Python one")
endif()
