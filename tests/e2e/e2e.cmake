# e2e_test(MODULE CLASS SECONDS [ALONE]): one class of tests/e2e/MODULE.py against the programs of this build; one at a
# time, and ALONE on the machine where it is about short leases.
function(e2e_test module class seconds)
  string(REGEX REPLACE "^test_" "" name ${module})
  add_test(NAME e2e.${name}.${class}
    COMMAND ${Python3_EXECUTABLE} -W error ${CMAKE_CURRENT_SOURCE_DIR}/${module}.py -v ${class})
  set_tests_properties(e2e.${name}.${class} PROPERTIES LABELS e2e TIMEOUT ${seconds} RESOURCE_LOCK e2e
    ENVIRONMENT "${TELAR_TEST_ENVIRONMENT}")
  if(ARGN STREQUAL ALONE)
    set_tests_properties(e2e.${name}.${class} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

e2e_test(test_job JobTest 120)
e2e_test(test_job EndTest 120)
e2e_test(test_resume ResumeTest 180)
e2e_test(test_resume LayoutTest 120)
e2e_test(test_resume GiveUpTest 120)
e2e_test(test_checkpoints CheckpointTest 180)
e2e_test(test_huggingface HuggingFaceTest 120)
e2e_test(test_daemons CoordinatorTest 240 ALONE)
e2e_test(test_daemons WorkerTest 300 ALONE)
e2e_test(test_bad_input SpecTest 120)
e2e_test(test_bad_input AddressTest 120)
e2e_test(test_bad_input DataTest 180)
e2e_test(test_bad_input DiskTest 120)
e2e_test(test_scheduling SchedulingTest 180)
e2e_test(test_dashboards DashboardsTest 180)
