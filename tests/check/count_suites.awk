# Reads the output of "ctest -V" over CMocka suites; prints a line for each suite, the output of
# those that failed, and last "total PASSED FAILED".
#
# A suite announces how many tests it will run and prints a line for each that passes. What was
# announced and did not pass has failed; so has a suite that ended badly without a failed test
# (a crash, a leak, a time-out) and one that ran no test.

function suite_number(line) { sub(/:.*/, "", line); return line + 0 }

/^ *[0-9]+: / {
    suite = suite_number($0)
    text = $0
    sub(/^ *[0-9]+: /, "", text)
    output[suite] = output[suite] "          " text "\n"
    if (match(text, /Running [0-9]+ test/)) {
        split(substr(text, RSTART), words, " ")
        announced[suite] += words[2]
    }
    if (text ~ /\[       OK \] /) good[suite]++
    next
}

/^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: / {
    match($0, /#[0-9]+: /)
    suite = substr($0, RSTART + 1, RLENGTH - 3) + 0
    rest = substr($0, RSTART + RLENGTH)
    name = rest
    sub(/ .*/, "", name)
    seconds = $(NF - 1)
    bad = announced[suite] - good[suite]
    ended_well = rest ~ / Passed +[0-9.]+ sec/
    why = ""
    if (!ended_well) {
        why = rest
        sub(/^[^*]*\**/, "", why)
        sub(/ *[0-9.]+ sec.*/, "", why)
        if (bad <= 0) bad = 1
    } else if (good[suite] + bad == 0) {
        why = "ran no test"
        bad = 1
    } else if (bad > 0) why = "tests failed or were skipped, and the suite did not say so"
    total_good += good[suite]
    total_bad += bad
    suites++
    printf "  %-5s %-28s %4d passed, %d failed (%s s)%s\n", bad ? "FAIL" : "ok", name,
        good[suite], bad, seconds, why ? ": " why : ""
    if (bad) printf "%s", output[suite]
    next
}

END {
    if (!suites) {
        print "  FAIL  no suite was run"
        total_bad++
    }
    printf "total %d %d\n", total_good, total_bad
}
