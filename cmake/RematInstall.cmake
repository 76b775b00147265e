# SPDX-License-Identifier: BSD-3-Clause

# Installs the files for find_package(Remat). Those that depend on LibTorch go into a folder for its minor version, so that
# installs for several versions can share a prefix.

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Remat)
set(compiled_dir ${config_dir}/torch-${REMAT_TORCH_VERSION})
configure_package_config_file(cmake/RematConfig.cmake.in RematConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(RematConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(CONFIGURE OUTPUT RematCompiledFor.cmake CONTENT
  "# Where LibTorch was when remat was compiled for it.\nlist(APPEND LibTorch_FALLBACK_ROOTS \"@LibTorch_LAST_ROOT@\")\n" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/RematConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/RematConfigVersion.cmake"
  cmake/FindLibTorch.cmake DESTINATION ${config_dir})
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/RematCompiledFor.cmake" DESTINATION ${compiled_dir})
install(EXPORT RematTargets NAMESPACE remat:: DESTINATION ${compiled_dir})
install(FILES planner/chain/schema/plan.schema.json planner/chain/schema/profile.schema.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/remat/schema)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
