# Install tree: headers, library, flashkda-config.cmake, command line tool.
if(NOT FLASHKDA_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)

install(TARGETS flashkda EXPORT flashkda-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/flashkda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT flashkda-targets NAMESPACE flashkda:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashkda)
configure_package_config_file(cmake/flashkda-config.cmake.in ${PROJECT_BINARY_DIR}/flashkda-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashkda)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashkda-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flashkda-config.cmake ${PROJECT_BINARY_DIR}/flashkda-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashkda)
if(FLASHKDA_BUILD_CLI)
  install(TARGETS flashkda_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
