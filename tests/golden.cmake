# golden-check and its run on each reference folder beside it.
add_executable(golden-check golden_check.c)
target_link_libraries(golden-check PRIVATE hx_flags hx_model)
set_target_properties(golden-check PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})

file(GLOB folders CONFIGURE_DEPENDS golden/*/expected.safetensors)
foreach(folder ${folders})
    get_filename_component(folder ${folder} DIRECTORY)
    get_filename_component(name ${folder} NAME)
    foreach(way plain recompute)
        set(option "")
        if(way STREQUAL "recompute")
            set(option --recompute)
        endif()
        add_test(NAME golden_${name}_${way} COMMAND golden-check ${option} ${folder})
        set_tests_properties(golden_${name}_${way} PROPERTIES LABELS unit TIMEOUT 120
            ENVIRONMENT "${HX_TEST_ENVIRONMENT}")
        hx_watch(golden_${name}_${way})
    endforeach()
endforeach()

# harmony-sample: a small model of bytes must go on from a prompt, the same way each time.
add_test(NAME sample_writes COMMAND harmony-sample
    ${CMAKE_CURRENT_SOURCE_DIR}/golden/gpt2-one-head --prompt In --tokens 3 --temperature 0)
set_tests_properties(sample_writes PROPERTIES LABELS unit TIMEOUT 60 PASS_REGULAR_EXPRESSION "^In")
hx_watch(sample_writes)
add_test(NAME sample_names_the_nearest_option COMMAND harmony-sample --promt x)
set_tests_properties(sample_names_the_nearest_option PROPERTIES LABELS unit TIMEOUT 60
    PASS_REGULAR_EXPRESSION "did you mean --prompt")
hx_watch(sample_names_the_nearest_option)
