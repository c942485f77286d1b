# What every folder's CMakeLists.txt uses: flags, libraries found once, and three functions.

find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq>=4.3.2)
pkg_check_modules(CZMQ REQUIRED IMPORTED_TARGET libczmq>=4.2)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(MICROHTTPD IMPORTED_TARGET libmicrohttpd)  # Else there is no web page.
find_library(MSGPACK_LIBRARY NAMES msgpack-c msgpackc REQUIRED)
find_path(MSGPACK_INCLUDE msgpack.h REQUIRED)

# The libraries' own headers do not pass our warnings: they are system headers.
foreach(library ZMQ CZMQ JANSSON XXHASH OPENBLAS)
    get_target_property(directories PkgConfig::${library} INTERFACE_INCLUDE_DIRECTORIES)
    if(directories)
        set_target_properties(PkgConfig::${library} PROPERTIES
            INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${directories}")
    endif()
endforeach()

add_library(hx_flags INTERFACE)
target_compile_options(hx_flags INTERFACE
    -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
    # Fields left out are 0, on purpose; clang complains of that in nested braces, gcc does not.
    $<$<C_COMPILER_ID:Clang>:-Wno-missing-field-initializers>
    -fno-omit-frame-pointer $<$<BOOL:${HX_WERROR}>:-Werror>)
# What gcc guesses of snprintf depends on how much it inlined: names are cut on purpose.
target_compile_options(hx_flags INTERFACE $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
target_compile_definitions(hx_flags INTERFACE _GNU_SOURCE HX_VERSION="${PROJECT_VERSION}")
target_include_directories(hx_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(HX_SANITIZE)
    target_compile_options(hx_flags INTERFACE -fsanitize=${HX_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(hx_flags INTERFACE -fsanitize=${HX_SANITIZE})
endif()

if(HX_SANITIZE MATCHES address)  # gcc has a macro of its own for that, clang another.
    target_compile_definitions(hx_flags INTERFACE HX_ASAN)
endif()
if(HX_FUZZ)  # Coverage of every file, without libFuzzer's main.
    target_compile_options(hx_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# hx_library(NAME deps...): a static library of the folder's *.c, and a program of each X_main.c:
# bin/harmony-X in the build folder, installed. A folder of headers alone has no archive.
function(hx_library name)
    file(GLOB sources CONFIGURE_DEPENDS *.c)
    set(mains ${sources})
    list(FILTER mains INCLUDE REGEX "_main\\.c$")
    list(FILTER sources EXCLUDE REGEX "_main\\.c$")
    if(sources)
        add_library(${name} STATIC ${sources})
        target_link_libraries(${name} PUBLIC hx_flags ${ARGN})
    else()
        add_library(${name} INTERFACE)
        target_link_libraries(${name} INTERFACE hx_flags ${ARGN})
    endif()
    foreach(main ${mains})
        get_filename_component(program ${main} NAME_WE)
        string(REGEX REPLACE "_main$" "" program ${program})
        hx_program(harmony-${program} ${main} ${name})
    endforeach()
endfunction()

function(hx_program name main)
    add_executable(${name} ${main})
    target_link_libraries(${name} PRIVATE hx_flags ${ARGN})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    add_dependencies(programs ${name})
    install(TARGETS ${name} RUNTIME)
    if(EXISTS ${PROJECT_SOURCE_DIR}/docs/man/${name}.1)
        install(FILES ${PROJECT_SOURCE_DIR}/docs/man/${name}.1
            DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    endif()
endfunction()
