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

# The CUDA toolkit >= 12.4, for the GPU backend only.
set(FLASHKDA_WITH_CUDA OFF)
if(NOT FLASHKDA_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # flashkda_objects names its own
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit 12.4 REQUIRED)
    set(FLASHKDA_WITH_CUDA ON)
  elseif(FLASHKDA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "flashkda: FLASHKDA_CUDA=ON but no nvcc was found. Put the CUDA toolkit (>= 12.4) on PATH or "
                        "pass -DCMAKE_CUDA_COMPILER=<path to nvcc>, or build without it: -DFLASHKDA_CUDA=OFF.")
  endif()
endif()
