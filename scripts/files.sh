# Which files belong to the tree. Sourced.

# source_files ROOT: paths relative to ROOT, sorted: what git tracks or would add; without git, all
# but build/.
source_files() {
    local top
    top=$(git -C "$1" rev-parse --show-toplevel 2>/dev/null)
    if [[ -n $top && $(realpath "$top") == $(realpath "$1") ]]; then
        (cd "$1" && git ls-files --cached --others --exclude-standard | sort -u |
            while IFS= read -r path; do [[ ! -f $path ]] || printf '%s\n' "$path"; done)
    else
        (cd "$1" && find . -name .git -prune -o -path ./build -prune -o -type f -print |
            sed 's,^\./,,' | sort)
    fi
}

# c_files ROOT: the C, C++ and CUDA files among them.
c_files() { source_files "$1" | grep -E '\.(c|h|cu|cuh)$'; }
