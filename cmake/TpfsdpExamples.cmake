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
