set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # Everything may end up in a backend module.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)  # Modules are looked for beside the program.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# -g1 keeps line numbers for stack traces at half the link time and size.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1 -DNDEBUG")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# SANITIZE=address,undefined or thread; see CMakePresets.json.
set(SANITIZE "" CACHE STRING "Sanitizers for every target")
if(SANITIZE)
  add_compile_options(-fsanitize=${SANITIZE} -fno-omit-frame-pointer -g1)
  if(SANITIZE MATCHES undefined)
    # Compiling takes longer than the tests: at -O0 half as long, and less without what AddressSanitizer finds as well.
    add_compile_options(-O0 -fno-sanitize=null,vptr,object-size)
  else()
    add_compile_options(-O1)
  endif()
  add_link_options(-fsanitize=${SANITIZE})
  add_compile_options(-Wno-maybe-uninitialized)  # GCC 12 finds them in its own <regex> and <functional> then.
  if(SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # It sees no fences; ours (worker/flight) is for readers in other processes.
  endif()
endif()

# UNITY compiles a folder's sources together, sixteen at a time: half the time of a build from nothing, as tests/run.sh and
# deploy/quickstart.sh make it and sanitizers always do, but dearer when a file changes. So names in the anonymous
# namespaces of a folder differ, and every file includes what it uses though a neighbour may have done so.
option(UNITY "Compile several sources at once" OFF)
if(UNITY OR SANITIZE)
  set(CMAKE_UNITY_BUILD ON)
endif()
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
add_compile_options(-Wno-subobject-linkage)  # Of types in anonymous namespaces, which a file included in another has.

# For tests/fuzz/run.sh: everything with coverage for libFuzzer; clang only.
option(FUZZ "Build the fuzz targets for libFuzzer" OFF)
if(FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    message(FATAL_ERROR "FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
    -gline-tables-only -O1 -Wno-unknown-warning-option -Wno-unused-command-line-argument)
  add_link_options(-fsanitize=address,undefined)
endif()

add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
# Applied by telar_library and telar_test; generated code and vendor headers are exempt.
set(TELAR_WARNINGS -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers
  -Wno-restrict)  # GCC 12 sees an overlap in "literal" + std::string (GCC bug 105651).
if(FUZZ)
  set(TELAR_WARNINGS -w)  # GCC's builds look after those.
endif()
