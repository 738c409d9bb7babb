# flashkda_warnings(target): the warnings the project is clean under.
function(flashkda_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion>
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Wold-style-cast>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
    $<$<AND:$<BOOL:${FLASHKDA_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>
    $<$<AND:$<BOOL:${FLASHKDA_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings -Xcompiler=-Werror>)
endfunction()
