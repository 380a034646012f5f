# telar_library(name [SOURCES a.cc ...] [DEPS targets ...])
# One library a folder. Includes are written from the root of the tree: #include "worker/engine/program.h".
function(telar_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  if(A_SOURCES)
    add_library(${name} STATIC ${A_SOURCES})
    target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} PUBLIC ${A_DEPS})
    target_compile_options(${name} PRIVATE ${TELAR_WARNINGS})
  else()  # Headers only.
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${A_DEPS})
  endif()
endfunction()

# telar_program(name SOURCES a.cc ... DEPS targets ...)
function(telar_program name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${A_DEPS})
  target_compile_options(${name} PRIVATE ${TELAR_WARNINGS})
endfunction()

set(TELAR_TEST_ENVIRONMENT TELAR_SOURCE_DIR=${CMAKE_SOURCE_DIR} TELAR_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
  GRPC_DNS_RESOLVER=native LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp
  TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp)

# telar_test(name SOURCES a_test.cc ... DEPS targets ... [LABELS labels ...] [TIMEOUT seconds])
# Every TEST becomes a ctest of its own. Tests run in the environment above. Their compilation is half of the whole
# tree's, so it is kept cheap: little is optimised, GoogleTest says the line of a failure, and a program's sources are
# compiled together, for which names in their anonymous namespaces differ.
function(telar_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  telar_program(${name} SOURCES ${A_SOURCES} DEPS ${A_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  if(NOT SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL Debug)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-g0>)
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${A_TIMEOUT})
  # Properties that are lists do not survive gtest_discover_tests: all but their first element is lost.
  set(lists ${CMAKE_CURRENT_BINARY_DIR}/${name}_lists.cmake)
  file(WRITE ${lists} "if(${name}_TESTS)
  set_tests_properties(\${${name}_TESTS} PROPERTIES LABELS \"${A_LABELS}\" ENVIRONMENT \"${TELAR_TEST_ENVIRONMENT}\")
endif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${lists})
endfunction()
include(GoogleTest)

# telar_proto_library(target ROOT dir PROTOS a/b.proto ... [GRPC c/d.proto ...] [DEPS targets ...]
#                     [IMPORTS dirs ...])
# GRPC names those of PROTOS that hold services; IMPORTS are further roots of what they import.
function(telar_proto_library target)
  cmake_parse_arguments(A "" "ROOT" "PROTOS;GRPC;DEPS;IMPORTS" ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${out})
  set(imports "")
  foreach(import ${A_IMPORTS})
    list(APPEND imports -I ${import})
  endforeach()
  foreach(proto ${A_PROTOS})
    string(REGEX REPLACE "\\.proto$" "" base ${proto})
    set(generated ${out}/${base}.pb.cc ${out}/${base}.pb.h)
    set(command --cpp_out=${out})
    if(proto IN_LIST A_GRPC)
      list(APPEND generated ${out}/${base}.grpc.pb.cc ${out}/${base}.grpc.pb.h)
      list(APPEND command --grpc_out=${out} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    add_custom_command(OUTPUT ${generated}
      COMMAND protobuf::protoc -I ${A_ROOT} ${imports} ${command} ${proto}
      DEPENDS ${A_ROOT}/${proto} VERBATIM)
    list(FILTER generated INCLUDE REGEX "\\.cc$")
    list(APPEND sources ${generated})
  endforeach()
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} SYSTEM PUBLIC ${out})
  target_compile_options(${target} PRIVATE -w -O1 -g0 $<$<BOOL:${SANITIZE}>:-fno-sanitize=all>)
  set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "" UNITY_BUILD OFF)
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf ${A_DEPS})
  if(A_GRPC)
    target_link_libraries(${target} PUBLIC gRPC::grpc++)
  endif()
endfunction()
