# Third-party libraries, each found on the system (docs/dependencies.md says why each is here).
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

find_package(hwy 1.0.3 QUIET)
if(NOT hwy_FOUND)
  message(FATAL_ERROR "flashkda: Google Highway >= 1.0.3 not found. Debian and Ubuntu: apt install libhwy-dev. "
                      "Elsewhere: build it from source and pass -DCMAKE_PREFIX_PATH=<its prefix>.")
endif()

if(FLASHKDA_BUILD_CLI)
  find_package(CLI11 2.1 QUIET)
  find_package(nlohmann_json 3.11 QUIET)
  if(NOT CLI11_FOUND OR NOT nlohmann_json_FOUND)
    message(FATAL_ERROR "flashkda: the command line tool needs CLI11 >= 2.1 and nlohmann-json >= 3.11. Debian and "
                        "Ubuntu: apt install libcli11-dev nlohmann-json3-dev. Or pass -DFLASHKDA_BUILD_CLI=OFF.")
  endif()
endif()
