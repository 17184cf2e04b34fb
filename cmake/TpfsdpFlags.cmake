# SPDX-License-Identifier: Apache-2.0
# How every target of the project is compiled and linked.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Results must not depend on whether the compiler found a multiply next to an add: no contraction anywhere.
add_compile_options(-ffp-contract=off)

if(TPFSDP_SANITIZE)
  # Without -fno-sanitize-recover a test with undefined behaviour prints and passes.
  add_compile_options(-fsanitize=${TPFSDP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TPFSDP_SANITIZE})
endif()
if(TPFSDP_MUTANT)
  add_compile_definitions(TPFSDP_MUTANT_${TPFSDP_MUTANT})
endif()

# tpfsdp_compile_options(<target> [CONVERSION]): the warnings. Tests go without CONVERSION, since literals of
# expected values are most of their text.
function(tpfsdp_compile_options target)
  cmake_parse_arguments(arg "CONVERSION" "" "" ${ARGN})
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
  if(arg_CONVERSION)
    target_compile_options(${target} PRIVATE -Wconversion)
  endif()
  if(TPFSDP_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# tpfsdp_kernel_flags(<source>...): a file of kernels is compiled for the instruction set that its name says; which
# of them runs is decided once, at run time.
function(tpfsdp_kernel_flags)
  foreach(source IN LISTS ARGN)
    get_filename_component(name ${source} NAME)
    if(name MATCHES "^kernels_avx512")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx2;-mfma;-mf16c")
    elseif(name MATCHES "^kernels_avx2")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    elseif(name MATCHES "^kernels_baseline")
      # gcc 12 vectorises loops like these from -O3 on.
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-O3")
    endif()
  endforeach()
endfunction()

# tpfsdp_export_rules(<target> <map>): what leaves the shared library, and what it may need.
function(tpfsdp_export_rules target map)
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${map}
    # Visibility alone leaks libstdc++'s weak templates and the symbols of static archives.
    -Wl,--exclude-libs,ALL
    -Wl,--as-needed -Wl,-z,relro -Wl,-z,now
    # Threads and callbacks of a host may still be inside when it calls dlclose.
    -Wl,-z,nodelete)
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${map})
  if(NOT TPFSDP_SANITIZE) # a sanitizer's runtime is resolved in the executable
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()
