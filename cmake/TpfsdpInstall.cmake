# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: the library, its headers, and how others find them.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tpfsdp)
install(TARGETS tpfsdp EXPORT tpfsdpTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tpfsdp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(EXPORT tpfsdpTargets NAMESPACE tpfsdp:: DESTINATION ${config_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/packaging/cmake/tpfsdpConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/tpfsdpConfig.cmake INSTALL_DESTINATION ${config_dir})
# Before 1.0 a minor version may break the ABI, so only the same one is compatible.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tpfsdpConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tpfsdpConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tpfsdpConfigVersion.cmake
        DESTINATION ${config_dir})

cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
           OUTPUT_VARIABLE includedir_from_pc)
configure_file(${PROJECT_SOURCE_DIR}/packaging/pkgconfig/tpfsdp.pc.in ${CMAKE_CURRENT_BINARY_DIR}/tpfsdp.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tpfsdp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
