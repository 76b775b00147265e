# SPDX-License-Identifier: BSD-3-Clause

# Installs what find_package(Remat) needs.

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Remat)
configure_package_config_file(cmake/RematConfig.cmake.in RematConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(RematConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/RematConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/RematConfigVersion.cmake"
  cmake/FindLibTorch.cmake DESTINATION ${config_dir})
install(EXPORT RematTargets NAMESPACE remat:: DESTINATION ${config_dir})
install(FILES policy/planner/schema/plan.schema.json policy/planner/schema/profile.schema.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/remat/schema)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
