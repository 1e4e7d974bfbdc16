# Counting tests the same way in every runner. Sourced.
#
# A runner reports each test with passed or failed, or what it had to leave out with left_out, and
# ends with finish; its last line is "== NAME: N passed, N failed (S s)".

tally_passed=0 tally_failed=0 tally_start=$SECONDS

passed() {
    tally_passed=$((tally_passed + 1))
    printf '  ok    %s\n' "$1"
}

# failed NAME [WORDS...]: each of WORDS, which may have several lines, is printed below the name.
failed() {
    tally_failed=$((tally_failed + 1))
    printf '  FAIL  %s\n' "$1"
    shift
    local words
    for words; do [[ -z $words ]] || printf '%s\n' "$words" | sed 's/^/          /'; done
}

left_out() { printf '  LEFT OUT  %s\n' "$1"; }

# finish NAME: the last line of a runner, and its status.
finish() {
    printf '== %s: %d passed, %d failed (%d s)\n' "$1" "$tally_passed" "$tally_failed" \
        $((SECONDS - tally_start))
    ((tally_failed == 0 && tally_passed > 0))
}
