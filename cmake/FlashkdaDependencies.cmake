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

# The CUDA toolkit, for the GPU backend only. Compiling needs neither a GPU nor a driver.
set(FLASHKDA_WITH_CUDA OFF)
set(nvcc "")
set(nvcc_missing "FLASHKDA_CUDA=OFF")
if(FLASHKDA_CUDA STREQUAL "AUTO" AND FLASHKDA_SANITIZE)
  set(nvcc_missing "not under sanitizers")
elseif(NOT FLASHKDA_CUDA STREQUAL "OFF")
  include(FlashkdaNvcc)
  flashkda_find_nvcc(nvcc nvcc_missing)
endif()
if(nvcc)
  set(ENV{CUDACXX} "${nvcc}")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # flashkda_objects names its own
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit ${FLASHKDA_CUDA_MINIMUM} QUIET)
    if(TARGET CUDA::cudart_static)
      set(FLASHKDA_WITH_CUDA ON)
    else()
      set(nvcc_missing "no libcudart_static.a and headers that belong to ${nvcc}")
    endif()
  else()
    unset(CMAKE_CUDA_COMPILER CACHE)  # looked for again by the next configuration
    set(nvcc_missing "${nvcc} cannot compile here, CMakeFiles/CMakeError.log says why")
  endif()
endif()
if(FLASHKDA_WITH_CUDA)
  list(JOIN FLASHKDA_CUDA_ARCHITECTURES " sm_" architectures)
  message(STATUS "CUDA backend: on, sm_${architectures} (${nvcc}, ${CMAKE_CUDA_COMPILER_VERSION})")
elseif(FLASHKDA_CUDA STREQUAL "ON")
  message(FATAL_ERROR "flashkda: FLASHKDA_CUDA=ON, but: ${nvcc_missing}. Install the CUDA toolkit >= 12.4, run "
                      "tools/setup_cuda.sh, or name an nvcc by -DCMAKE_CUDA_COMPILER=<path>. Or build without it: "
                      "-DFLASHKDA_CUDA=OFF.")
else()
  message(STATUS "CUDA backend: off (${nvcc_missing})")
endif()
