# SPDX-License-Identifier: Apache-2.0
# tpfsdp-run: starts the ranks of one machine as processes. It needs Linux and the C library, nothing of ours.

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/tpfsdp-run/*.c)
add_executable(tpfsdp-run ${sources})
tpfsdp_compile_options(tpfsdp-run CONVERSION)
set_target_properties(tpfsdp-run PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF)
target_compile_definitions(tpfsdp-run PRIVATE _GNU_SOURCE TPFSDP_RUN_VERSION="${PROJECT_VERSION}")
target_link_libraries(tpfsdp-run PRIVATE m)
install(TARGETS tpfsdp-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
