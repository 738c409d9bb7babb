# cmake -DKIND=shared|static -DCUDA=options -DSOURCE_DIR=.. -DWORK_DIR=.. -DVERSION=.. -DGENERATOR=.. -P install_test.cmake
cmake_minimum_required(VERSION 3.24)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR}/prefix ${WORK_DIR}/consumer)
set(shared_libs OFF)
if(KIND STREQUAL shared)
  set(shared_libs ON)
endif()

# Unoptimised: this is about what is installed where, and compiles faster.
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR}/build -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Debug
    -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DBUILD_SHARED_LIBS=${shared_libs} -DFLASHKDA_BUILD_CLI=OFF
    ${CUDA} -DFLASHKDA_CUDA_ARCHITECTURES=80)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${CMAKE_COMMAND} --install ${WORK_DIR}/build --prefix ${WORK_DIR}/prefix)

run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/install/consumer -B ${WORK_DIR}/consumer -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DFLASHKDA_EXAMPLES=${SOURCE_DIR}/examples
    -DFLASHKDA_VERSION=${VERSION} ${CUDA})
file(STRINGS ${WORK_DIR}/consumer/CMakeCache.txt found REGEX "^flashkda_DIR")
if(NOT found MATCHES "=${WORK_DIR}/prefix/")
  message(FATAL_ERROR "the consumer found another flashkda: ${found}")
endif()
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer)
run(${CMAKE_CTEST_COMMAND} --test-dir ${WORK_DIR}/consumer --output-on-failure --no-tests=error)
