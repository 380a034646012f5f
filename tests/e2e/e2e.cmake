# e2e_test(MODULE CLASS SECONDS): one class of tests/e2e/MODULE.py, against the programs of this build.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
function(e2e_test module class seconds)
  string(REGEX REPLACE "^test_" "" name ${module})
  add_test(NAME e2e.${name}.${class} COMMAND ${Python3_EXECUTABLE} -W error ${CMAKE_CURRENT_SOURCE_DIR}/${module}.py -v ${class})
  set_tests_properties(e2e.${name}.${class} PROPERTIES LABELS e2e TIMEOUT ${seconds} RUN_SERIAL TRUE SKIP_RETURN_CODE 77
                       ENVIRONMENT TELAR_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endfunction()
